COMMENT ON TABLE compaction_store.heads IS
    'One row for each thread, with the end of its hash chain and its counters.';
COMMENT ON COLUMN compaction_store.heads.thread_uid IS
    'The key of the thread.';
COMMENT ON COLUMN compaction_store.heads.last_seq IS
    'The number of messages, which is the seq of the last one.';
COMMENT ON COLUMN compaction_store.heads.last_number IS
    'The number of compaction records, which is the number of the last one.';
COMMENT ON COLUMN compaction_store.heads.last_pos IS
    'The number of entries, which is the pos of the last one: messages, records and events together.';
COMMENT ON COLUMN compaction_store.heads.view_tokens IS
    'The tokens of the current view, by the counters of its messages and records.';
COMMENT ON COLUMN compaction_store.heads.stalled_tokens IS
    'The tokens of the view at the last attempt that made no progress; NULL after progress or an erasure.';
COMMENT ON COLUMN compaction_store.heads.erased_pos IS
    'The pos of the event that erased the whole thread; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.heads.hidden_seq IS
    'The last seq that a clear hid; the thread is hidden as long as that is last_seq. NULL if no such clear is in force.';
COMMENT ON COLUMN compaction_store.heads.last_at IS
    'When the last entry was written; before the first entry, when the thread was made.';
COMMENT ON COLUMN compaction_store.heads.active_at IS
    'When the last message was written, or the thread made if it has none. Other entries do not change it.';
COMMENT ON COLUMN compaction_store.heads.active_hour IS
    'The hour of active_at in UTC, for indexes that rarely change.';
COMMENT ON COLUMN compaction_store.heads.subject IS
    'Whose the thread is: a text that the application chose. Not part of the hash chain; NULL after an erasure.';
COMMENT ON COLUMN compaction_store.heads.lease_until IS
    'The end of the lease: until then one run has the exclusive right to compact the thread.';
COMMENT ON COLUMN compaction_store.heads.lease_run IS
    'The run that has the lease.';
COMMENT ON COLUMN compaction_store.heads.is_log IS
    'Whether the thread is the log of its tenant, which has only events that concern no single thread.';
COMMENT ON COLUMN compaction_store.heads.view_tokens_coarse IS
    'The tokens of the view in units of 16,384, for an index that rarely changes.';
COMMENT ON COLUMN compaction_store.heads.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.heads.head IS
    'The last entry of the hash chain.';
COMMENT ON COLUMN compaction_store.heads.lease_since IS
    'When the run with the lease began.';
COMMENT ON COLUMN compaction_store.heads.lease_actor IS
    'The actor of the run with the lease.';
COMMENT ON COLUMN compaction_store.heads.feed_xid IS
    'The feed_xid of the last entry.';
