-- Makes Citus treat the transaction as one that writes on the node of a thread, so that it commits in two phases on
-- this node too. The client calls this function before a query that calls erase or fork, because Citus does not notice
-- that such a query writes. Raises an error if there is no such thread. The thread's shard then stays on this node until
-- the transaction ends. This function exists only on a cluster, because a single server has no other nodes.
CREATE OR REPLACE FUNCTION compaction_store.join_transaction(p_thread_uid uuid, p_tenant text, p_thread_id text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    -- This changes no row, but takes the lock that a write to the shard takes. A move of the shard locks the same table
    -- first, so that it does not wait for this transaction while this transaction waits for it.
    UPDATE compaction_store.threads AS t SET thread_id = t.thread_id
    WHERE t.thread_uid = p_thread_uid AND t.thread_id = '';
    PERFORM compaction_store.refuse_moved(
        get_shard_id_for_distribution_column('compaction_store.threads', p_thread_uid)
    );
    PERFORM FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
END
$$;
