COMMENT ON TABLE compaction_store.compactions IS
    'One row for each compaction record, whatever its outcome. Records are only added; an erasure removes the body.';
COMMENT ON COLUMN compaction_store.compactions.thread_uid IS
    'The key of the thread.';
COMMENT ON COLUMN compaction_store.compactions.number IS
    'The position among the records of the thread: 1, 2, 3 and so on, without gaps.';
COMMENT ON COLUMN compaction_store.compactions.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.compactions.created_at IS
    'When the record was written.';
COMMENT ON COLUMN compaction_store.compactions.redacted_pos IS
    'The pos of the event that erased the body; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.compactions.start_seq IS
    'The first seq of the span; NULL for an attempt without a span.';
COMMENT ON COLUMN compaction_store.compactions.end_seq IS
    'The last seq of the span.';
COMMENT ON COLUMN compaction_store.compactions.tokens_before IS
    'The tokens of the span in the view before the compaction.';
COMMENT ON COLUMN compaction_store.compactions.tokens_after IS
    'The tokens of the replacement of the span.';
COMMENT ON COLUMN compaction_store.compactions.source_count IS
    'The number of messages in the span; NULL if the record replaces nothing.';
COMMENT ON COLUMN compaction_store.compactions.revokes IS
    'For a revocation, the number of the record that it undoes.';
COMMENT ON COLUMN compaction_store.compactions.run_id IS
    'The run that wrote the record; the records of a run are written together.';
COMMENT ON COLUMN compaction_store.compactions.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.compactions.kind IS
    'What the record does, for example summary, truncation, removal or revocation.';
COMMENT ON COLUMN compaction_store.compactions.outcome IS
    'The result of the attempt: applied, rejected or failed; observed if a provider compacted by itself.';
COMMENT ON COLUMN compaction_store.compactions.callback IS
    'The callback or strategy that planned the compaction.';
COMMENT ON COLUMN compaction_store.compactions.trigger IS
    'The reason for the run, such as budget or manual.';
COMMENT ON COLUMN compaction_store.compactions.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.compactions.login IS
    'The database login that wrote the record, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.compactions.model IS
    'The model that wrote the summary.';
COMMENT ON COLUMN compaction_store.compactions.counter IS
    'The name of the counter that counted the tokens.';
COMMENT ON COLUMN compaction_store.compactions.inputs IS
    'The numbers of the earlier records that this record was made from; 0 means any earlier record.';
COMMENT ON COLUMN compaction_store.compactions.span_node IS
    'The seq in the span that is divisible by the highest power of two. Indexes use it to find spans around a span.';
COMMENT ON COLUMN compaction_store.compactions.source_before IS
    'The entry of the message before the span; NULL if the span begins at 1.';
COMMENT ON COLUMN compaction_store.compactions.source_end IS
    'The entry of the last message of the span.';
COMMENT ON COLUMN compaction_store.compactions.salt IS
    'Random bytes in the commitment; NULL once the body was erased.';
COMMENT ON COLUMN compaction_store.compactions.commitment IS
    'The salted hash of the body. It stays when the body is erased.';
COMMENT ON COLUMN compaction_store.compactions.entry IS
    'The hash of this entry, which includes the entry before it.';
COMMENT ON COLUMN compaction_store.compactions.body IS
    'JSON with the summary, its settings, prompt, usage, reason, authority and error; NULL once it was erased.';
COMMENT ON COLUMN compaction_store.compactions.feed_xid IS
    'The place in the feed: the number of the transaction that wrote the entry, or that of an earlier entry if greater.';
