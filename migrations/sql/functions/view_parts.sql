-- Returns what is in a view at a pos: its last seq, its tokens, unless p_counted is false, and its active records in
-- order, as three arrays. With p_start and p_end, returns only the part of the view between these two seqs. p_start
-- must be the first seq of an element, and p_end the last seq of one.
CREATE FUNCTION compaction_store.view_parts(
    p_thread_uid uuid, p_at bigint, p_start bigint DEFAULT NULL::bigint, p_end bigint DEFAULT NULL::bigint,
    p_counted boolean DEFAULT true
)
RETURNS TABLE (
    at_pos bigint, last_seq bigint, tokens bigint, numbers bigint[], starts bigint[], ends bigint[]
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last_pos bigint;
    v_last_seq bigint;
    v_last_number bigint;
    v_tokens bigint;
    v_seqs int8multirange;
    v_now int8multirange;
BEGIN
    SELECT h.last_pos, h.last_seq, h.last_number, h.view_tokens INTO v_last_pos, v_last_seq, v_last_number, v_tokens
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    at_pos := coalesce(p_at, v_last_pos);
    last_seq := v_last_seq;
    IF at_pos < 1 OR at_pos > v_last_pos THEN
        RAISE EXCEPTION 'no pos %: the last pos is %', at_pos, v_last_pos USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
    END IF;
    IF at_pos < v_last_pos THEN
        last_seq := compaction_store.seq_at(p_thread_uid, at_pos);
        IF last_seq < 1 THEN
            RAISE EXCEPTION 'no message up to pos %', at_pos USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
        END IF;
    END IF;
    PERFORM compaction_store.refuse_unknown(p_thread_uid, at_pos, v_last_number);
    SELECT array_agg(a.number), array_agg(a.start_seq), array_agg(a.end_seq), coalesce(sum(a.tokens_after), 0)
    INTO numbers, starts, ends, tokens
    FROM compaction_store.active(p_thread_uid, at_pos, v_last_number, coalesce(p_start, 1), p_end) AS a;
    IF NOT p_counted OR (at_pos = v_last_pos AND p_start IS NULL) THEN
        tokens := CASE WHEN p_counted THEN v_tokens END;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT coalesce(range_agg(int8range(g.first, g.last, '[]')), '{}') INTO v_seqs
    FROM compaction_store.gaps(starts, ends, coalesce(p_start, 1), least(p_end, last_seq)) AS g;
    -- After an entry of an unknown kind, the current view is unknown. These conditions must be the same as in
    -- refuse_unknown.
    IF p_start IS NULL AND compaction_store.size(v_seqs) > 1000
        AND NOT EXISTS (
            SELECT FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.number + 0 <= v_last_number AND c.outcome = 'applied'
                AND c.kind NOT IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption')
        )
        AND NOT EXISTS (
            SELECT FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos <= v_last_pos AND e.critical AND e.kind NOT IN ('redaction')
        )
    THEN
        -- The tokens of the current view are known, so it is enough to read the messages in which the views differ.
        SELECT v_tokens - coalesce(sum(a.tokens_after), 0),
            int8multirange(int8range(1, v_last_seq + 1))
                - coalesce(range_agg(int8range(a.start_seq, a.end_seq, '[]')), '{}')
        INTO v_tokens, v_now
        FROM compaction_store.active(p_thread_uid, v_last_pos, v_last_number) AS a;
        IF compaction_store.size(v_seqs - v_now) + compaction_store.size(v_now - v_seqs)
            < compaction_store.size(v_seqs)
        THEN
            tokens := tokens + v_tokens + compaction_store.message_tokens(p_thread_uid, v_seqs - v_now, v_last_number)
                - compaction_store.message_tokens(p_thread_uid, v_now - v_seqs, v_last_number);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    tokens := tokens + compaction_store.message_tokens(p_thread_uid, v_seqs, v_last_number);
    RETURN NEXT;
END
$$;
