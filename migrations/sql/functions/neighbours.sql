-- Returns the pos of the last record up to p_pos and that of the first record after it, if these exist. Unlike view, it
-- also works for a hidden thread.
CREATE FUNCTION compaction_store.neighbours(p_thread_uid uuid, p_tenant text, p_thread_id text, p_pos bigint)
RETURNS TABLE (pos bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_last_number bigint;
    v_number bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_number INTO v_last_number FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    v_number := compaction_store.number_at(p_thread_uid, p_pos);
    RETURN QUERY
        SELECT c.pos FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number IN (v_number, v_number + 1) AND c.number <= v_last_number;
END
$$;
