-- Returns the entry of the copy of a message. p_entries has the entries of the part that is being copied, which begins
-- after p_pos; the entries of earlier parts are read from their rows.
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
