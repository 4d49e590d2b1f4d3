-- Returns a view at a pos without its messages: a row for each active record, in order, after a first row without a
-- number. With p_start and p_end, returns only the part of the view between these two seqs, at which elements of the
-- view must begin and end. Unlike view, it also works for a hidden thread.
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
    v_last_pos bigint;
    v_last_number bigint;
    v_numbers bigint[];
    v_starts bigint[];
    v_ends bigint[];
    v_folded bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_pos, h.last_seq, h.last_number, h.view_tokens INTO v_last_pos, last_seq, v_last_number, tokens
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    at_pos := coalesce(p_at, v_last_pos);
    IF at_pos < 1 OR at_pos > v_last_pos THEN
        RAISE EXCEPTION 'no pos %', at_pos USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
    END IF;
    IF at_pos < v_last_pos THEN
        last_seq := compaction_store.seq_at(p_thread_uid, at_pos);
        IF last_seq < 1 THEN
            RAISE EXCEPTION 'no message up to pos %', at_pos USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
        END IF;
    END IF;
    PERFORM compaction_store.refuse_unknown(p_thread_uid, at_pos, v_last_number);
    SELECT array_agg(a.number), array_agg(a.start_seq), array_agg(a.end_seq), coalesce(sum(a.tokens_after), 0)
    INTO v_numbers, v_starts, v_ends, v_folded
    FROM compaction_store.active(p_thread_uid, at_pos, v_last_number, coalesce(p_start, 1), p_end) AS a;
    IF at_pos < v_last_pos OR p_start IS NOT NULL THEN
        -- Count the tokens as span_tokens does. Calling it would search for the active records again.
        SELECT v_folded + coalesce(sum(m.tokens), 0) INTO tokens
        FROM unnest(
            array_prepend(coalesce(p_start, 1) - 1, v_ends), array_append(v_starts, least(p_end, last_seq) + 1)
        ) AS gap (low, high)
        CROSS JOIN LATERAL (
            SELECT sum(g.tokens) AS tokens FROM compaction_store.messages AS g
            WHERE g.thread_uid = p_thread_uid AND g.seq > gap.low AND g.seq < gap.high
        ) AS m
        WHERE gap.high - gap.low > 1;
    END IF;
    RETURN NEXT;
    RETURN QUERY
        SELECT NULL::bigint, NULL::bigint, NULL::bigint, f.number, f.start_seq, f.end_seq
        FROM unnest(v_numbers, v_starts, v_ends) AS f (number, start_seq, end_seq);
END
$$;
