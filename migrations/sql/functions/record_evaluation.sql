-- Records the result of an evaluation of the thread's compactions.
CREATE FUNCTION compaction_store.record_evaluation(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, 'evaluation', p_actor, p_salt, p_body) AS r;
END
$$;
