-- The tokens a span takes in the view at a pos: its active records and the messages between them, each gap by its index
-- range.
CREATE OR REPLACE FUNCTION compaction_store.span_tokens(
    p_thread_uid uuid, p_at bigint, p_last_number bigint, p_start bigint, p_end bigint
)
RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_span record;
    v_sum bigint;
    v_total bigint := 0;
    v_low bigint := p_start - 1;
BEGIN
    FOR v_span IN
        SELECT a.start_seq, a.end_seq, a.tokens_after FROM compaction_store.active(p_thread_uid, p_at, p_last_number) AS a
        WHERE a.start_seq >= p_start AND a.end_seq <= p_end
        UNION ALL SELECT p_end + 1, p_end + 1, 0
        ORDER BY 1
    LOOP
        SELECT coalesce(sum(m.tokens), 0) INTO v_sum FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq > v_low AND m.seq < v_span.start_seq;
        v_total := v_total + v_sum + v_span.tokens_after;
        v_low := v_span.end_seq;
    END LOOP;
    RETURN v_total;
END
$$;
