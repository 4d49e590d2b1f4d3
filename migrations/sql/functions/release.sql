-- Releases a lease. p_stalled means that the run made no progress; the thread is then not due again until its view has
-- grown.
CREATE FUNCTION compaction_store.release(p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_stalled boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    UPDATE compaction_store.heads AS h
    SET lease_run = NULL, lease_since = NULL, lease_until = NULL, lease_actor = NULL,
        stalled_tokens = CASE WHEN p_stalled THEN h.view_tokens ELSE h.stalled_tokens END
    WHERE h.thread_uid = p_thread_uid AND h.lease_run = p_run_id;
END
$$;
