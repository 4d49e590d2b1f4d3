-- Erases a whole thread: every message, every record, the metadata and the name with its salt. A stub remains, named
-- after its thread_uid. The stub still verifies, because the commitment to the name stays. The name is free for a new
-- thread. If the thread is erased already, nothing is written to it, and event_pos is NULL unless the call is a retry
-- of the one that erased the thread. Copies in forks that an earlier call left alone are still erased then. p_dry_run,
-- p_reaches and forks have the same meaning as for redact. In a fork, only the copies are erased.
-- With p_before, the thread is erased only if its last message is older and nothing forbids the erasure. If it is kept,
-- refusal is the reason, a word from kept_by, and no event is written. The event of the erasure has p_before.
CREATE FUNCTION compaction_store.erase(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_actor text, p_salt bytea, p_body text, p_insist boolean,
    p_dry_run boolean DEFAULT false, p_reaches boolean DEFAULT true,
    p_before timestamptz DEFAULT NULL::timestamp with time zone, OUT event_pos bigint, OUT seqs int8multirange, OUT
    numbers int8multirange, OUT forks json, OUT refused_by bigint, OUT refusal text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_body text;
    v_name text;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.refuse_override(p_insist);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    -- Lock turns before the head, as an append in a turn does. On a cluster, the client calls end_turns instead.
    IF p_dry_run IS FALSE AND NOT compaction_store.is_distributed() THEN
        SELECT t.thread_id INTO v_name FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
        PERFORM FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = v_name FOR UPDATE;
    END IF;
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF v_head.is_log THEN
        PERFORM compaction_store.refuse_in_log();
    END IF;
    IF v_head.erased_pos IS NOT NULL THEN
        forks := compaction_store.redact_forks(
            p_thread_uid, int8multirange(int8range(1, v_head.last_seq, '[]')), p_actor, p_salt, p_body, p_insist,
            p_reaches, p_dry_run
        );
        SELECT r.event_pos, r.seqs, r.numbers INTO event_pos, seqs, numbers
        FROM compaction_store.redacted_by(p_thread_uid, v_head.last_pos, p_salt) AS r;
        RETURN;
    END IF;
    IF p_before IS NOT NULL THEN
        refusal := compaction_store.kept_by(v_head, p_before);
        IF refusal IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    SELECT r.* INTO forks, refused_by, refusal FROM compaction_store.redact_forks_unless_held(
        v_head, NULL, true, p_actor, p_salt, p_body, p_insist, p_reaches, p_dry_run
    ) AS r;
    IF refused_by IS NOT NULL THEN
        RETURN;
    END IF;
    v_body := compaction_store.redaction_body(
        p_body, compaction_store.in_hold(p_thread_uid, v_head.last_pos), forks, p_reaches IS FALSE
    );
    SELECT coalesce(range_agg(int8range(m.seq, m.seq, '[]')), '{}') INTO seqs
    FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.seq <= v_head.last_seq
        AND m.redacted_pos IS NULL;
    SELECT coalesce(range_agg(int8range(c.number, c.number, '[]')), '{}') INTO numbers
    FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid AND c.number <= v_head.last_number
        AND c.redacted_pos IS NULL;
    IF p_dry_run IS NOT FALSE THEN
        RETURN;
    END IF;
    event_pos := compaction_store.erase_content(
        v_head, p_actor, p_salt,
        format(
            '{"whole":%s,%s%s', true::text,
            '"before":"' || to_char(p_before AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '",',
            substring(v_body FROM 2)
        ),
        seqs, numbers
    );
    UPDATE compaction_store.threads AS t SET thread_id = 'erased:' || t.thread_uid, salt = NULL, metadata = '{}'
    WHERE t.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the name was not erased' USING ERRCODE = 'CS010';
    END IF;
    IF v_name IS NOT NULL THEN
        DELETE FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = v_name;
    END IF;
    UPDATE compaction_store.heads AS h
    SET erased_pos = event_pos, subject = NULL, hidden_seq = NULL, stalled_tokens = NULL, lease_run = NULL,
        lease_since = NULL, lease_until = NULL, lease_actor = NULL
    WHERE h.thread_uid = p_thread_uid;
END
$$;
