COMMENT ON TABLE compaction_store.threads IS
    'One row for each thread: its name, its key and its metadata.';
COMMENT ON COLUMN compaction_store.threads.thread_uid IS
    'The key of the thread in all tables. It begins with the time of the first entry, and no other thread gets it.';
COMMENT ON COLUMN compaction_store.threads.tenant IS
    'The tenant that the thread belongs to; row-level security shows a login the rows of one tenant.';
COMMENT ON COLUMN compaction_store.threads.thread_id IS
    'The name of the thread, unique within the tenant. An erased thread has erased: and its key instead.';
COMMENT ON COLUMN compaction_store.threads.salt IS
    'Random bytes in the commitment to the name; NULL once the thread was erased.';
COMMENT ON COLUMN compaction_store.threads.commitment IS
    'The salted hash of the name, with which the hash chain begins. It stays when the name is erased.';
COMMENT ON COLUMN compaction_store.threads.metadata IS
    'The JSON object that the application set for the thread. Not part of the hash chain.';
COMMENT ON COLUMN compaction_store.threads.created_at IS
    'When the first entry was written.';
