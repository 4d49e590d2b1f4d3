-- Comments on the functions that a role may call, and on alembic's version table.
COMMENT ON FUNCTION compaction_store.append IS
    'Appends one message to a thread, or returns the one that was stored with the same key before.';
COMMENT ON FUNCTION compaction_store.append_many IS
    'Appends several messages to a thread, all or none.';
COMMENT ON FUNCTION compaction_store.append_observed IS
    'Appends messages with records of compactions that a provider made by itself.';
COMMENT ON FUNCTION compaction_store.append_together IS
    'Appends for several callers in one commit, and leaves out the calls that must be repeated alone.';
COMMENT ON FUNCTION compaction_store.outline IS
    'Returns which records fold which spans in the view of a thread at a pos.';
COMMENT ON FUNCTION compaction_store.compare IS
    'Compares the views of a thread at two positions, and returns a page of their elements without the messages.';
COMMENT ON FUNCTION compaction_store.neighbours IS
    'Returns the pos of the last record up to a pos of a thread, and that of the first record after it.';
COMMENT ON FUNCTION compaction_store.elements IS
    'Returns elements of a view by the seqs of their messages and the numbers of their records.';
COMMENT ON FUNCTION compaction_store.set_metadata IS
    'Sets the metadata of a thread.';
COMMENT ON FUNCTION compaction_store.commit_compactions IS
    'Writes the records of one run of a compaction, all or none.';
COMMENT ON FUNCTION compaction_store.rewind IS
    'Ends the view of a thread at a seq, with a record that hides everything after it.';
COMMENT ON FUNCTION compaction_store.lease IS
    'Gives a run the lease of a thread: the exclusive right to compact it for some seconds.';
COMMENT ON FUNCTION compaction_store.renew_lease IS
    'Extends the lease of a run.';
COMMENT ON FUNCTION compaction_store.release IS
    'Releases the lease of a thread.';
COMMENT ON FUNCTION compaction_store.stalled IS
    'Returns the newest rejected attempts of a thread, for a worker that decides whether to try again.';
COMMENT ON FUNCTION compaction_store.record_event IS
    'Records a hold, a release or a retention.';
COMMENT ON FUNCTION compaction_store.set_subject IS
    'Sets or removes the subject of a thread, with an event.';
COMMENT ON FUNCTION compaction_store.is_locked IS
    'Returns whether a retention is locked, so that nobody can shorten or override it.';
COMMENT ON FUNCTION compaction_store.record_in_log IS
    'Records an event that concerns no single thread in the log of a tenant.';
COMMENT ON FUNCTION compaction_store.record_evaluation IS
    'Records the result of an evaluation of compactions.';
COMMENT ON FUNCTION compaction_store.record_verdict IS
    'Records the verdict of a reviewer on a compaction record.';
COMMENT ON FUNCTION compaction_store.redact IS
    'Erases the content of some messages and of every record that may repeat it.';
COMMENT ON FUNCTION compaction_store.erase IS
    'Erases all content of a thread, and its name.';
COMMENT ON FUNCTION compaction_store.fork IS
    'Makes a new thread that begins as a copy of another one, up to a pos.';
COMMENT ON FUNCTION compaction_store.feed IS
    'Returns a page of the entries of all threads of a tenant, in an order in which none can appear before another later.';
COMMENT ON FUNCTION compaction_store.take_turn IS
    'Asks for a turn on a thread, or for the place of a turn that waits.';
COMMENT ON FUNCTION compaction_store.renew_turn IS
    'Extends the lease of a turn.';
COMMENT ON FUNCTION compaction_store.leave_turn IS
    'Ends a turn or its wait.';
COMMENT ON FUNCTION compaction_store.hold_turn IS
    'Raises an error unless a turn has its thread, and locks the turn until the end of the transaction.';
COMMENT ON FUNCTION compaction_store.find_load IS
    'Finds the messages that an import stored under a key.';
COMMENT ON FUNCTION compaction_store.load IS
    'Appends one chunk of messages of an import, all or none.';
COMMENT ON FUNCTION compaction_store.load_threads IS
    'Makes several new threads, each with the first messages of its load, all or none.';
COMMENT ON FUNCTION compaction_store.observe IS
    'Records compactions that a provider made by itself, for messages that an import stored.';
COMMENT ON FUNCTION compaction_store.begin_import IS
    'Returns the pos and the head of the thread of a bundle, if it is stored already.';
COMMENT ON FUNCTION compaction_store.finish_import IS
    'Adds the rows that this transaction staged as one new thread, if their hash chain is right.';
COMMENT ON FUNCTION compaction_store.replay IS
    'Returns a page of the messages of a thread as they were appended, oldest first.';
COMMENT ON FUNCTION compaction_store.newest IS
    'Returns the newest messages of a thread as they were appended, newest first.';
COMMENT ON FUNCTION compaction_store.view IS
    'Returns what the model should see at a pos, or now: messages, and records in place of their spans.';
COMMENT ON FUNCTION compaction_store.element IS
    'Returns the element of the current view that has a seq: the message, or the record in its place.';
COMMENT ON FUNCTION compaction_store.pos_at IS
    'Returns the last pos of a thread that is not later than a time.';
COMMENT ON FUNCTION compaction_store.thread IS
    'Returns the name, counters, head and metadata of a thread.';
COMMENT ON FUNCTION compaction_store.entries IS
    'Returns a page of the entries of a thread with everything that a verifier needs.';
COMMENT ON FUNCTION compaction_store.thread_state IS
    'Returns the state of a thread for a verifier.';
COMMENT ON FUNCTION compaction_store.events IS
    'Returns a page of the events of a thread, oldest first.';
COMMENT ON FUNCTION compaction_store.reported IS
    'Finds the newest reply that reports the tokens of its request.';
COMMENT ON FUNCTION compaction_store.checkpoint_turn IS
    'Blocks other checkpoints and migrations until the end of the transaction.';
COMMENT ON FUNCTION compaction_store.tenant IS
    'Returns the tenant that compaction_store.tenant names; raises an error if it is not set.';
COMMENT ON FUNCTION compaction_store.refuse_no_tenant IS
    'Raises the error of tenant().';
COMMENT ON FUNCTION compaction_store.tenants IS
    'Returns a page of the tenants that have threads. Needs a login that is exempt from row-level security.';
COMMENT ON FUNCTION compaction_store.audit_tenants IS
    'Returns the tenants whose rows the audit views show.';
COMMENT ON FUNCTION compaction_store.superseded_by IS
    'Returns the first record in force that folded a record.';
COMMENT ON FUNCTION compaction_store.audit_json IS
    'Returns a stored JSON text as jsonb, with U+FFFD for NUL and lone surrogates; NULL if jsonb cannot represent it.';
COMMENT ON FUNCTION compaction_store.retained_until IS
    'Returns the end of a retention from the body of its event; NULL if it is not a valid time.';
COMMENT ON TABLE compaction_store.alembic_version IS
    'The version of this schema, written by migrations.';
COMMENT ON COLUMN compaction_store.alembic_version.version_num IS
    'The revision of the last migration.';
