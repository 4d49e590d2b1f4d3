-- Makes the rows of a thread that a bundle brings, until finish_import with nothing in them. Where the thread is there
-- already, nothing is made, and its pos and head are returned. The genesis of an erased thread, whose name is gone, is
-- the one its erasure kept: nobody can compute it.
CREATE FUNCTION compaction_store.begin_import(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_genesis bytea, p_metadata text, p_created_at timestamptz,
    OUT found_pos bigint, OUT found_head bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_is_stub boolean := p_thread_id = 'erased:' || p_thread_uid;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF NOT v_is_stub AND (
        p_thread_uid IS DISTINCT FROM compaction_store.thread_uid(p_tenant, p_thread_id)
        OR p_genesis IS DISTINCT FROM compaction_store.genesis(p_tenant, p_thread_id)
    ) THEN
        RAISE EXCEPTION 'thread_uid is not that of the tenant and the thread' USING ERRCODE = 'CS008';
    END IF;
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, metadata, created_at)
    VALUES (p_thread_uid, p_tenant, p_thread_id, p_metadata::json, p_created_at)
    ON CONFLICT (thread_uid) DO NOTHING;
    IF FOUND THEN
        INSERT INTO compaction_store.heads (thread_uid, tenant, head) VALUES (p_thread_uid, p_tenant, p_genesis);
        RETURN;
    END IF;
    SELECT h.last_pos, h.head INTO STRICT found_pos, found_head
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
END
$$;
