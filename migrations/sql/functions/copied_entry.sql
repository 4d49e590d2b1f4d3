-- Returns the entry that a fork's copy of a message has in the chain. copy_log copies a thread in parts: p_entries has
-- the new entries of the current part, which begins after p_pos. The copies in earlier parts have rows already, and
-- their entries are read from these rows.
CREATE FUNCTION compaction_store.copied_entry(
    p_from uuid, p_to uuid, p_seq bigint, p_pos bigint, p_entries bytea[]
) RETURNS bytea
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pos bigint;
    v_entry bytea;
BEGIN
    SELECT m.pos INTO v_pos FROM compaction_store.messages AS m WHERE m.thread_uid = p_from AND m.seq = p_seq;
    IF v_pos > p_pos THEN
        RETURN p_entries[v_pos - p_pos];
    END IF;
    SELECT m.entry INTO v_entry FROM compaction_store.messages AS m WHERE m.thread_uid = p_to AND m.seq = p_seq;
    RETURN v_entry;
END
$$;
