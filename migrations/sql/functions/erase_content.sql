-- Erases the content of messages and records, after writing the redaction event. The body of the event lists their seqs
-- and numbers, followed by p_body. The caller has locked the head.
CREATE FUNCTION compaction_store.erase_content(
    p_head compaction_store.heads, p_actor text, p_salt bytea, p_body text, p_seqs int8multirange,
    p_numbers int8multirange
) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_uid uuid := p_head.thread_uid;
    v_pos bigint;
    v_first bigint;
    v_end bigint;
    v_count bigint;
    v_missing bigint;
    v_starts bigint[];
    v_ends bigint[];
    v_signs integer[];
    v_folded bigint;
    v_change bigint;
BEGIN
    SELECT w.event_pos INTO v_pos FROM compaction_store.write_event(
        p_head, 'redaction', true, p_actor, p_salt,
        format(
            '{"seqs":%s,"records":%s,%s', compaction_store.ranges(p_seqs), compaction_store.ranges(p_numbers),
            substring(p_body FROM 2)
        )
    ) AS w;
    SELECT array_agg(a.start_seq), array_agg(a.end_seq), sum(a.tokens_after) INTO v_starts, v_ends, v_folded
    FROM compaction_store.active(v_uid, p_head.last_pos, p_head.last_number) AS a WHERE a.number <@ p_numbers;

    SELECT sum(upper(r) - lower(r)) INTO v_missing
    FROM (SELECT unnest(p_seqs) UNION ALL SELECT unnest(p_numbers)) AS e (r);
    -- Erase one range at a time, so that any plan is a range scan of the primary key. The bounds are variables, because
    -- lower() is not leakproof: under the policy, a comparison with lower() could not use the index and would scan the
    -- whole thread.
    FOR v_first, v_end IN SELECT lower(r), upper(r) FROM unnest(p_seqs) AS r LOOP
        UPDATE compaction_store.messages AS m SET payload = NULL, meta = NULL, salt = NULL, redacted_pos = v_pos
        WHERE m.thread_uid = v_uid AND m.seq >= v_first AND m.seq < v_end;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_missing := v_missing - v_count;
    END LOOP;
    FOR v_first, v_end IN SELECT lower(r), upper(r) FROM unnest(p_numbers) AS r LOOP
        UPDATE compaction_store.compactions AS c SET body = NULL, salt = NULL, redacted_pos = v_pos
        WHERE c.thread_uid = v_uid AND c.number >= v_first AND c.number < v_end;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_missing := v_missing - v_count;
    END LOOP;
    IF v_missing <> 0 THEN
        RAISE EXCEPTION 'the content was not erased' USING ERRCODE = 'CS010';
    END IF;

    IF v_starts IS NULL THEN
        RETURN v_pos;
    END IF;
    -- The view now shows the messages in the spans of the erased records, except where a record inside a span has
    -- become active. A negative sign subtracts the messages of such records.
    WITH gone AS (
        SELECT g.first, g.last FROM unnest(v_starts, v_ends) AS g (first, last)
    ),
    inside AS (
        SELECT a.start_seq AS first, a.end_seq AS last, a.tokens_after
        FROM compaction_store.active(v_uid, v_pos, p_head.last_number) AS a
        JOIN gone AS g ON a.start_seq >= g.first AND a.end_seq <= g.last
    ),
    spans AS (
        SELECT g.first, g.last, 1 AS sign, 0 AS tokens FROM gone AS g
        UNION ALL SELECT i.first, i.last, -1, i.tokens_after FROM inside AS i
    )
    SELECT array_agg(s.first), array_agg(s.last), array_agg(s.sign), sum(s.tokens) - v_folded
    INTO v_starts, v_ends, v_signs, v_change
    FROM spans AS s;
    SELECT v_change + coalesce(sum(s.sign * m.tokens), 0) INTO v_change
    FROM unnest(v_starts, v_ends, v_signs) AS s (first, last, sign)
    CROSS JOIN LATERAL (
        SELECT sum(g.tokens) AS tokens FROM compaction_store.messages AS g
        WHERE g.thread_uid = v_uid AND g.seq BETWEEN s.first AND s.last
    ) AS m;
    UPDATE compaction_store.heads AS h
    SET view_tokens = h.view_tokens + v_change, stalled_tokens = NULL
    WHERE h.thread_uid = v_uid;
    RETURN v_pos;
END
$$;
