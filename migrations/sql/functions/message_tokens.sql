-- Returns the sum of the tokens of some messages. If a record replaced nothing but messages, its tokens_before is the
-- sum for its span, and those messages need not be read. Such a record has no span of another record inside. So no
-- other span begins in it, and no two such records share a message.
CREATE FUNCTION compaction_store.message_tokens(p_thread_uid uuid, p_seqs int8multirange, p_last_number bigint)
RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_sum bigint := 0;
    v_known int8multirange;
BEGIN
    IF p_last_number > 0 AND compaction_store.size(p_seqs) > greatest(1000, 2 * p_last_number) THEN
        SELECT coalesce(sum(s.tokens_before), 0), coalesce(range_agg(s.span), '{}') INTO v_sum, v_known
        FROM (
            SELECT int8range(c.start_seq, c.end_seq, '[]') AS span, c.tokens_before,
                lead(c.start_seq) OVER (ORDER BY c.start_seq, c.end_seq DESC, c.number DESC) <= c.end_seq AS has_inner
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.outcome = 'applied' AND c.revokes IS NULL
                AND c.number + 0 <= p_last_number
                AND c.kind IN ('summary', 'truncation', 'removal', 'rewind', 'clear', 'adoption')
        ) AS s
        WHERE s.has_inner IS NOT TRUE AND s.tokens_before IS NOT NULL AND s.span <@ p_seqs;
        p_seqs := p_seqs - v_known;
    END IF;
    -- OFFSET 0 keeps lower() and upper() out of the condition. They are not leakproof, so under the policy a condition
    -- that calls them could not use the index.
    RETURN v_sum + coalesce((
        SELECT sum(m.tokens)
        FROM (SELECT lower(r) AS first, upper(r) AS after FROM unnest(p_seqs) AS r OFFSET 0) AS span
        CROSS JOIN LATERAL (
            SELECT sum(g.tokens) AS tokens FROM compaction_store.messages AS g
            WHERE g.thread_uid = p_thread_uid AND g.seq >= span.first AND g.seq < span.after
        ) AS m
    ), 0);
END
$$;
