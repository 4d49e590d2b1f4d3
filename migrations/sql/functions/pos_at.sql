-- Returns the last pos that is not later than a time, or 0 before the thread's first entry. VOLATILE, because the
-- function sets the tenant, and the planner may call a STABLE function when it estimates a condition.
CREATE FUNCTION compaction_store.pos_at(p_thread_uid uuid, p_tenant text, p_thread_id text, p_moment timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_low bigint := 0;
    v_high bigint;
    v_last_number bigint;
    v_last_pos bigint;
    v_middle bigint;
    v_at timestamptz;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_seq, h.last_number, h.last_pos INTO v_high, v_last_number, v_last_pos
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    -- Bisect the primary key, which needs no index on time, because created_at never goes back in a thread.
    WHILE v_low < v_high LOOP
        v_middle := (v_low + v_high + 1) / 2;
        SELECT m.created_at INTO STRICT v_at
        FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.seq = v_middle;
        IF v_at <= p_moment THEN
            v_low := v_middle;
        ELSE
            v_high := v_middle - 1;
        END IF;
    END LOOP;
    RETURN greatest(
        coalesce((
            SELECT m.pos FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.seq = v_low
        ), 0),
        coalesce((
            SELECT max(c.pos) FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.number <= v_last_number AND c.created_at <= p_moment
        ), 0),
        coalesce((
            SELECT max(e.pos) FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos <= v_last_pos AND e.created_at <= p_moment
        ), 0)
    );
END
$$;
