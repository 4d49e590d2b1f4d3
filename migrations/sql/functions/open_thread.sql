-- Inserts the rows of a thread at its first append. Of two first appends at once, one waits for the other here. The
-- thread's creation time is also the time of its first entry, so the chain covers it.
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
