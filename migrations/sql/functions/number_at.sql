-- Returns the last number at a pos, 0 before the first record. Numbers and pos grow together, so the primary key is
-- bisected; with a condition on pos and no statistics, the planner would scan any index that begins with the thread.
CREATE FUNCTION compaction_store.number_at(p_thread_uid uuid, p_pos bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_low bigint := 0;
    v_high bigint;
    v_middle bigint;
    v_pos bigint;
BEGIN
    SELECT h.last_number INTO v_high FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    WHILE v_low < v_high LOOP
        v_middle := (v_low + v_high + 1) / 2;
        SELECT c.pos INTO v_pos
        FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid AND c.number = v_middle;
        IF v_pos <= p_pos THEN
            v_low := v_middle;
        ELSE
            v_high := v_middle - 1;
        END IF;
    END LOOP;
    RETURN v_low;
END
$$;
