-- Returns the pos of a fork's last copy, or 0 if the thread is not a fork. The pos of a copy is greater by one than
-- that of its original, because a fork begins with its origin event.
CREATE FUNCTION compaction_store.copied_to(p_thread_uid uuid) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pos bigint;
BEGIN
    SELECT substring(e.body::text FROM '^[{]"parent":"[0-9a-f-]{36}","pos":([0-9]{1,18}),')::bigint INTO v_pos
    FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid AND e.pos = 1 AND e.kind = 'origin';
    RETURN coalesce(v_pos + 1, 0);
END
$$;
