-- The newest reply, among the last messages, whose receipt names a view and which says what its request took; and what
-- that view took by the figures stored here. Neither the payload nor the meta is parsed: either may hold what json refuses
-- to take apart. Both are compact JSON, so that inside a string the quotes looked for would stand escaped.
CREATE OR REPLACE FUNCTION compaction_store.reported(p_thread_uid uuid, p_tenant text, p_among integer)
RETURNS TABLE (seq bigint, view_tokens bigint, payload text, meta text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A new table has no statistics: without them the planner would sort a whole thread to find its end.
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_last bigint;
    v_last_number bigint;
    v_pos bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT h.last_seq, h.last_number INTO v_last, v_last_number
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    SELECT m.seq, substring(m.receipt FROM '^[{]"pos":([0-9]{1,18})[,}]')::bigint,
        CASE WHEN strpos(m.payload::text, '"usage":{') > 0 THEN m.payload::text END,
        CASE WHEN strpos(m.meta::text, '"usage":{') > 0 THEN m.meta::text END
    INTO seq, v_pos, payload, meta
    FROM compaction_store.messages AS m
    WHERE m.thread_uid = p_thread_uid AND m.seq > v_last - p_among AND m.seq <= v_last AND m.receipt IS NOT NULL
        AND substring(m.receipt FROM '^[{]"pos":([0-9]{1,18})[,}]')::bigint BETWEEN 1 AND m.pos - 1
        AND (strpos(m.payload::text, '"usage":{') > 0 OR strpos(m.meta::text, '"usage":{') > 0)
    ORDER BY m.seq DESC
    LIMIT 1;
    IF FOUND THEN
        view_tokens := compaction_store.span_tokens(
            p_thread_uid, v_pos, v_last_number, 1, compaction_store.seq_at(p_thread_uid, v_pos)
        );
        RETURN NEXT;
    END IF;
END
$$;
