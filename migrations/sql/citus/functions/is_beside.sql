-- Returns whether two threads are in the same shard. This function exists only on a cluster, because Postgres without
-- Citus has neither shards nor the function get_shard_id_for_distribution_column.
CREATE OR REPLACE FUNCTION compaction_store.is_beside(p_thread_uid uuid, p_other_uid uuid) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN get_shard_id_for_distribution_column('compaction_store.heads', p_thread_uid)
        = get_shard_id_for_distribution_column('compaction_store.heads', p_other_uid);
END
$$;
