-- Returns whether two threads are in the same shard. Only on a cluster: without Citus there are no shards, and its
-- function get_shard_id_for_distribution_column does not exist.
CREATE OR REPLACE FUNCTION compaction_store.is_beside(p_thread_uid uuid, p_other_uid uuid) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN get_shard_id_for_distribution_column('compaction_store.heads', p_thread_uid)
        = get_shard_id_for_distribution_column('compaction_store.heads', p_other_uid);
END
$$;
