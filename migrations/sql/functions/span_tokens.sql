-- Returns the number of tokens that a span takes in the view at a pos, in its active records and the messages between
-- them.
CREATE FUNCTION compaction_store.span_tokens(
    p_thread_uid uuid, p_at bigint, p_last_number bigint, p_start bigint, p_end bigint
)
RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_starts bigint[];
    v_ends bigint[];
    v_folded bigint;
    v_raw bigint;
BEGIN
    SELECT array_agg(a.start_seq), array_agg(a.end_seq), coalesce(sum(a.tokens_after), 0)
    INTO v_starts, v_ends, v_folded
    FROM compaction_store.active(p_thread_uid, p_at, p_last_number) AS a
    WHERE a.start_seq >= p_start AND a.end_seq <= p_end;
    -- Gap i lies between the end of record i - 1 and the start of record i. Most gaps are empty.
    SELECT coalesce(sum(m.tokens), 0) INTO v_raw
    FROM unnest(array_prepend(p_start - 1, v_ends), array_append(v_starts, p_end + 1)) AS gap (low, high)
    CROSS JOIN LATERAL (
        SELECT sum(g.tokens) AS tokens FROM compaction_store.messages AS g
        WHERE g.thread_uid = p_thread_uid AND g.seq > gap.low AND g.seq < gap.high
    ) AS m
    WHERE gap.high - gap.low > 1;
    RETURN v_folded + v_raw;
END
$$;
