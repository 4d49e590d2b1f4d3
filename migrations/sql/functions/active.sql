-- Returns the active records of a thread at a pos: those in force whose span is not inside another one in force.
-- p_last_number is the head's, as for in_force.
CREATE FUNCTION compaction_store.active(p_thread_uid uuid, p_at bigint, p_last_number bigint)
RETURNS TABLE (number bigint, start_seq bigint, end_seq bigint, tokens_after bigint)
LANGUAGE sql STABLE
AS $$
    SELECT f.number, f.start_seq, f.end_seq, f.tokens_after
    FROM (
        SELECT
            c.number, c.start_seq, c.end_seq, c.tokens_after,
            max(c.end_seq) OVER (
                ORDER BY c.start_seq, c.end_seq DESC, c.number DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS covered_to
        FROM compaction_store.in_force(p_thread_uid, p_at, p_last_number) AS c
    ) AS f
    WHERE f.covered_to IS NULL OR f.end_seq > f.covered_to
    ORDER BY f.start_seq
$$;
