-- Adds a name with a new thread_uid, or returns the thread_uid that the name has already. The caller makes the thread
-- with the new thread_uid, by open_named_thread, in the same transaction. Of two callers at the same time, one waits
-- here for the other and gets its thread_uid. This function exists only on a cluster, where a name and its thread are
-- on different nodes; on a single server, open_thread writes both.
CREATE OR REPLACE FUNCTION compaction_store.name_thread(
    p_name_uid uuid, p_tenant text, p_thread_id text, OUT named_uid uuid, OUT is_new boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id, true);
    IF p_name_uid IS DISTINCT FROM compaction_store.name_uid(p_tenant, p_thread_id) THEN
        RAISE EXCEPTION 'name_uid must be the hash of the name' USING ERRCODE = 'CS008';
    END IF;
    named_uid := compaction_store.new_thread_uid(clock_timestamp());
    INSERT INTO compaction_store.names (name_uid, tenant, thread_id, thread_uid)
    VALUES (p_name_uid, p_tenant, p_thread_id, named_uid)
    ON CONFLICT DO NOTHING;
    is_new := FOUND;
    IF NOT is_new THEN
        SELECT n.thread_uid INTO named_uid
        FROM compaction_store.names AS n
        WHERE n.name_uid = p_name_uid AND n.tenant = p_tenant AND n.thread_id = p_thread_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another call erased the thread of this name' USING ERRCODE = '40001';
        END IF;
    END IF;
END
$$;
