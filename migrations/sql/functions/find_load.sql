-- Returns the first seq and the number of the messages that were stored under a key, and the thread_uid. Returns no row
-- if there are none.
CREATE FUNCTION compaction_store.find_load(p_thread_uid uuid, p_tenant text, p_thread_id text, p_key text)
RETURNS TABLE (found_seq bigint, found_size integer, found_uid uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_last_seq bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    -- FOR UPDATE makes this transaction write. So with synchronous replication its commit waits for the standby, just
    -- as the commit of the load does.
    SELECT h.last_seq INTO v_last_seq
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    RETURN QUERY
        SELECT m.seq, coalesce(m.call_size, 1), m.thread_uid
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.key = p_key AND m.seq <= v_last_seq;
END
$$;
