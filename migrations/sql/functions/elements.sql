-- Returns elements of a view by the seqs of their messages and the numbers of their records, in any order. Unlike view,
-- it also works for a hidden thread. Every row has the thread_uid, by which the client reads the next elements, because
-- the name may belong to another thread by then.
CREATE FUNCTION compaction_store.elements(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_seqs bigint[], p_numbers bigint[]
)
RETURNS TABLE (
    seq bigint, end_seq bigint, number bigint, pos bigint, payload text, tokens bigint, created_at timestamptz,
    kind text, callback text, thread_uid uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Without table statistics, the planner would read a whole thread.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_last_seq bigint;
    v_last_number bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_seq, h.last_number INTO v_last_seq, v_last_number
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    RETURN QUERY
        SELECT m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint, m.created_at, NULL::text,
            NULL::text, p_thread_uid
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq = ANY (p_seqs) AND m.seq <= v_last_seq;
    RETURN QUERY
        SELECT c.start_seq, c.end_seq, c.number, c.pos, c.body::text, c.tokens_after, c.created_at, c.kind,
            c.callback, p_thread_uid
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = ANY (p_numbers) AND c.number <= v_last_number;
END
$$;
