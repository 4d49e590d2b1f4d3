-- Records a hold, a release or a retention. Each call has a new salt, so a call with a known salt is a retry and writes
-- nothing.
CREATE FUNCTION compaction_store.record_event(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kind text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF (p_kind IN ('hold', 'release', 'retention')) IS NOT TRUE
        OR (p_kind = 'retention' AND compaction_store.retained_until(p_body) IS NULL)
    THEN
        RAISE EXCEPTION 'no such event' USING ERRCODE = 'CS008';
    END IF;
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    SELECT e.pos, e.created_at, e.login INTO event_pos, written_at, written_login FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos <= v_head.last_pos AND e.kind = p_kind AND e.salt = p_salt;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM compaction_store.refuse_erased(v_head.erased_pos);
    written_login := session_user;
    SELECT w.event_pos, w.written_at INTO event_pos, written_at
    FROM compaction_store.write_event(v_head, p_kind, false, p_actor, p_salt, p_body) AS w;
END
$$;
