-- Returns the pos and the head of a bundle's thread if it is stored already, and NULL otherwise. The client calls this
-- before it sends any rows.
CREATE FUNCTION compaction_store.begin_import(
    p_thread_uid uuid, p_tenant text, p_thread_id text, OUT found_pos bigint, OUT found_head bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.queue_up(p_thread_uid);
    -- FOR UPDATE writes the row, so that with synchronous replication the commit of this transaction waits for the
    -- standby, as that of the import does.
    SELECT h.last_pos, h.head INTO found_pos, found_head
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
END
$$;
