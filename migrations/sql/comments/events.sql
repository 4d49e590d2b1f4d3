COMMENT ON TABLE compaction_store.events IS
    'One row for each event of a thread, such as an erasure, a hold, a release or a retention.';
COMMENT ON COLUMN compaction_store.events.thread_uid IS
    'The key of the thread.';
COMMENT ON COLUMN compaction_store.events.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.events.created_at IS
    'When the event was written.';
COMMENT ON COLUMN compaction_store.events.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.events.critical IS
    'Whether the event changes what a view is, so that a reader that does not know its kind must refuse the view.';
COMMENT ON COLUMN compaction_store.events.kind IS
    'What happened, for example redaction, refusal, hold, release or retention.';
COMMENT ON COLUMN compaction_store.events.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.events.login IS
    'The database login that wrote the event, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.events.salt IS
    'Random bytes in the commitment.';
COMMENT ON COLUMN compaction_store.events.commitment IS
    'The salted hash of the body.';
COMMENT ON COLUMN compaction_store.events.entry IS
    'The hash of this entry, which includes the entry before it.';
COMMENT ON COLUMN compaction_store.events.body IS
    'JSON that depends on the kind, for example the reason, the authority, and the seqs and records that were erased.';
COMMENT ON COLUMN compaction_store.events.feed_xid IS
    'The place in the feed: the number of the transaction that wrote the entry, or that of an earlier entry if greater.';
