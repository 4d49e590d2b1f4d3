-- Comments on objects that only a cluster has, which comments/functions.sql therefore cannot name.
COMMENT ON TABLE compaction_store.names IS
    'One row for each thread that is not erased: its name and its key. Only a cluster has this table.';
COMMENT ON COLUMN compaction_store.names.name_uid IS
    'A hash of the tenant and the name, which decides the shard.';
COMMENT ON COLUMN compaction_store.names.tenant IS
    'The tenant of the thread.';
COMMENT ON COLUMN compaction_store.names.thread_id IS
    'The name of the thread.';
COMMENT ON COLUMN compaction_store.names.thread_uid IS
    'The key of the thread.';
COMMENT ON FUNCTION compaction_store.named_thread IS
    'Returns the key of the thread that has a name.';
COMMENT ON FUNCTION compaction_store.name_thread IS
    'Adds a name with a new key, or returns the key that the name has.';
COMMENT ON FUNCTION compaction_store.open_named_thread IS
    'Makes the thread of a key that name_thread returned in the same transaction.';
COMMENT ON FUNCTION compaction_store.claim_name IS
    'Adds a free name for a thread that the same transaction imports or forks.';
COMMENT ON FUNCTION compaction_store.stage IS
    'Stages entries of a bundle on the node that has its thread.';
COMMENT ON FUNCTION compaction_store.end_turns IS
    'Locks or removes the turns on a thread that the same transaction erases.';
COMMENT ON FUNCTION compaction_store.unname_thread IS
    'Removes the name of a thread that the same transaction erases.';
COMMENT ON FUNCTION compaction_store.join_transaction IS
    'Makes Citus treat a transaction as one that writes on the node of a thread.';
COMMENT ON FUNCTION compaction_store.new_uid_beside IS
    'Makes the key of a new thread in the same shard as another thread.';
COMMENT ON FUNCTION compaction_store.is_beside IS
    'Returns whether two threads are in the same shard.';
