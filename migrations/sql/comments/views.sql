COMMENT ON VIEW compaction_store.audit_threads IS
    'Threads, for auditors. First SET compaction_store.tenant to a tenant, or SET compaction_store.all_tenants = on.';
COMMENT ON COLUMN compaction_store.audit_threads.tenant IS
    'The tenant that the thread belongs to; row-level security shows a login the rows of one tenant.';
COMMENT ON COLUMN compaction_store.audit_threads.thread_id IS
    'The name of the thread, unique within the tenant. An erased thread has erased: and its key instead.';
COMMENT ON COLUMN compaction_store.audit_threads.messages IS
    'How many messages the thread has.';
COMMENT ON COLUMN compaction_store.audit_threads.records IS
    'How many compaction records the thread has, whatever their outcome.';
COMMENT ON COLUMN compaction_store.audit_threads.entries IS
    'How many entries the thread has: messages, records and events.';
COMMENT ON COLUMN compaction_store.audit_threads.view_tokens IS
    'The number of tokens in the current view, by the counters of its messages and records; NULL with an unknown_pos.';
COMMENT ON COLUMN compaction_store.audit_threads.created_at IS
    'When the first entry was written.';
COMMENT ON COLUMN compaction_store.audit_threads.last_at IS
    'When the last entry was written.';
COMMENT ON COLUMN compaction_store.audit_threads.last_message_at IS
    'When the newest message was stored. Records and events, such as a hold or a verdict, do not change it.';
COMMENT ON COLUMN compaction_store.audit_threads.subject IS
    'Whose the thread is: a text that the application chose.';
COMMENT ON COLUMN compaction_store.audit_threads.erased IS
    'Whether the whole thread was erased.';
COMMENT ON COLUMN compaction_store.audit_threads.erased_pos IS
    'The pos of the event that erased the whole thread; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.audit_threads.hidden IS
    'Whether the thread is hidden: it was cleared with hide, and nothing has been appended since.';
COMMENT ON COLUMN compaction_store.audit_threads.held_pos IS
    'The pos of the hold that forbids erasing; NULL if the thread is not held.';
COMMENT ON COLUMN compaction_store.audit_threads.retained_until IS
    'The end of the newest retention, which may have passed; NULL if there is no retention.';
COMMENT ON COLUMN compaction_store.audit_threads.locked IS
    'Whether the newest retention is locked, so that nobody can shorten or override it; NULL if there is none.';
COMMENT ON COLUMN compaction_store.audit_threads.metadata IS
    'The metadata as jsonb; NULL if jsonb cannot represent it.';
COMMENT ON COLUMN compaction_store.audit_threads.unknown_pos IS
    'The first pos whose entry changes views and has an unknown kind: no view can be made from there on. Else NULL.';
COMMENT ON COLUMN compaction_store.audit_threads.head IS
    'The last entry of the hash chain.';
COMMENT ON COLUMN compaction_store.audit_threads.thread_uid IS
    'The key of the thread in all tables. It begins with the time of the first entry and is never used again.';
COMMENT ON VIEW compaction_store.audit_messages IS
    'Messages, for auditors, as they were appended. The tenants are chosen as in audit_threads.';
COMMENT ON COLUMN compaction_store.audit_messages.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.audit_messages.thread_id IS
    'The name of the thread, unique within the tenant. An erased thread has erased: and its key instead.';
COMMENT ON COLUMN compaction_store.audit_messages.seq IS
    'The position among the messages of the thread: 1, 2, 3 and so on, without gaps.';
COMMENT ON COLUMN compaction_store.audit_messages.role IS
    'The role in the payload, such as user or assistant.';
COMMENT ON COLUMN compaction_store.audit_messages.content IS
    'The content of the message: its text, or the JSON of its parts. As for payload, jsonb replaces some characters.';
COMMENT ON COLUMN compaction_store.audit_messages.tokens IS
    'The tokens of the message, by the counter.';
COMMENT ON COLUMN compaction_store.audit_messages.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.audit_messages.login IS
    'The database login that wrote the message, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.audit_messages.created_at IS
    'When the message was stored.';
COMMENT ON COLUMN compaction_store.audit_messages.redacted IS
    'Whether the content was erased.';
COMMENT ON COLUMN compaction_store.audit_messages.redacted_pos IS
    'The pos of the event that erased the content; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.audit_messages.payload IS
    'The message as jsonb, with U+FFFD for NUL and lone surrogates; NULL if erased or not representable.';
COMMENT ON COLUMN compaction_store.audit_messages.meta IS
    'The meta as jsonb, like payload.';
COMMENT ON COLUMN compaction_store.audit_messages.receipt IS
    'The receipt as jsonb: the view that a reply was written from, and hashes of what was sent.';
COMMENT ON COLUMN compaction_store.audit_messages.counter IS
    'The name of the counter that counted the tokens.';
COMMENT ON COLUMN compaction_store.audit_messages.key IS
    'The idempotency key of the call; NULL on all but the first message of a call.';
COMMENT ON COLUMN compaction_store.audit_messages.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.audit_messages.stored_payload IS
    'The message as JSON, byte for byte as it was sent; NULL once the content was erased.';
COMMENT ON COLUMN compaction_store.audit_messages.thread_uid IS
    'The key of the thread.';
COMMENT ON VIEW compaction_store.audit_compactions IS
    'Compaction records, for auditors, each with its current status. The tenants are chosen as in audit_threads.';
COMMENT ON COLUMN compaction_store.audit_compactions.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.audit_compactions.thread_id IS
    'The name of the thread, unique within the tenant. An erased thread has erased: and its key instead.';
COMMENT ON COLUMN compaction_store.audit_compactions.number IS
    'The position among the records of the thread: 1, 2, 3 and so on, without gaps.';
COMMENT ON COLUMN compaction_store.audit_compactions.status IS
    'active, superseded, revoked, redacted or unknown for an applied record; the outcome for any other record.';
COMMENT ON COLUMN compaction_store.audit_compactions.superseded_by IS
    'The number of the innermost later record in force whose span includes the span of this record, or NULL. A revoked record and a revocation have none.';
COMMENT ON COLUMN compaction_store.audit_compactions.revoked_by IS
    'The number of the revocation that undid this record; NULL if there is none.';
COMMENT ON COLUMN compaction_store.audit_compactions.kind IS
    'What the record does, for example summary, truncation, removal or revocation.';
COMMENT ON COLUMN compaction_store.audit_compactions.outcome IS
    'The result of the attempt: applied, rejected or failed; observed if a provider compacted by itself.';
COMMENT ON COLUMN compaction_store.audit_compactions.start_seq IS
    'The first seq of the span; NULL for an attempt without a span.';
COMMENT ON COLUMN compaction_store.audit_compactions.end_seq IS
    'The last seq of the span.';
COMMENT ON COLUMN compaction_store.audit_compactions.summary_text IS
    'The summary, as the summarizer wrote it, with U+FFFD for NUL and lone surrogates.';
COMMENT ON COLUMN compaction_store.audit_compactions.reason IS
    'The reason that the callback or the caller gave.';
COMMENT ON COLUMN compaction_store.audit_compactions.error_type IS
    'For a failed or rejected attempt, the type of the error.';
COMMENT ON COLUMN compaction_store.audit_compactions.error_text IS
    'For a failed or rejected attempt, the text of the error.';
COMMENT ON COLUMN compaction_store.audit_compactions.tokens_before IS
    'The tokens of the span in the view before the compaction.';
COMMENT ON COLUMN compaction_store.audit_compactions.tokens_after IS
    'The tokens of the replacement of the span.';
COMMENT ON COLUMN compaction_store.audit_compactions.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.audit_compactions.login IS
    'The database login that wrote the record, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.audit_compactions.authority IS
    'The policy, approval or ticket that permits it, as the caller stated it.';
COMMENT ON COLUMN compaction_store.audit_compactions.model IS
    'The model that wrote the summary.';
COMMENT ON COLUMN compaction_store.audit_compactions.summarizer IS
    'The name of the summarizer that wrote the text or failed.';
COMMENT ON COLUMN compaction_store.audit_compactions.settings IS
    'The parameters that the summary was made with, such as max_tokens.';
COMMENT ON COLUMN compaction_store.audit_compactions.prompt IS
    'The instructions that were sent to the model.';
COMMENT ON COLUMN compaction_store.audit_compactions.usage IS
    'The tokens that the requests of the summarizer used.';
COMMENT ON COLUMN compaction_store.audit_compactions.duration IS
    'How long the summarizer took, in seconds.';
COMMENT ON COLUMN compaction_store.audit_compactions.checks IS
    'The outcome of the checks of the summary.';
COMMENT ON COLUMN compaction_store.audit_compactions.callback IS
    'The callback or strategy that planned the compaction.';
COMMENT ON COLUMN compaction_store.audit_compactions.trigger IS
    'The reason for the run, such as budget or manual.';
COMMENT ON COLUMN compaction_store.audit_compactions.counter IS
    'The name of the counter that counted the tokens.';
COMMENT ON COLUMN compaction_store.audit_compactions.source_count IS
    'The number of messages in the span.';
COMMENT ON COLUMN compaction_store.audit_compactions.inputs IS
    'The numbers of the earlier records that this record was made from; 0 means any earlier record.';
COMMENT ON COLUMN compaction_store.audit_compactions.revokes IS
    'For a revocation, the number of the record that it undoes.';
COMMENT ON COLUMN compaction_store.audit_compactions.run_id IS
    'The run that wrote the record; the records of a run are written together.';
COMMENT ON COLUMN compaction_store.audit_compactions.created_at IS
    'When the record was written.';
COMMENT ON COLUMN compaction_store.audit_compactions.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.audit_compactions.redacted IS
    'Whether the body was erased.';
COMMENT ON COLUMN compaction_store.audit_compactions.redacted_pos IS
    'The pos of the event that erased the body; NULL if it was not erased.';
COMMENT ON COLUMN compaction_store.audit_compactions.body IS
    'The body as jsonb, with U+FFFD for NUL and lone surrogates; NULL if erased or not representable.';
COMMENT ON COLUMN compaction_store.audit_compactions.stored_body IS
    'JSON with the summary, its settings, prompt, usage, reason, authority and error; NULL once it was erased.';
COMMENT ON COLUMN compaction_store.audit_compactions.thread_uid IS
    'The key of the thread.';
COMMENT ON VIEW compaction_store.audit_events IS
    'Events, for auditors, such as erasures, holds and retentions. The tenants are chosen as in audit_threads.';
COMMENT ON COLUMN compaction_store.audit_events.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.audit_events.thread_id IS
    'The name of the thread, unique within the tenant. An erased thread has erased: and its key instead.';
COMMENT ON COLUMN compaction_store.audit_events.pos IS
    'The position among all entries of the thread.';
COMMENT ON COLUMN compaction_store.audit_events.kind IS
    'What happened, for example redaction, refusal, hold, release or retention.';
COMMENT ON COLUMN compaction_store.audit_events.critical IS
    'Whether the event changes what a view is, so that a reader that does not know its kind must refuse the view.';
COMMENT ON COLUMN compaction_store.audit_events.actor IS
    'The actor that the caller named.';
COMMENT ON COLUMN compaction_store.audit_events.login IS
    'The database login that wrote the event, which the caller cannot choose.';
COMMENT ON COLUMN compaction_store.audit_events.created_at IS
    'When the event was written.';
COMMENT ON COLUMN compaction_store.audit_events.reason IS
    'The reason that the caller gave.';
COMMENT ON COLUMN compaction_store.audit_events.authority IS
    'The policy, approval or ticket that permits it, as the caller stated it.';
COMMENT ON COLUMN compaction_store.audit_events.seqs IS
    'For an erasure, the ranges of seqs, each a pair of the first and the last seq.';
COMMENT ON COLUMN compaction_store.audit_events.records IS
    'For an erasure, the ranges of the numbers of records.';
COMMENT ON COLUMN compaction_store.audit_events.retained_until IS
    'For a retention, its end.';
COMMENT ON COLUMN compaction_store.audit_events.overrides IS
    'For an erasure, the pos of each hold and retention that it overrode, after "rule" if it overrode the term of the tenant''s rule; NULL if there was none.';
COMMENT ON COLUMN compaction_store.audit_events.shortens IS
    'For a retention, the pos of the retention in force that it shortened; NULL if there was none.';
COMMENT ON COLUMN compaction_store.audit_events.body IS
    'The body as jsonb, with U+FFFD for NUL and lone surrogates; NULL if jsonb cannot represent it.';
COMMENT ON COLUMN compaction_store.audit_events.stored_body IS
    'JSON with the reason, the authority, and the seqs and records that were erased.';
COMMENT ON COLUMN compaction_store.audit_events.thread_uid IS
    'The key of the thread.';
