-- Gives a thread a subject, or takes it away if p_subject is NULL, and writes an event. The event has no subject in the
-- clear, because events are never erased. It has hashes of the old and the new subject with the salt of the thread's
-- name: as long as the thread is there, they show whether a subject is the one that is meant. The salt is erased with
-- the thread. An application may set the subject of a thread that has none; only a custodian may change it, because a
-- thread with another subject would be missed when the first one's threads are erased.
CREATE FUNCTION compaction_store.set_subject(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_subject text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text, OUT written_body text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_subject text;
    v_last_pos bigint;
    v_salt bytea;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF octet_length(p_subject) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'a subject must be 1 to 255 bytes of text, not %', octet_length(p_subject)
            USING ERRCODE = 'CS019';
    END IF;
    SELECT h.subject, h.last_pos INTO v_subject, v_last_pos
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    -- A retry finds the event that it wrote, and changes nothing: another call may have set the subject since.
    SELECT e.pos, e.created_at, e.login, e.body::text INTO event_pos, written_at, written_login, written_body
    FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos <= v_last_pos AND e.kind = 'subject' AND e.salt = p_salt;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM compaction_store.refuse_override(v_subject <> coalesce(p_subject, ''), 'change the subject of a thread');
    SELECT t.salt INTO v_salt FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
    written_body := format(
        '{"old":%s,"new":%s%s',
        coalesce('"' || encode(compaction_store.commitment(v_salt, v_subject), 'hex') || '"', 'null'),
        coalesce('"' || encode(compaction_store.commitment(v_salt, p_subject), 'hex') || '"', 'null'),
        CASE WHEN p_body = '{}' THEN '}' ELSE ',' || substring(p_body FROM 2) END
    );
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, 'subject', p_actor, p_salt, written_body) AS r;
    UPDATE compaction_store.heads AS h SET subject = p_subject WHERE h.thread_uid = p_thread_uid;
END
$$;
