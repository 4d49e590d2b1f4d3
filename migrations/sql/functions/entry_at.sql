-- Returns the entry of a thread's chain at a pos, or NULL if there is none. The entry at pos 0 is the genesis. A view
-- that was read at a pos is valid as long as the thread has the same entry there; after a failover or a restore, the
-- entry may differ. p_seq is the last seq at that pos, if the caller knows it. A row after the head is not an entry.
CREATE FUNCTION compaction_store.entry_at(p_thread_uid uuid, p_pos bigint, p_seq bigint DEFAULT NULL::bigint) RETURNS bytea
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seq bigint := coalesce(p_seq, compaction_store.seq_at(p_thread_uid, p_pos));
    v_last_pos bigint;
    v_last_seq bigint;
    v_entry bytea;
BEGIN
    IF p_pos = 0 THEN
        SELECT compaction_store.genesis(t.thread_uid, t.tenant, t.commitment) INTO v_entry
        FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
        RETURN v_entry;
    END IF;
    SELECT h.last_pos, h.last_seq INTO v_last_pos, v_last_seq
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF p_pos > v_last_pos THEN
        RETURN NULL;
    END IF;
    SELECT m.entry INTO v_entry FROM compaction_store.messages AS m
    WHERE m.thread_uid = p_thread_uid AND m.seq = v_seq AND m.pos = p_pos AND m.seq <= v_last_seq;
    IF v_entry IS NULL THEN
        SELECT e.entry INTO v_entry FROM compaction_store.events AS e
        WHERE e.thread_uid = p_thread_uid AND e.pos = p_pos;
    END IF;
    IF v_entry IS NULL THEN
        SELECT c.entry INTO v_entry FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = compaction_store.number_at(p_thread_uid, p_pos)
            AND c.pos = p_pos;
    END IF;
    RETURN v_entry;
END
$$;
