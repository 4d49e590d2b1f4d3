-- Returns the number of the last record at a pos, or 0 before the first record. The function bisects the primary key,
-- since number and pos grow together. For a query with a condition on pos, the planner would, without statistics, scan
-- any index that begins with thread_uid.
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
