-- Adds the name of a thread that the same transaction makes, by an import or a fork. Raises an error if another thread
-- has the name. This function exists only on a cluster, where a name and its thread are on different nodes; on a single
-- server, finish_import and fork write the name together with the thread. Citus finds the node by the first argument.
CREATE OR REPLACE FUNCTION compaction_store.claim_name(
    p_name_uid uuid, p_tenant text, p_thread_id text, p_thread_uid uuid
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id, true);
    IF p_name_uid IS DISTINCT FROM compaction_store.name_uid(p_tenant, p_thread_id) OR p_thread_uid IS NULL THEN
        RAISE EXCEPTION 'name_uid must be the hash of the name' USING ERRCODE = 'CS008';
    END IF;
    INSERT INTO compaction_store.names (name_uid, tenant, thread_id, thread_uid)
    VALUES (p_name_uid, p_tenant, p_thread_id, p_thread_uid)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        PERFORM FROM compaction_store.names AS n
        WHERE n.name_uid = p_name_uid AND n.tenant = p_tenant AND n.thread_id = p_thread_id
            AND n.thread_uid = p_thread_uid;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the name is taken by another thread' USING ERRCODE = 'CS022';
        END IF;
    END IF;
    PERFORM compaction_store.refuse_moved(get_shard_id_for_distribution_column('compaction_store.names', p_name_uid));
END
$$;
