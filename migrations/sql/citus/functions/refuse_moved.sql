-- Raises an error if a shard is not on this node. A write in a function waits while its shard is moved, and then goes to
-- another node. If the transaction of the client commits in two phases, Citus would not include that node. The caller
-- must have written to the shard, so that it cannot be moved before the transaction ends. This function exists only on
-- a cluster, because a single server has no shards.
CREATE OR REPLACE FUNCTION compaction_store.refuse_moved(p_shard_id bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_dist_placement AS p JOIN pg_dist_local_group AS g ON g.groupid = p.groupid
        WHERE p.shardid = p_shard_id
    ) THEN
        RAISE EXCEPTION 'the shard was moved to another node during the call' USING ERRCODE = '40001';
    END IF;
END
$$;
