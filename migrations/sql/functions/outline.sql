-- Returns a view at a pos without its messages: a row for each active record, in order, and a first row with no number.
-- Like view, but it also works for a hidden thread.
CREATE FUNCTION compaction_store.outline(p_thread_uid uuid, p_tenant text, p_thread_id text, p_at bigint)
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
        tokens := compaction_store.span_tokens(p_thread_uid, at_pos, v_last_number, 1, last_seq);
    END IF;
    PERFORM compaction_store.refuse_unknown(p_thread_uid, at_pos, v_last_number);
    RETURN NEXT;
    FOR number, start_seq, end_seq IN
        SELECT a.number, a.start_seq, a.end_seq FROM compaction_store.active(p_thread_uid, at_pos, v_last_number) AS a
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
