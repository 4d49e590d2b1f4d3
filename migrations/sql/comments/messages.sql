COMMENT ON TABLE compaction_store.messages IS
    'One row for each message. Messages are only added; an erasure removes the content.';
COMMENT ON COLUMN compaction_store.messages.thread_uid IS
    'The key of the thread.';
COMMENT ON COLUMN compaction_store.messages.seq IS
    'The position among the messages of the thread: 1, 2, 3 and so on, without gaps.';
COMMENT ON COLUMN compaction_store.messages.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.messages.created_at IS
    'When the message was stored.';
COMMENT ON COLUMN compaction_store.messages.redacted_pos IS
    'The pos of the event that erased the content; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.messages.tokens IS
    'The tokens of the message, by the counter.';
COMMENT ON COLUMN compaction_store.messages.call_size IS
    'How many messages the call appended; set on the first of several.';
COMMENT ON COLUMN compaction_store.messages.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.messages.role IS
    'The role in the payload, such as user or assistant.';
COMMENT ON COLUMN compaction_store.messages.counter IS
    'The name of the counter that counted the tokens.';
COMMENT ON COLUMN compaction_store.messages.key IS
    'The idempotency key of the call; NULL on all but the first message of a call.';
COMMENT ON COLUMN compaction_store.messages.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.messages.login IS
    'The database login that wrote the message, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.messages.salt IS
    'Random bytes in the commitment; NULL once the content was erased.';
COMMENT ON COLUMN compaction_store.messages.commitment IS
    'The salted hash of the payload. It stays when the content is erased.';
COMMENT ON COLUMN compaction_store.messages.entry IS
    'The hash of this entry, which includes the entry before it.';
COMMENT ON COLUMN compaction_store.messages.meta_commitment IS
    'The salted hash of the meta; NULL if there is none.';
COMMENT ON COLUMN compaction_store.messages.receipt IS
    'JSON with the pos of the view that a reply was written from, and hashes of what was sent.';
COMMENT ON COLUMN compaction_store.messages.meta IS
    'A JSON object that the caller stored with the message; NULL once the content was erased.';
COMMENT ON COLUMN compaction_store.messages.payload IS
    'The message as JSON, byte for byte as it was sent; NULL once the content was erased.';
COMMENT ON COLUMN compaction_store.messages.feed_xid IS
    'The place in the feed: the number of the transaction that wrote the entry, or that of an earlier entry if greater.';
