-- Finds the newest reply among the last p_among messages that has a receipt and reports the tokens of its request. Also
-- returns the size, by the store's own counts, of the view in its receipt. A copied receipt names a pos in the thread
-- where the reply was written. Payload and meta are searched as text, because json cannot read a text with \u0000. Both
-- are compact JSON, in which quotes inside strings are escaped, so a quoted name in the text is always a name.
CREATE FUNCTION compaction_store.reported(p_thread_uid uuid, p_tenant text, p_thread_id text, p_among integer)
RETURNS TABLE (seq bigint, view_tokens bigint, payload text, meta text)
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
    v_last_number bigint;
    v_pos bigint;
    v_reply_pos bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_seq, h.last_number INTO v_last_seq, v_last_number
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    SELECT r.seq, r.pos, r.view_pos, r.payload, r.meta INTO seq, v_reply_pos, v_pos, payload, meta
    FROM (
        SELECT n.seq, n.pos, substring(n.receipt FROM '^[{]"pos":([0-9]{1,18})[,}]')::bigint AS view_pos,
            CASE WHEN strpos(n.payload::text, '"usage":{') > 0 THEN n.payload::text END AS payload,
            CASE WHEN strpos(n.meta::text, '"usage":{') > 0 THEN n.meta::text END AS meta
        FROM (
            SELECT m.seq, m.pos, m.receipt, m.payload, m.meta
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq <= v_last_seq
            ORDER BY m.seq DESC
            LIMIT p_among
        ) AS n
        WHERE n.receipt IS NOT NULL
    ) AS r
    WHERE r.view_pos >= 1 AND r.view_pos < r.pos AND (r.payload IS NOT NULL OR r.meta IS NOT NULL)
    ORDER BY r.seq DESC
    LIMIT 1;
    IF FOUND THEN
        v_pos := v_pos + compaction_store.times_copied(p_thread_uid, v_reply_pos);
        view_tokens := compaction_store.span_tokens(
            p_thread_uid, v_pos, v_last_number, 1, compaction_store.seq_at(p_thread_uid, v_pos)
        );
        RETURN NEXT;
    END IF;
END
$$;
