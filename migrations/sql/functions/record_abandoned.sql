-- Records a failed attempt for the run that has the lease, because its process died or paused for longer than the
-- lease. Returns the new head. The caller has locked the head and found that the lease has expired. The record has the
-- run id and the actor of that run; its login is that of this session. Its column trigger is 'abandoned', which shows
-- what happened even after the record is redacted.
CREATE FUNCTION compaction_store.record_abandoned(p_head compaction_store.heads) RETURNS compaction_store.heads
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_row compaction_store.compactions;
    v_body text := json_build_object(
        'error', json_build_object(
            'type', 'abandoned',
            'text', 'the run wrote nothing before its lease ran out: its process died, or took too long'
        ),
        'started_at', to_char(p_head.lease_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'lease_until', to_char(p_head.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    )::text;
BEGIN
    v_row.thread_uid := p_head.thread_uid;
    v_row.tenant := p_head.tenant;
    v_row.run_id := p_head.lease_run;
    v_row.number := p_head.last_number + 1;
    v_row.pos := p_head.last_pos + 1;
    v_row.created_at := greatest(clock_timestamp(), p_head.last_at);
    v_row.kind := 'summary';
    v_row.outcome := 'failed';
    v_row.trigger := 'abandoned';
    v_row.actor := p_head.lease_actor;
    v_row.login := session_user;
    v_row.inputs := '{}';
    v_row.salt := compaction_store.new_salt();
    v_row.feed_xid := greatest(p_head.feed_xid, pg_current_xact_id()::text::bigint);
    v_row.body := v_body::json;
    v_row.commitment := compaction_store.commitment(v_row.salt, v_body);
    v_row.entry := compaction_store.entry(
        p_head.head, v_row.pos, v_row.number, v_row.created_at, compaction_store.compaction_header(v_row),
        v_row.commitment
    );
    INSERT INTO compaction_store.compactions (
        thread_uid, number, pos, created_at, run_id, tenant, kind, outcome, trigger, actor, login, inputs, salt,
        commitment, entry, body, feed_xid
    ) VALUES (
        v_row.thread_uid, v_row.number, v_row.pos, v_row.created_at, v_row.run_id, v_row.tenant, v_row.kind,
        v_row.outcome, v_row.trigger, v_row.actor, v_row.login, v_row.inputs, v_row.salt, v_row.commitment,
        v_row.entry, v_row.body, v_row.feed_xid
    );
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the record was not stored' USING ERRCODE = 'CS010';
    END IF;
    p_head.last_number := v_row.number;
    p_head.last_pos := v_row.pos;
    p_head.last_at := v_row.created_at;
    p_head.head := v_row.entry;
    p_head.feed_xid := v_row.feed_xid;
    UPDATE compaction_store.heads AS h
    SET last_number = p_head.last_number, last_pos = p_head.last_pos, last_at = p_head.last_at, head = p_head.head,
        feed_xid = p_head.feed_xid
    WHERE h.thread_uid = p_head.thread_uid;
    RETURN p_head;
END
$$;
