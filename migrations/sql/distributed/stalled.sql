-- The newest records as long as every one of them is an attempt that came to nothing and nothing else happened between
-- or since: newest first. What was rejected for making no progress is among them; the body says so.
CREATE OR REPLACE FUNCTION compaction_store.stalled(p_thread_uid uuid, p_tenant text, p_limit integer)
RETURNS TABLE (callback text, start_seq bigint, end_seq bigint, body text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_last bigint;
    v_others bigint;
    v_done bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    -- Before a callback is run in vain.
    PERFORM compaction_store.refuse_erased(h.erased_pos) FROM compaction_store.heads AS h
    WHERE h.thread_uid = p_thread_uid;
    SELECT h.last_number, h.last_pos - h.last_number INTO v_last, v_others
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    SELECT max(c.number) INTO v_done FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.number <= v_last AND c.outcome IN ('applied', 'observed');
    RETURN QUERY
        SELECT c.callback, c.start_seq, c.end_seq, c.body::text
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.outcome = 'rejected' AND c.number > v_last - p_limit AND c.number <= v_last
            AND c.number > coalesce(v_done, 0)
            -- No message, event or applied record has a later pos: the pos after it are as many as the attempts.
            AND c.pos - c.number = v_others
        ORDER BY c.number DESC;
END
$$;
