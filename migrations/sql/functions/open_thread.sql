-- The rows of a thread, made at its first append. Two first appends at once meet here and one waits for the other. The
-- thread's time is the head's, which the first entry takes for its own: so the chain holds it too.
CREATE FUNCTION compaction_store.open_thread(p_thread_uid uuid, p_tenant text, p_thread_id text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_thread_uid IS DISTINCT FROM compaction_store.thread_uid(p_tenant, p_thread_id) THEN
        RAISE EXCEPTION 'thread_uid is not that of the tenant and the thread' USING ERRCODE = 'CS008';
    END IF;
    PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id);
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, created_at)
    VALUES (p_thread_uid, p_tenant, p_thread_id, v_now)
    ON CONFLICT DO NOTHING;
    INSERT INTO compaction_store.heads (thread_uid, tenant, last_at, head)
    VALUES (p_thread_uid, p_tenant, v_now, compaction_store.genesis(p_tenant, p_thread_id))
    ON CONFLICT (thread_uid) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_taken(p_thread_uid);
    END IF;
END
$$;
