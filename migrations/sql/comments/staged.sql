COMMENT ON TABLE compaction_store.staged IS
    'Rows of an import, until finish_import moves them into the other tables.';
COMMENT ON COLUMN compaction_store.staged.staged_by IS
    'The transaction that is importing the row.';
COMMENT ON COLUMN compaction_store.staged.thread_uid IS
    'The thread of the bundle.';
COMMENT ON COLUMN compaction_store.staged.type IS
    'The kind of entry that the row has: message, compaction or event.';
COMMENT ON COLUMN compaction_store.staged.ordinal IS
    'The seq of a message or the number of a record.';
COMMENT ON COLUMN compaction_store.staged.pos IS
    'As messages.pos.';
COMMENT ON COLUMN compaction_store.staged.created_at IS
    'As messages.created_at.';
COMMENT ON COLUMN compaction_store.staged.redacted_pos IS
    'As messages.redacted_pos.';
COMMENT ON COLUMN compaction_store.staged.salt IS
    'As messages.salt.';
COMMENT ON COLUMN compaction_store.staged.commitment IS
    'As messages.commitment.';
COMMENT ON COLUMN compaction_store.staged.entry IS
    'As messages.entry.';
COMMENT ON COLUMN compaction_store.staged.body IS
    'The payload of a message, or the body of a record or an event.';
COMMENT ON COLUMN compaction_store.staged.tokens IS
    'As messages.tokens.';
COMMENT ON COLUMN compaction_store.staged.call_size IS
    'As messages.call_size.';
COMMENT ON COLUMN compaction_store.staged.role IS
    'As messages.role.';
COMMENT ON COLUMN compaction_store.staged.counter IS
    'As messages.counter.';
COMMENT ON COLUMN compaction_store.staged.key IS
    'As messages.key.';
COMMENT ON COLUMN compaction_store.staged.receipt IS
    'As messages.receipt.';
COMMENT ON COLUMN compaction_store.staged.meta_commitment IS
    'As messages.meta_commitment.';
COMMENT ON COLUMN compaction_store.staged.meta IS
    'As messages.meta.';
COMMENT ON COLUMN compaction_store.staged.critical IS
    'As events.critical.';
COMMENT ON COLUMN compaction_store.staged.kind IS
    'As compactions.kind or events.kind.';
COMMENT ON COLUMN compaction_store.staged.outcome IS
    'As compactions.outcome.';
COMMENT ON COLUMN compaction_store.staged.start_seq IS
    'As compactions.start_seq.';
COMMENT ON COLUMN compaction_store.staged.end_seq IS
    'As compactions.end_seq.';
COMMENT ON COLUMN compaction_store.staged.tokens_before IS
    'As compactions.tokens_before.';
COMMENT ON COLUMN compaction_store.staged.tokens_after IS
    'As compactions.tokens_after.';
COMMENT ON COLUMN compaction_store.staged.source_count IS
    'As compactions.source_count.';
COMMENT ON COLUMN compaction_store.staged.revokes IS
    'As compactions.revokes.';
COMMENT ON COLUMN compaction_store.staged.run_id IS
    'As compactions.run_id.';
COMMENT ON COLUMN compaction_store.staged.callback IS
    'As compactions.callback.';
COMMENT ON COLUMN compaction_store.staged.trigger IS
    'As compactions.trigger.';
COMMENT ON COLUMN compaction_store.staged.actor IS
    'As compactions.actor.';
COMMENT ON COLUMN compaction_store.staged.login IS
    'As compactions.login.';
COMMENT ON COLUMN compaction_store.staged.model IS
    'As compactions.model.';
COMMENT ON COLUMN compaction_store.staged.inputs IS
    'As compactions.inputs.';
COMMENT ON COLUMN compaction_store.staged.source_before IS
    'As compactions.source_before.';
COMMENT ON COLUMN compaction_store.staged.source_end IS
    'As compactions.source_end.';
