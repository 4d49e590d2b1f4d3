-- Returns how often the entry at a pos was copied: 0 if it was written in this thread, 1 if it was copied from the
-- parent, 2 if it came from the parent of the parent, and so on. Each fork puts its own origin event before the copies,
-- so the pos of an entry is greater by this number than in the thread where it was written.
CREATE FUNCTION compaction_store.times_copied(p_thread_uid uuid, p_pos bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_times bigint := 0;
    v_until bigint;
BEGIN
    LOOP
        SELECT substring(e.body::text FROM '^[{]"parent":"[0-9a-f-]{36}","pos":([0-9]{1,18}),')::bigint INTO v_until
        FROM compaction_store.events AS e
        WHERE e.thread_uid = p_thread_uid AND e.pos = v_times + 1 AND e.kind = 'origin';
        IF p_pos <= v_times + 1 OR (p_pos <= v_until + v_times + 1) IS NOT TRUE THEN
            RETURN v_times;
        END IF;
        v_times := v_times + 1;
    END LOOP;
END
$$;
