-- Returns a page of a thread's messages after p_after and up to p_until, or up to the end, oldest first, as they were
-- appended. The first row has the thread_uid, by which the client reads the next page, because the name may belong to
-- another thread by then.
CREATE FUNCTION compaction_store.replay(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_after bigint, p_until bigint, p_limit integer
) RETURNS TABLE (
    seq bigint, pos bigint, role text, payload text, tokens integer, created_at timestamptz, meta text,
    redacted_pos bigint, actor text, login text, thread_uid uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Force the index: without table statistics, the planner would read and sort a whole thread to return a few rows.
SET enable_seqscan = off
SET enable_bitmapscan = off
-- Use a generic plan: it fits all values, and planning takes as long as running the query.
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_last_seq bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_seq INTO v_last_seq FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    -- Compute the bound here, because a condition with COALESCE could not use the index under row-level security.
    p_until := least(p_until, v_last_seq);
    RETURN QUERY
        SELECT m.seq, m.pos, m.role, m.payload::text, m.tokens, m.created_at, m.meta::text, m.redacted_pos, m.actor,
            m.login, CASE WHEN m.seq = p_after + 1 THEN p_thread_uid END
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq > p_after AND m.seq <= p_until
        ORDER BY m.seq
        LIMIT p_limit;
END
$$;
