-- Adds a span to the active spans and removes those inside it. The active spans are given and returned in order.
-- tokens_before is the number of tokens that the span had in the view before: those of the active records inside it and
-- of the messages between them. The function bisects, because a run may add thousands of spans to a thread that has
-- thousands.
CREATE FUNCTION compaction_store.fold(
    p_thread_uid uuid, p_start bigint, p_end bigint, p_tokens bigint,
    INOUT starts bigint[], INOUT ends bigint[], INOUT tokens bigint[], OUT tokens_before bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The index of the first active span at or after the start, and of the last active span that begins in the span.
    v_first integer := width_bucket(p_start - 1, starts) + 1;
    v_last integer := width_bucket(p_end, starts);
BEGIN
    IF ends[v_first - 1] >= p_start OR (v_first <= v_last AND ends[v_last] > p_end) THEN
        RAISE EXCEPTION 'span %..% is not free', p_start, p_end
            USING ERRCODE = 'CS004', DETAIL = format('%s..%s', p_start, p_end);
    END IF;
    SELECT coalesce(sum(m.tokens), 0) INTO tokens_before
    FROM unnest(
        (p_start - 1) || ends[v_first:v_last], starts[v_first:v_last] || (p_end + 1)
    ) AS gap (low, high)
    CROSS JOIN LATERAL (
        SELECT sum(g.tokens) AS tokens FROM compaction_store.messages AS g
        WHERE g.thread_uid = p_thread_uid AND g.seq > gap.low AND g.seq < gap.high
    ) AS m;
    tokens_before := tokens_before + coalesce((SELECT sum(t) FROM unnest(tokens[v_first:v_last]) AS t), 0);
    starts := starts[1:(v_first - 1)] || p_start || starts[v_last + 1:];
    ends := ends[1:(v_first - 1)] || p_end || ends[v_last + 1:];
    tokens := tokens[1:(v_first - 1)] || p_tokens || tokens[v_last + 1:];
END
$$;
