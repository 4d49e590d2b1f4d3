-- Returns the row that the current view has for a seq, even in a hidden thread: the outermost record in force around
-- the seq, or the message. Returns no row if there is no such seq. The indexes on span_node find the record, as
-- tables/compactions.sql explains. "+ 0" keeps the planner from using other indexes.
CREATE FUNCTION compaction_store.element(p_thread_uid uuid, p_tenant text, p_thread_id text, p_seq bigint)
RETURNS TABLE (
    at_pos bigint, seq bigint, end_seq bigint, number bigint, pos bigint, payload text, tokens bigint,
    created_at timestamptz, kind text, callback text, head bytea, thread_uid uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Without table statistics, the planner would read a whole thread.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_last_pos bigint;
    v_last_seq bigint;
    v_last_number bigint;
    v_head bytea;
    v_number bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_pos, h.last_seq, h.last_number, h.head INTO v_last_pos, v_last_seq, v_last_number, v_head
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    -- A thread without records and events has no entries of unknown kinds.
    IF v_last_pos > v_last_seq THEN
        PERFORM compaction_store.refuse_unknown(p_thread_uid, v_last_pos, v_last_number);
    END IF;
    IF v_last_number > 0 AND p_seq BETWEEN 1 AND v_last_seq THEN
        -- Find the outermost span around the seq at each node. Of these, the latest record has the outermost span.
        SELECT max(CASE
            WHEN n.node > p_seq THEN (
                SELECT c.number
                FROM compaction_store.compactions AS c
                WHERE c.thread_uid = p_thread_uid AND c.span_node = n.node AND c.outcome = 'applied'
                    AND c.revokes IS NULL AND c.redacted_pos IS NULL AND c.number + 0 <= v_last_number
                    AND c.start_seq <= p_seq
                    AND NOT EXISTS (
                        SELECT FROM compaction_store.compactions AS r
                        WHERE r.thread_uid = p_thread_uid AND r.revokes = c.number AND r.outcome = 'applied'
                            AND r.number <= v_last_number
                    )
                ORDER BY c.start_seq, c.number DESC
                LIMIT 1
            )
            ELSE (
                SELECT c.number
                FROM compaction_store.compactions AS c
                WHERE c.thread_uid = p_thread_uid AND c.span_node = n.node AND c.outcome = 'applied'
                    AND c.revokes IS NULL AND c.redacted_pos IS NULL AND c.number + 0 <= v_last_number
                    AND c.end_seq >= p_seq
                    AND NOT EXISTS (
                        SELECT FROM compaction_store.compactions AS r
                        WHERE r.thread_uid = p_thread_uid AND r.revokes = c.number AND r.outcome = 'applied'
                            AND r.number <= v_last_number
                    )
                ORDER BY c.end_seq DESC, c.number DESC
                LIMIT 1
            )
        END) INTO v_number
        FROM (
            SELECT (p_seq >> l.zeros + 1 << l.zeros + 1) | (1::bigint << l.zeros) AS node
            FROM generate_series(
                64 - strpos((p_seq & - p_seq)::bit(64)::text, '1'), 64 - strpos(v_last_seq::bit(64)::text, '1')
            ) AS l (zeros)
        ) AS n;
    END IF;
    IF v_number IS NOT NULL THEN
        RETURN QUERY
            SELECT v_last_pos, c.start_seq, c.end_seq, c.number, c.pos, c.body::text, c.tokens_after, c.created_at,
                c.kind, c.callback, v_head, p_thread_uid
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.number = v_number;
    ELSE
        RETURN QUERY
            SELECT v_last_pos, m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint, m.created_at,
                NULL::text, NULL::text, v_head, p_thread_uid
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq = p_seq AND m.seq <= v_last_seq;
    END IF;
END
$$;
