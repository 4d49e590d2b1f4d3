-- Returns the rejected attempts among the newest records of a thread, newest first, back to the last message, event, or
-- applied or observed record. Failed attempts are left out. The body of a record says whether the attempt was rejected
-- for making no progress.
CREATE FUNCTION compaction_store.stalled(p_thread_uid uuid, p_tenant text, p_thread_id text, p_limit integer)
RETURNS TABLE (callback text, start_seq bigint, end_seq bigint, body text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_last_number bigint;
    v_last_pos bigint;
    v_erased_pos bigint;
    v_after bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_number, h.last_pos, h.erased_pos INTO v_last_number, v_last_pos, v_erased_pos
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    -- Refuse an erased thread here, so that no callback runs for a thread that cannot get a record.
    PERFORM compaction_store.refuse_erased(v_erased_pos);
    SELECT max(c.number) INTO v_after FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.number > v_last_number - p_limit AND c.number <= v_last_number
        AND c.outcome IN ('applied', 'observed');
    RETURN QUERY
        SELECT c.callback, c.start_seq, c.end_seq, c.body::text
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.outcome = 'rejected'
            AND c.number > greatest(v_last_number - p_limit, v_after) AND c.number <= v_last_number
            -- No message or event comes later: from this record to the end, there are as many entries as records.
            AND v_last_pos - c.pos = v_last_number - c.number
        ORDER BY c.number DESC;
END
$$;
