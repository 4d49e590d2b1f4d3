-- Raises an error unless a turn has its thread, and locks the turn until the end of the transaction, so that an append
-- in the same statement is either part of the turn or not written. If the key is stored already, the append is a retry
-- that writes nothing; the turn may then be over.
CREATE FUNCTION compaction_store.hold_turn(p_tenant text, p_thread_id text, p_turn_id uuid, p_key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_thread_uid uuid;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM FROM compaction_store.turns AS t
    WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id AND t.turn_id = p_turn_id FOR NO KEY UPDATE;
    IF NOT FOUND AND compaction_store.is_distributed() THEN
        -- The thread may be on another node, so the client looks for the key there.
        RETURN false;
    ELSIF NOT FOUND THEN
        v_thread_uid := compaction_store.find_thread(p_tenant, p_thread_id);
        PERFORM FROM compaction_store.messages AS m
        JOIN compaction_store.heads AS h ON h.thread_uid = m.thread_uid AND m.seq <= h.last_seq
        WHERE m.thread_uid = v_thread_uid AND m.key = p_key;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the turn is lost' USING ERRCODE = 'CS030';
        END IF;
    END IF;
    RETURN true;
END
$$;
