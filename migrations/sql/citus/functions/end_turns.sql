-- Locks the turns on a thread that the same transaction erases, and removes them if p_deletes is true. This function
-- exists only on a cluster, where turns are on the node of the name; on a single server, erase does this itself.
CREATE OR REPLACE FUNCTION compaction_store.end_turns(p_tenant text, p_thread_id text, p_deletes boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF p_deletes THEN
        DELETE FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
        PERFORM compaction_store.refuse_moved(
            get_shard_id_for_distribution_column('compaction_store.turns', p_thread_id)
        );
    ELSE
        PERFORM FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id FOR UPDATE;
    END IF;
END
$$;
