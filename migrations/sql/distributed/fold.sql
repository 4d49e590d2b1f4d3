-- Puts a span among the active ones, which are given in order and come back so: those inside it give way to it. What the
-- span takes in the view until then is counted: the folds inside it, and the messages in the gaps between them.
-- Bisection, because a run may bring thousands of spans to a thread that has thousands.
CREATE OR REPLACE FUNCTION compaction_store.fold(
    p_thread_uid uuid, p_start bigint, p_end bigint, p_tokens bigint,
    INOUT starts bigint[], INOUT ends bigint[], INOUT tokens bigint[], OUT tokens_before bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The first active span not before the start, and the last that begins within the span.
    v_first integer := width_bucket(p_start - 1, starts) + 1;
    v_last integer := width_bucket(p_end, starts);
    v_gap record;
    v_tokens bigint;
BEGIN
    IF ends[v_first - 1] >= p_start OR (v_first <= v_last AND ends[v_last] > p_end) THEN
        RAISE EXCEPTION 'span %..% is not free', p_start, p_end
            USING ERRCODE = 'CS004', DETAIL = format('%s..%s', p_start, p_end);
    END IF;
    tokens_before := 0;
    FOR v_gap IN
        SELECT g.low, g.high
        FROM unnest((p_start - 1) || ends[v_first:v_last], starts[v_first:v_last] || (p_end + 1)) AS g (low, high)
    LOOP
        SELECT coalesce(sum(m.tokens), 0) INTO v_tokens FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq > v_gap.low AND m.seq < v_gap.high;
        tokens_before := tokens_before + v_tokens;
    END LOOP;
    tokens_before := tokens_before + coalesce((SELECT sum(t) FROM unnest(tokens[v_first:v_last]) AS t), 0);
    starts := starts[1:(v_first - 1)] || p_start || starts[v_last + 1:];
    ends := ends[1:(v_first - 1)] || p_end || ends[v_last + 1:];
    tokens := tokens[1:(v_first - 1)] || p_tokens || tokens[v_last + 1:];
END
$$;
