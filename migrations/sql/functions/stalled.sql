-- The newest records as long as every one of them is an attempt that came to nothing and nothing else happened between
-- or since: newest first. What was rejected for making no progress is among them; the body says so.
CREATE FUNCTION compaction_store.stalled(p_thread_uid uuid, p_tenant text, p_limit integer)
RETURNS TABLE (callback text, start_seq bigint, end_seq bigint, body text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    -- Before a callback is run in vain.
    PERFORM compaction_store.refuse_erased(h.erased_pos) FROM compaction_store.heads AS h
    WHERE h.thread_uid = p_thread_uid;
    RETURN QUERY
        SELECT c.callback, c.start_seq, c.end_seq, c.body::text
        FROM compaction_store.heads AS h
        CROSS JOIN LATERAL (
            SELECT * FROM compaction_store.compactions AS n
            WHERE n.thread_uid = p_thread_uid AND n.number <= h.last_number ORDER BY n.number DESC LIMIT p_limit
        ) AS c
        WHERE h.thread_uid = p_thread_uid AND c.outcome = 'rejected'
            -- No message, event or applied record has a later pos: the pos after it are as many as the attempts.
            AND h.last_pos - c.pos = h.last_number - c.number
            AND NOT EXISTS (
                SELECT FROM compaction_store.compactions AS d
                WHERE d.thread_uid = c.thread_uid AND d.number > c.number AND d.number <= h.last_number
                    AND d.outcome IN ('applied', 'observed')
            )
        ORDER BY c.number DESC;
END
$$;
