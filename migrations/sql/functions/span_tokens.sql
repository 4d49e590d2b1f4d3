-- The tokens a span takes in the view at a pos: its active records and the messages between them, each gap by its index
-- range.
CREATE FUNCTION compaction_store.span_tokens(
    p_thread_uid uuid, p_at bigint, p_last_number bigint, p_start bigint, p_end bigint
)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    WITH inside AS MATERIALIZED (
        SELECT a.start_seq, a.end_seq, a.tokens_after
        FROM compaction_store.active(p_thread_uid, p_at, p_last_number) AS a
        WHERE a.start_seq >= p_start AND a.end_seq <= p_end
    ),
    gaps AS (
        SELECT lag(i.end_seq, 1, p_start - 1) OVER (ORDER BY i.start_seq) AS low, i.start_seq AS high
        FROM inside AS i
        UNION ALL
        SELECT coalesce(max(i.end_seq), p_start - 1), p_end + 1
        FROM inside AS i
    )
    SELECT (
        coalesce((SELECT sum(i.tokens_after) FROM inside AS i), 0)
        + coalesce((
            SELECT sum(m.tokens)
            FROM gaps AS g
            CROSS JOIN LATERAL (
                SELECT sum(m.tokens) AS tokens
                FROM compaction_store.messages AS m
                WHERE m.thread_uid = p_thread_uid AND m.seq > g.low AND m.seq < g.high
            ) AS m
        ), 0)
    )::bigint
$$;
