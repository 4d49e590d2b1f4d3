-- Removes the name of a thread that the same transaction erases. Does nothing if the name belongs to another thread.
-- This function exists only on a cluster, where a name and its thread are on different nodes; on a single server, erase
-- changes the name.
CREATE OR REPLACE FUNCTION compaction_store.unname_thread(
    p_name_uid uuid, p_tenant text, p_thread_id text, p_thread_uid uuid
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    DELETE FROM compaction_store.names AS n
    WHERE n.name_uid = p_name_uid AND n.tenant = p_tenant AND n.thread_id = p_thread_id AND n.thread_uid = p_thread_uid;
    PERFORM compaction_store.refuse_moved(get_shard_id_for_distribution_column('compaction_store.names', p_name_uid));
END
$$;
