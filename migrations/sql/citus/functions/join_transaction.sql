-- Makes Citus treat the transaction as one that writes on the node of a thread, so that it commits in two phases on
-- this node too. The client calls this function before a query that calls erase or fork, because Citus does not notice
-- that such a query writes. Raises an error if there is no such thread. This function exists only on a cluster, because
-- a single server has no other nodes.
CREATE OR REPLACE FUNCTION compaction_store.join_transaction(p_thread_uid uuid, p_tenant text, p_thread_id text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
END
$$;
