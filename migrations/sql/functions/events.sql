-- Returns a page of a thread's events after a pos. p_kinds selects some kinds; NULL selects all. With p_newest_first,
-- the events are those before p_after, newest first; 0 means the end of the thread.
CREATE FUNCTION compaction_store.events(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kinds text[], p_after bigint, p_newest_first boolean,
    p_limit integer
)
RETURNS TABLE (
    pos bigint, kind text, critical boolean, actor text, login text, created_at timestamptz, body text, thread_uid uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_last_pos bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_pos INTO v_last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF p_newest_first THEN
        RETURN QUERY
            SELECT e.pos, e.kind, e.critical, e.actor, e.login, e.created_at, e.body::text, e.thread_uid
            FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos <= v_last_pos AND (p_after = 0 OR e.pos < p_after)
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.pos DESC LIMIT p_limit;
    ELSE
        RETURN QUERY
            SELECT e.pos, e.kind, e.critical, e.actor, e.login, e.created_at, e.body::text, e.thread_uid
            FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos > p_after AND e.pos <= v_last_pos
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.pos LIMIT p_limit;
    END IF;
END
$$;
