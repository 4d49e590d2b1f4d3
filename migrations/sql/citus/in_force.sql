-- The query of functions/in_force.sql in PL/pgSQL. The SQL form is inlined into its callers, but too late for Citus to
-- find the table. On a single server, the PL/pgSQL form makes views slower, so both are kept.
CREATE OR REPLACE FUNCTION compaction_store.in_force(p_thread_uid uuid, p_at bigint, p_last_number bigint, p_from bigint)
RETURNS TABLE (number bigint, start_seq bigint, end_seq bigint, tokens_after bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT c.number, c.start_seq, c.end_seq, c.tokens_after
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid
            AND c.start_seq >= p_from
            AND c.outcome = 'applied'
            AND c.revokes IS NULL
            AND c.pos <= p_at
            AND c.number + 0 <= p_last_number
            AND (c.redacted_pos IS NULL OR c.redacted_pos > p_at)
            AND c.number <> ALL (ARRAY(
                SELECT r.revokes
                FROM compaction_store.compactions AS r
                WHERE r.thread_uid = p_thread_uid
                    AND r.outcome = 'applied'
                    AND r.revokes IS NOT NULL
                    AND r.pos <= p_at
                    AND r.number + 0 <= p_last_number
            ));
END
$$;
