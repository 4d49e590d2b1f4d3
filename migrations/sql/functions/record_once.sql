-- Writes an event, unless an event with the same kind and salt is stored already. Each call has a new salt, so a call
-- with a known salt is a retry. The caller has called queue_up.
CREATE FUNCTION compaction_store.record_once(
    p_thread_uid uuid, p_kind text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head compaction_store.heads;
BEGIN
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
