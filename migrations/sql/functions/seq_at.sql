-- Returns the last seq at a pos, which is the pos minus the number of records and events up to it.
CREATE FUNCTION compaction_store.seq_at(p_thread_uid uuid, p_at bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_events bigint;
BEGIN
    SELECT count(*) INTO v_events FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid AND e.pos <= p_at;
    RETURN p_at - compaction_store.number_at(p_thread_uid, p_at) - v_events;
END
$$;
