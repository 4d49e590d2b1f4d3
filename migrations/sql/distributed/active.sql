-- The active records of a thread at a pos. In force: applied, and not revoked or redacted by then. Spans in force are
-- nested or disjoint, and an outer one is always the later: so a record is active if nothing in force reaches past it.
CREATE OR REPLACE FUNCTION compaction_store.active(p_thread_uid uuid, p_at bigint)
RETURNS TABLE (number bigint, start_seq bigint, end_seq bigint, tokens_after bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT f.number, f.start_seq, f.end_seq, f.tokens_after
        FROM (
            SELECT
                c.number, c.start_seq, c.end_seq, c.tokens_after,
                max(c.end_seq) OVER (
                    ORDER BY c.start_seq, c.end_seq DESC, c.number DESC
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS covered_to
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid
                AND c.outcome = 'applied'
                AND c.revokes IS NULL
                AND c.pos <= p_at
                AND (c.redacted_pos IS NULL OR c.redacted_pos > p_at)
                AND c.number <> ALL (ARRAY(
                    SELECT r.revokes
                    FROM compaction_store.compactions AS r
                    WHERE r.thread_uid = p_thread_uid
                        AND r.outcome = 'applied'
                        AND r.revokes IS NOT NULL
                        AND r.pos <= p_at
                ))
        ) AS f
        WHERE f.covered_to IS NULL OR f.end_seq > f.covered_to
        ORDER BY f.start_seq;
END
$$;
