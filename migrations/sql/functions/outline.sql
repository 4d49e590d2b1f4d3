-- Returns a view at a pos without its messages: a row for each active record, in order, after a first row without a
-- number. With p_start and p_end, returns only the part of the view between these two seqs. p_start must be the first
-- seq of an element, and p_end the last seq of one. Unlike view, it also works for a hidden thread.
CREATE FUNCTION compaction_store.outline(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_at bigint, p_start bigint, p_end bigint
)
RETURNS TABLE (at_pos bigint, last_seq bigint, tokens bigint, number bigint, start_seq bigint, end_seq bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_view record;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT * INTO v_view FROM compaction_store.view_parts(p_thread_uid, p_at, p_start, p_end);
    RETURN QUERY SELECT v_view.at_pos, v_view.last_seq, v_view.tokens, NULL::bigint, NULL::bigint, NULL::bigint;
    RETURN QUERY
        SELECT NULL::bigint, NULL::bigint, NULL::bigint, f.number, f.start_seq, f.end_seq
        FROM unnest(v_view.numbers, v_view.starts, v_view.ends) AS f (number, start_seq, end_seq);
END
$$;
