-- The last seq at a pos: the pos less the records up to it.
CREATE FUNCTION compaction_store.seq_at(p_thread_uid uuid, p_at bigint) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT p_at
        - compaction_store.number_at(p_thread_uid, p_at)
        - (SELECT count(*) FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid AND e.pos <= p_at)
$$;
