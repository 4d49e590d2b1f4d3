-- Records a hold, a release or a retention.
CREATE FUNCTION compaction_store.record_event(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kind text, p_actor text, p_salt bytea, p_body text,
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
    IF (p_kind IN ('hold', 'release', 'retention')) IS NOT TRUE
        OR (p_kind = 'retention' AND compaction_store.retained_until(p_body) IS NULL)
    THEN
        RAISE EXCEPTION 'p_kind must be hold, release or retention, with a body that fits the kind'
            USING ERRCODE = 'CS008';
    END IF;
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, p_kind, p_actor, p_salt, p_body) AS r;
END
$$;
