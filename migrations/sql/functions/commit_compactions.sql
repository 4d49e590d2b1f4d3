-- Writes the records of one run, all or none, and returns them. A repeated call with the same run_id writes nothing and
-- returns the same records. p_records is a JSON array. p_base_pos and p_base_head are the pos and the entry of the view
-- that the run was planned on. The run is refused if the thread has another entry at that pos, as after a failover or a
-- restore; if a later record touches one of its spans; or if a source of an attempt has been erased since. The login in
-- the records is always that of the session.
CREATE FUNCTION compaction_store.commit_compactions(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_base_pos bigint, p_base_head bytea, p_records text
) RETURNS TABLE (
    number bigint, pos bigint, created_at timestamptz, kind text, outcome text, start_seq bigint, end_seq bigint,
    tokens_before bigint, tokens_after bigint, source_count bigint, inputs bigint[], callback text, trigger text,
    actor text, login text, model text, counter text, revokes bigint, redacted_pos bigint, body text, entry bytea,
    thread_uid uuid
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_row compaction_store.compactions;
    v_target compaction_store.compactions;
    v_record json;
    v_body text;
    v_base bigint;
    v_change bigint;
    v_first bigint;
    v_base_seq bigint;
    v_progress boolean := false;
    v_tried boolean := false;
    v_erased boolean;
    v_from bigint;
    v_until bigint;
    v_starts bigint[];
    v_ends bigint[];
    v_tokens bigint[];
    v_touched int8multirange;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    RETURN QUERY SELECT * FROM compaction_store.run_records(p_thread_uid, p_run_id, v_head.last_number);
    IF FOUND THEN
        RETURN;
    END IF;

    PERFORM compaction_store.refuse_erased(v_head.erased_pos);
    PERFORM compaction_store.refuse_unknown(p_thread_uid, v_head.last_pos, v_head.last_number);
    v_base_seq := compaction_store.seq_at(p_thread_uid, p_base_pos);
    IF p_base_head IS NOT NULL
        AND p_base_head IS DISTINCT FROM compaction_store.entry_at(p_thread_uid, p_base_pos, v_base_seq)
    THEN
        RAISE EXCEPTION 'the thread has another entry at pos %, where the view was read', p_base_pos
            USING ERRCODE = 'CS004', DETAIL = p_base_pos::text;
    END IF;
    v_erased := EXISTS (
        SELECT FROM compaction_store.events AS e
        WHERE e.thread_uid = p_thread_uid AND e.pos > p_base_pos AND e.pos <= v_head.last_pos
            AND e.kind = 'redaction'
    );

    v_first := v_head.last_number + 1;
    v_base := compaction_store.number_at(p_thread_uid, p_base_pos);
    SELECT coalesce(range_agg(int8range(c.start_seq, c.end_seq, '[]')), '{}') INTO v_touched
    FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.number > v_base
        AND c.number <= v_head.last_number AND c.outcome = 'applied';
    FOR v_record IN SELECT r.value FROM json_array_elements(p_records::json) WITH ORDINALITY AS r (value, i) ORDER BY r.i
    LOOP
        -- Set identity, position, time and hashes here: the values of the caller are ignored.
        v_row := json_populate_record(NULL::compaction_store.compactions, v_record -> 'columns');
        v_row.thread_uid := p_thread_uid;
        v_row.tenant := p_tenant;
        v_row.run_id := p_run_id;
        v_row.number := v_head.last_number + 1;
        v_row.pos := v_head.last_pos + 1;
        v_row.created_at := greatest(clock_timestamp(), v_head.last_at);
        v_row.redacted_pos := NULL;
        v_row.login := session_user;
        -- A negative input is a record of this run: -1 is its first record, and -2 its second.
        v_row.inputs := coalesce((
            SELECT array_agg(CASE WHEN i.n BETWEEN -2147483648 AND -1 THEN v_first - 1 - i.n ELSE i.n END ORDER BY i.o)
            FROM unnest(v_row.inputs) WITH ORDINALITY AS i (n, o)
        ), '{}');
        v_row.salt := decode(v_record ->> 'salt', 'hex');
        IF (octet_length(v_row.salt) = 16) IS NOT TRUE THEN
            RAISE EXCEPTION 'a salt must have 16 bytes' USING ERRCODE = 'CS008';
        END IF;
        v_body := v_record ->> 'body';
        PERFORM compaction_store.refuse_bad_record(v_row, v_body);
        IF v_row.end_seq > v_head.last_seq THEN
            RAISE EXCEPTION 'no span %..%', v_row.start_seq, v_row.end_seq USING ERRCODE = 'CS007';
        END IF;
        IF (0 <= ALL (v_row.inputs) AND v_row.number > ALL (v_row.inputs)) IS NOT TRUE THEN
            RAISE EXCEPTION 'inputs must be numbers of earlier records' USING ERRCODE = 'CS019';
        END IF;
        v_row.body := v_body::json;
        v_row.commitment := compaction_store.commitment(v_row.salt, v_body);
        v_row.source_before := NULL;
        v_row.source_end := NULL;
        v_row.source_count := NULL;
        v_change := 0;

        -- Find the range of messages that the record may have been made from, by the rules of derived_records. A record
        -- that observe writes has in "from" the first message of its load.
        v_from := CASE
            WHEN v_row.kind = 'revocation' THEN NULL
            WHEN v_row.start_seq IS NULL OR 0 = ANY (v_row.inputs) THEN coalesce((v_record ->> 'from')::bigint, 1)
            ELSE v_row.start_seq
        END;
        v_until := CASE
            WHEN v_from = v_row.start_seq AND v_row.outcome <> 'observed' THEN v_row.end_seq ELSE v_head.last_seq
        END;
        IF v_erased AND (
            EXISTS (
                SELECT FROM compaction_store.messages AS m
                WHERE m.thread_uid = p_thread_uid AND m.seq BETWEEN v_from AND v_until
                    AND m.redacted_pos > p_base_pos
            ) OR EXISTS (
                SELECT FROM compaction_store.compactions AS c
                WHERE c.thread_uid = p_thread_uid AND c.number = ANY (v_row.inputs) AND c.redacted_pos > p_base_pos
            )
        ) THEN
            RAISE EXCEPTION 'messages or records that the compaction was made from have been erased since'
                USING ERRCODE = 'CS004', DETAIL = format('%s..%s', v_row.start_seq, v_row.end_seq);
        END IF;

        IF v_row.outcome = 'applied' AND v_row.kind = 'revocation' THEN
            SELECT c.* INTO v_target FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.number = v_row.revokes
                AND c.number <= v_head.last_number;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'no compaction %', v_row.revokes USING ERRCODE = 'CS016';
            END IF;
            IF NOT EXISTS (
                SELECT FROM compaction_store.active(p_thread_uid, v_head.last_pos, v_head.last_number) AS a
                WHERE a.number = v_row.revokes
            ) THEN
                RAISE EXCEPTION 'compaction % is not active: %', v_row.revokes, CASE
                    WHEN v_target.outcome = 'failed' THEN 'it failed'
                    WHEN v_target.outcome <> 'applied' THEN 'it was ' || v_target.outcome
                    WHEN v_target.kind = 'revocation' THEN 'a revocation is not undone'
                    WHEN EXISTS (
                        SELECT FROM compaction_store.compactions AS c
                        WHERE c.thread_uid = p_thread_uid AND c.revokes = v_row.revokes AND c.outcome = 'applied'
                            AND c.number <= v_head.last_number
                    ) THEN 'it is revoked'
                    WHEN v_target.redacted_pos IS NOT NULL THEN 'it is erased'
                    ELSE 'a later one replaced it; revoke that one first'
                END
                    USING ERRCODE = 'CS006', DETAIL = coalesce(v_row.revokes::text, 'none');
            END IF;
            v_row.start_seq := v_target.start_seq;
            v_row.end_seq := v_target.end_seq;
            v_row.tokens_before := v_target.tokens_after;
            v_row.tokens_after := v_target.tokens_before;
            -- Count the tokens again after an erasure. A rewind, a clear or a removal stays when a record inside it is
            -- erased, so its revocation shows the messages of the erased record.
            IF EXISTS (
                SELECT FROM compaction_store.events AS e
                WHERE e.thread_uid = p_thread_uid AND e.pos > v_target.pos AND e.kind = 'redaction'
            ) THEN
                v_row.tokens_after := compaction_store.span_tokens(
                    p_thread_uid, v_head.last_pos, v_target.number - 1, v_target.start_seq, v_target.end_seq
                );
            END IF;
            v_change := v_row.tokens_after - v_row.tokens_before;
            v_starts := NULL;
        ELSIF v_row.outcome = 'applied' THEN
            IF p_base_head IS NULL THEN
                RAISE EXCEPTION 'p_base_head must be given for applied records' USING ERRCODE = 'CS008';
            END IF;
            -- A rewind or a clear may separate a call from its result, so it must hide everything up to the end.
            IF (
                v_row.start_seq >= 1 AND v_row.start_seq <= v_row.end_seq AND v_row.end_seq <= v_base_seq
                AND (v_row.kind NOT IN ('rewind', 'clear') OR v_row.end_seq = v_head.last_seq)
            ) IS NOT TRUE THEN
                RAISE EXCEPTION 'no span %..%', v_row.start_seq, v_row.end_seq USING ERRCODE = 'CS007';
            END IF;
            IF v_touched && int8range(v_row.start_seq, v_row.end_seq, '[]') THEN
                RAISE EXCEPTION 'span %..% is not free', v_row.start_seq, v_row.end_seq
                    USING ERRCODE = 'CS004', DETAIL = format('%s..%s', v_row.start_seq, v_row.end_seq);
            END IF;
            -- Read the active spans once. The spans of this run are added to them.
            IF v_starts IS NULL THEN
                SELECT coalesce(array_agg(a.start_seq), '{}'), coalesce(array_agg(a.end_seq), '{}'),
                    coalesce(array_agg(a.tokens_after), '{}')
                INTO v_starts, v_ends, v_tokens
                FROM compaction_store.active(p_thread_uid, v_head.last_pos, v_head.last_number) AS a;
            END IF;
            SELECT f.starts, f.ends, f.tokens, f.tokens_before
            INTO v_starts, v_ends, v_tokens, v_row.tokens_before
            FROM compaction_store.fold(
                p_thread_uid, v_row.start_seq, v_row.end_seq, v_row.tokens_after, v_starts, v_ends, v_tokens
            ) AS f;
            v_row.source_count := v_row.end_seq - v_row.start_seq + 1;
            SELECT m.entry INTO v_row.source_before FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq = v_row.start_seq - 1;
            SELECT m.entry INTO STRICT v_row.source_end FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq = v_row.end_seq;
            v_change := v_row.tokens_after - v_row.tokens_before;
        END IF;
        -- An observed compaction of a provider is not an attempt by a callback.
        v_tried := v_tried OR v_row.outcome <> 'observed';
        v_progress := v_progress OR v_row.outcome = 'applied';

        v_row.feed_xid := greatest(v_head.feed_xid, pg_current_xact_id()::text::bigint);
        v_row.entry := compaction_store.entry(
            v_head.head, v_row.pos, v_row.number, v_row.created_at, compaction_store.compaction_header(v_row),
            v_row.commitment
        );
        INSERT INTO compaction_store.compactions (
            thread_uid, number, pos, created_at, redacted_pos, start_seq, end_seq, tokens_before,
            tokens_after, source_count, revokes, run_id, tenant, kind, outcome, callback, trigger, actor, login,
            model, counter, inputs, source_before, source_end, salt, commitment, entry, body,
            feed_xid
        ) VALUES (
            v_row.thread_uid, v_row.number, v_row.pos, v_row.created_at, v_row.redacted_pos,
            v_row.start_seq, v_row.end_seq, v_row.tokens_before, v_row.tokens_after, v_row.source_count,
            v_row.revokes, v_row.run_id, v_row.tenant, v_row.kind, v_row.outcome, v_row.callback,
            v_row.trigger, v_row.actor, v_row.login, v_row.model, v_row.counter, v_row.inputs, v_row.source_before,
            v_row.source_end, v_row.salt, v_row.commitment, v_row.entry, v_row.body, v_row.feed_xid
        );
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the record was not stored' USING ERRCODE = 'CS010';
        END IF;
        v_head.last_number := v_row.number;
        v_head.last_pos := v_row.pos;
        v_head.last_at := v_row.created_at;
        v_head.head := v_row.entry;
        v_head.feed_xid := v_row.feed_xid;
        v_head.view_tokens := v_head.view_tokens + v_change;
        IF v_row.outcome = 'applied' AND (
            (v_row.kind = 'clear' AND v_row.trigger = 'hide')
            OR (v_row.kind = 'revocation' AND v_target.kind = 'clear' AND v_target.trigger = 'hide')
        ) THEN
            v_head.hidden_seq := compaction_store.hidden_seq(p_thread_uid, v_head.last_number);
        END IF;
    END LOOP;
    -- Refuse an applied record of an unknown kind, because this release could not read the view after it.
    PERFORM compaction_store.refuse_unknown(p_thread_uid, v_head.last_pos, v_head.last_number);
    UPDATE compaction_store.heads AS h
    SET last_number = v_head.last_number, last_pos = v_head.last_pos, last_at = v_head.last_at, head = v_head.head,
        view_tokens = v_head.view_tokens, hidden_seq = v_head.hidden_seq, feed_xid = v_head.feed_xid,
        stalled_tokens = CASE
            WHEN NOT v_tried THEN h.stalled_tokens WHEN NOT v_progress THEN v_head.view_tokens
        END,
        lease_since = CASE WHEN h.lease_run IS DISTINCT FROM p_run_id THEN h.lease_since END,
        lease_until = CASE WHEN h.lease_run IS DISTINCT FROM p_run_id THEN h.lease_until END,
        lease_actor = CASE WHEN h.lease_run IS DISTINCT FROM p_run_id THEN h.lease_actor END,
        lease_run = CASE WHEN h.lease_run IS DISTINCT FROM p_run_id THEN h.lease_run END
    WHERE h.thread_uid = p_thread_uid;
    RETURN QUERY SELECT * FROM compaction_store.run_records(p_thread_uid, p_run_id, v_head.last_number);
END
$$;
