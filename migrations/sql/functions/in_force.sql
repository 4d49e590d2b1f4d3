-- Returns the records of a thread that are in force at a pos and begin at p_from or later. A record is in force if it
-- was applied, and not revoked or erased up to that pos. The spans of records in force are nested or disjoint; of two
-- nested spans, the outer one belongs to the later record. p_last_number is the last number in the head; rows with a
-- greater number are ignored, whatever their pos. "+ 0" keeps the planner from using the primary key, which lacks the
-- other columns.
CREATE FUNCTION compaction_store.in_force(p_thread_uid uuid, p_at bigint, p_last_number bigint, p_from bigint)
RETURNS TABLE (number bigint, start_seq bigint, end_seq bigint, tokens_after bigint)
LANGUAGE sql STABLE
AS $$
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
        ))
$$;
