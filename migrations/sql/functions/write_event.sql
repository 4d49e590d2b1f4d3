-- Writes an event and moves the head, which the caller has locked. p_critical says that the event changes how views are
-- computed.
CREATE FUNCTION compaction_store.write_event(
    p_head compaction_store.heads, p_kind text, p_critical boolean, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_commitment bytea := compaction_store.commitment(p_salt, p_body);
    v_entry bytea;
    v_xid bigint := greatest(p_head.feed_xid, pg_current_xact_id()::text::bigint);
BEGIN
    IF (octet_length(p_salt) = 16) IS NOT TRUE THEN
        RAISE EXCEPTION 'a salt must have 16 bytes' USING ERRCODE = 'CS008';
    END IF;
    IF p_head.is_log <> coalesce(compaction_store.is_of_log(p_kind), false) THEN
        PERFORM compaction_store.refuse_in_log();
    END IF;
    PERFORM compaction_store.refuse_bad_document('body', p_body);
    event_pos := p_head.last_pos + 1;
    written_at := compaction_store.next_at(p_head.last_pos, p_head.last_at, clock_timestamp());
    v_entry := compaction_store.entry(
        p_head.head, event_pos, 0, written_at,
        compaction_store.event_header(p_kind, p_critical, p_actor, session_user), v_commitment
    );
    INSERT INTO compaction_store.events (
        thread_uid, pos, created_at, tenant, kind, critical, actor, login, salt, commitment, entry, body,
        feed_xid
    ) VALUES (
        p_head.thread_uid, event_pos, written_at, p_head.tenant, p_kind, p_critical, p_actor, session_user, p_salt,
        v_commitment, v_entry, p_body::json, v_xid
    );
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the event was not stored' USING ERRCODE = 'CS010';
    END IF;
    UPDATE compaction_store.heads AS h
    SET last_pos = event_pos, last_at = written_at, head = v_entry, feed_xid = v_xid
    WHERE h.thread_uid = p_head.thread_uid;
END
$$;
