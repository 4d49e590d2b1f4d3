"""Describes each field of every public value, for docs/reference.md.

`scripts/reference.py` fails if a field has no description. A field that means the same in all classes is in SHARED; all
other fields are under the name of their class.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction_store.models.vocabulary import EVENT_KINDS, KINDS, OUTCOMES, REPLACING_KINDS


def _one_of(words: Sequence[str]) -> str:
    marked = [f"`{word}`" for word in words]
    return f"{', '.join(marked[:-1])} or {marked[-1]}"


_MORE = "; a later release may write others."
SHARED = {
    "thread_id": "The thread's name.",
    "seq": "The position among the thread's messages, counted from 1.",
    "pos": "The position among all entries of the thread, counted from 1.",
    "number": "The position among the thread's records, counted from 1.",
    "start_seq": "The first seq of the span.",
    "end_seq": "The last seq of the span.",
    "created_at": "The time of writing, by the server's clock.",
    "head": "The entry of the thread's hash chain at its last pos.",
    "actor": "The responsible person or program, as the caller named it.",
    "login": "The database login that wrote the entry.",
    "thread_uid": "The thread's key, which no other thread ever has.",
    "authority": "The policy, approval or ticket that permits it, as the caller stated it.",
    "fault": "Why the stored JSON cannot be parsed, or None.",
    "errors": "The exceptions of callbacks and summarizers, in order.",
    "tokens_before": "The size of the span before the compaction, in tokens.",
    "tokens_after": "The size of the span's replacement, in tokens.",
    "inputs": "The numbers of the earlier records that the record was made from; 0 means any earlier record.",
    "allow": "The rules that may be broken.",
    "line": "The number of the line, if the source is a file.",
    "model": "The model that wrote the summary.",
    "is_summary": "Whether it is a summary.",
    "last_seq": "The seq of the newest message.",
    "last_number": "The number of the newest record.",
    "last_pos": "The pos of the newest entry.",
    "skipped": "How many messages could not be read.",
    "left_out": "What is not a message, such as titles: how much by type, each with the reason.",
    "unknown": "How many lines there are of each type that the importer does not know.",
    "is_recognised": "Whether any line of a session file is of a known type.",
    "bad": "The first hundred messages that could not be read.",
    "source_id": "The thread's id in the source.",
}

FIELDS: dict[str, dict[str, str]] = {
    "TokenBudget": {
        "context_window": "The model's window, in tokens.",
        "reserve_output": "Tokens reserved for the model's answer.",
        "overhead": "Tokens that are sent besides the view, such as tools and instructions.",
        "trigger": "The size above which a compaction starts: a fraction of the limit, or a number of tokens.",
        "target": "The size that a compaction aims for: a fraction of the limit, or a number of tokens.",
        "counter": "Counts a view exactly, such as an `AnthropicCounter`.",
    },
    "Summary": {
        "text": "The summary.",
        "prompt": "The instructions that were sent to the model.",
        "usage": "The number of tokens that the requests used.",
        "provider": "Data from the provider: ids and stop reasons.",
        "coverage": "Which parts of the source were split, left out or erased.",
        "duration": "How long the summarizer took, in seconds.",
        "replacement": "The messages that replace the span, if the framed text must not.",
        "settings": "The model's parameters, such as max_tokens.",
        "summarizer": "The name of the summarizer.",
        "checks": "The outcome of the checks, for the record.",
    },
    "Message": {
        "role": "The payload's role, if it has one.",
        "payload": "The message, parsed; None if it was erased.",
        "tokens": "Its size in tokens, by the store's counter.",
        "meta": "The JSON object that was given with the message.",
        "redacted": "Whether its content was erased.",
        "text": "The message as it was stored, byte for byte.",
    },
    "Element": {
        "seq": "The first seq that the element represents.",
        "end_seq": "The last seq that the element represents.",
        "pos": "The pos of the message or the record; None for a planned record.",
        "messages": "The message, or the messages that replace the span.",
        "tokens": "Its size in tokens, by the store's counter.",
        "number": "The number of the record; None for a message.",
        "kind": "The kind of the record; None for a message.",
        "callback": "The callback that planned the record.",
    },
    "View": {
        "pos": "The pos up to which the view shows the thread.",
        "elements": "The messages, and the replacements of compacted spans, in order.",
        "measured": "The best known size of the view, if it was compared with a budget.",
        "head": "The entry of the thread's hash chain at `pos`.",
    },
    "SeenView": {
        "evidence": "`proved` by the receipt, `reconstructed` without one, or `differs`.",
        "view": "The view that the reply was written from.",
        "receipt": "The reply's receipt, or None.",
        "messages": "The messages that a coding agent sent, from its session file; None for other replies.",
        "where": "What is missing or does not fit its hash, for a reply of a coding agent that is not proved.",
    },
    "Thread": {
        "metadata": "The thread's metadata.",
        "created_at": "When the first entry was written.",
        "view_tokens": "The size of the current view, by the store's counter; None if `unknown_pos` is not None.",
        "last_at": "When the newest entry was written.",
        "last_message_at": "When the newest message was stored.",
        "subject": "Whose the thread is, or None.",
        "erased_pos": "The pos of the thread's erasure, if it was erased.",
        "hidden_seq": "The last seq that `clear` hid; the thread is hidden as long as this equals `last_seq`.",
        "unknown_pos": "The pos of the first entry that changes views and has a kind that this release does not know.",
    },
    "PendingCall": {
        "seq": "The seq of the message with the call.",
        "id": "The id of the call, which its result must name.",
        "name": "The name of the tool.",
        "input": "The input: an object, or the text of the arguments if they are no JSON.",
        "call": "The call as it is stored, in the form of its API.",
    },
    "Lease": {
        "actor": "The actor of the run.",
        "since": "When the run took the lease.",
        "until": "When the lease ends unless it is renewed.",
        "run_id": "The id of the run, which its records will have.",
        "expired": "Whether the lease has ended, because the process of the run died.",
    },
    "Event": {
        "kind": _one_of(EVENT_KINDS) + _MORE,
        "critical": "Whether the event changes how views are computed.",
        "body": "The event's data, such as the reason and the authority.",
    },
    "Compaction": {
        "kind": _one_of(KINDS) + _MORE,
        "outcome": _one_of(OUTCOMES) + _MORE,
        "source_count": "How many messages the span has.",
        "run_id": "The id of the run that wrote the record.",
        "callback": "The name of the callback.",
        "trigger": "Why the record was written: over `budget`, `forced`, `manual` (no budget), `too long` for the"
        " model, `repair`, for a `rewind`, or to `hide` the thread;"
        " `abandoned` if another run recorded that this run wrote nothing before its lease expired.",
        "counter": "The name of the counter behind the token counts.",
        "revokes": "For a revocation, the number of the revoked record.",
        "redacted_pos": "The pos of the redaction that erased the body.",
        "superseded_by": "The number of the later record whose span contains the span of this record. None for a"
        " revoked record and for a revocation.",
        "revoked_by": "The number of the revocation that undid this record.",
        "unknown_pos": "The thread's `unknown_pos`; if it is set, it is unknown which records are active.",
        "body": "The summary, replacement, prompt, reason, authority, error and provider's data; None if erased.",
    },
    "FittedView": {
        "pos": "The pos up to which the view shows the thread.",
        "elements": "The messages, and the replacements of compacted spans, in order.",
        "measured": "The best known size of the view, if it was compared with a budget.",
        "head": "The entry of the thread's hash chain at `pos`.",
        "run": "The run that compacted the view, or None if the view was within the trigger.",
    },
    "CompactionRun": {
        "records": "The records that the run wrote, whatever their outcome.",
        "reason": "Why the run compacted something, or why not.",
        "view": "The view after the run.",
    },
    "CompactionPlan": {
        "attempts": "The records that `compact` would write.",
        "reason": "Why `compact` would compact something, or why not.",
        "before": "The view now.",
        "after": "The view if the plan were committed.",
    },
    "Explanation": {
        "message": "The message.",
        "records": "Every record that ever covered the message, oldest first.",
        "element": "The element of the current view that represents the message.",
        "receipt": "The reply's receipt, or None.",
        "same_tools": "Whether the given tools are those of the request, by the receipt's hash; None if unknown.",
        "same_system": "Whether the given system prompt is that of the request; None if unknown.",
        "redaction": "The event that erased the message, or None.",
        "origin": "The thread and the pos where a copied message was first appended.",
    },
    "Redaction": {
        "thread_id": "The thread's name now; after `erase`, the name of its stub.",
        "pos": "The pos of the event; None if nothing was left to erase.",
        "seqs": "The seqs of erased messages.",
        "forks": "An object for each fork that has copies of the messages.",
        "records": "The numbers of erased records.",
    },
    "Report": {
        "level": "The level that was verified.",
        "entries": "How many entries were checked.",
        "redacted": "How many messages and records are erased.",
        "findings": "The problems that were found.",
        "head": "The entry at `pos`.",
        "redactions": "How many events erased something.",
        "notes": "Remarks, for example on parts that could not be checked.",
        "withheld": "How many entries of a bundle have no content, although they are not erased.",
        "pos": "The last pos that was checked.",
        "since": "The pos from which this verification continued, or 0.",
        "covered": "The pos up to which a checkpoint confirms the thread.",
        "thread_uid": "The thread's thread_uid; `audit.verify()` accepts it as `after=`.",
    },
    "ThreadMessage": {
        "payload": "The message as it was appended; None if it is erased.",
        "tokens": "The message's size, if costs are to be counted.",
        "at": "When the message was appended, if seconds are to be counted.",
        "is_summary": "Whether the message is an earlier summary.",
        "planted": "The sentences that were inserted into the message, and what a summary must keep of each.",
    },
    "Fold": {
        "also": "Other messages that the model was sent with the replacement.",
        "record": "The number of the compaction.",
        "replacement": "The messages that replace the span in the view.",
        "is_summary": "Whether the replacement is a summary; only a summary can have invented or stale facts.",
        "sources": "The first and the last seq that the summarizer was given; None if they are those of the span.",
    },
    "Probe": {
        "type": "The question, such as `needed_later`; `PROBE_TYPES` has all questions.",
        "kind": "The kind of fact, such as `path`, `identifier`, `number` or `quotation`.",
        "kept": "The answer: false for a lost fact, and for one that a summary should not have.",
        "record": "The number of the compaction.",
        "place": "The place of the fact: in a message of the span, or in the summary.",
        "text": "The name, quotation or sentence; masked if it may be a credential.",
        "again": "The place where the fact was needed, called for again or replaced.",
        "detail": "More information, such as where the fact was kept.",
        "is_secret": "Whether the text looks like a credential.",
        "tokens": "The size of the result of a repeated call.",
        "seconds": "How long a repeated call took.",
    },
    "Place": {
        "field": "The path in the message's JSON, such as `content[1].text`, or `summary_text`.",
        "start": "The index of the first character.",
        "end": "The index after the last character.",
        "seq": "The seq of the message; None for a summary.",
        "record": "The number of the compaction with the summary; None for a message.",
    },
    "Finding": {
        "pos": "The pos of the entry; None if the finding concerns the whole thread.",
        "what": "The problem, in a sentence.",
        "records": "The numbers of compactions that cover the message.",
    },
    "ToLoad": {
        "message": "The message: a dict or an SDK's object.",
        "meta": "The message's meta.",
        "tokens": "The message's size in tokens; by default it is counted.",
    },
    "Observed": {
        "what": "A name for the compaction, which the record has as `callback`.",
        "kind": "What the compaction did.",
        "summary_text": "The summary, if it can be read.",
        "provider": "The source's own data, verbatim.",
        "occurred_at": "When the compaction happened, in ISO 8601.",
        "first": "The first message of the load that the compaction covers, counted from 1.",
        "last": "The last message that it covers; by default the message before this object.",
        "spans": "Whether the record has a span.",
    },
    "Loaded": {
        "first_seq": "The seq of the first message.",
        "last_seq": "The seq of the last message.",
        "count": "How many messages were given.",
        "added": "How many of the messages were new.",
        "observed": "How many compactions of providers were recorded.",
    },
    "ThreadLoaded": {
        "loaded": "The result, as `load` returns it; None if the thread was refused.",
        "refused": "The error, if the thread was refused.",
    },
    "Imported": {"added": "Whether the call added the thread; False if the thread existed already."},
    "RedactedFork": {
        "thread_id": "The fork's name.",
        "thread_uid": "The fork's thread_uid.",
        "pos": "The pos of the redaction in the fork; None if the copies were not erased.",
        "seqs": "The seqs of the copies.",
        "records": "The numbers of the records erased with them.",
    },
    "Expiry": {
        "thread_id": "The thread's name before the erasure.",
        "thread_uid": "The thread's thread_uid.",
        "last_message_at": "The time of the last message when the run found it; None if it is missing.",
        "kept": "Why the thread was kept: `written`, `held`, `retained` or `damaged`; None if it was erased.",
        "messages": "How many messages were erased, or would be.",
        "records": "How many records were erased, or would be.",
        "pos": "The pos of the erasure; None if nothing was erased, and in a dry run.",
    },
    "Forked": {
        "thread_id": "The new thread's name.",
        "thread_uid": "The new thread's thread_uid.",
        "parent_id": "The name of the thread that was copied.",
        "parent_uid": "The thread_uid of the thread that was copied.",
        "at": "The parent's pos up to which everything was copied.",
        "last_seq": "The seq of the last message that was copied.",
        "pos": "The last copy's pos in the new thread; the view there equals the parent's at `at`.",
        "head": "The new thread's head when it was made.",
        "event_pos": "The pos of the event in the parent.",
        "created_at": "The time of the fork.",
        "added": "Whether this call made the thread; False if an earlier call with the same key did.",
    },
    "FeedEntry": {
        "cursor": "The place after this entry, for `feed(after=…)`.",
        "type": "`message`, `compaction` or `event`.",
        "redacted": "Whether the content was erased.",
        "entry": "The entry's hash in the chain of its thread.",
        "facts": "What the entry is, without content: a message's seq, role and tokens, a record's number, kind,"
        " outcome and span, an event's kind.",
        "content": "A message's payload, or the body of a record or an event; None if not asked for, and if erased.",
        "meta": "The message's meta.",
    },
    "Origin": {
        "thread_id": "The thread where the message was first appended; None if it is not in this database.",
        "thread_uid": "The thread_uid of that thread.",
        "pos": "The message's pos in that thread.",
        "created_at": "When the message was first appended; None if that thread is not in this database.",
    },
    "Sample": {
        "records": "The records that were drawn, in the order of their hashes.",
        "population": "The number of records from which they were drawn.",
        "is_whole": "Whether the population has all records that match; if not, it has the oldest of them.",
    },
    "Figures": {
        "threads": "The number of threads, with the stubs of erased ones and without the tenant's log.",
        "erased": "How many of them are erased.",
        "messages": "The number of messages in all threads, with erased ones.",
        "records": "The number of compaction records of any kind in all threads.",
        "leased": "The number of threads that a run is compacting now, or whose run died less than a lease ago.",
        "days": "The compactions by day and outcome, oldest first. A day or outcome without any is left out.",
    },
    "DayFigures": {
        "day": "The beginning of the day in UTC.",
        "outcome": _one_of(OUTCOMES) + _MORE,
        "records": "The number of compactions.",
        "tokens_before": "The tokens of their spans.",
        "tokens_after": "The tokens of their replacements, also of those that were refused.",
    },
    "TokenStep": {
        "pos": "The pos of the record, or of the last message of the range.",
        "change": "The change of the view in tokens; None if the record does not have it.",
        "number": "The number of the record; None for messages.",
    },
    "Outline": {
        "pos": "The pos of the view.",
        "tokens": "The size of the view, in tokens.",
        "parts": "The parts of the view, in order.",
    },
    "Part": {
        "seq": "The first seq.",
        "end_seq": "The last seq.",
        "number": "The number of the record that replaces these messages; None for a part of messages.",
    },
    "Comparison": {
        "pos": "The pos of the first view.",
        "tokens": "The size of the view, in tokens; None if it was compared with another view.",
        "count": "The number of elements on all pages.",
        "changed": "The number of elements that are in only one of the views.",
        "parts": "The parts on this page, in order.",
    },
    "ComparedPart": {
        "part": "The part.",
        "is_left": "Whether the part is in the first view.",
        "is_right": "Whether the part is in the second view.",
    },
    "StateLine": {
        "text": "The line, without its seqs.",
        "seqs": "The seqs of the messages that it comes from.",
    },
    "Verdict": {
        "number": "The number of the record that was judged.",
        "verdict": "`good`, `bad` or `unsure`.",
        "note": "The reviewer's note.",
        "sample": "The sample that the record was drawn for.",
    },
    "Span": {},
    "Attempt": {
        "callback": "The name of the callback.",
        "kind": f"{_one_of(REPLACING_KINDS)}.",
        "outcome": "`applied`, `rejected` or `failed`.",
        "replacement": "The messages that replace the span.",
        "summary": "The Summary that the summarizer returned.",
        "reason": "The callback's reason.",
        "error": "Why the attempt was rejected or failed.",
    },
    "CompactionTree": {
        "record": "The record.",
        "inside": "The trees of the records that were active inside its span.",
    },
    "Found": {
        "kind": "Where the text is: `message`, `compaction` or `metadata`.",
        "seq": "The seq of the message.",
        "number": "The number of the record.",
        "created_at": "When the message or the record was written.",
        "excerpt": "The text around the match, with case and spaces normalized.",
    },
    "Measured": {
        "tokens": "The best known size.",
        "local": "The sum of the store's own counts.",
        "source": "Where `tokens` comes from: `local`, `calibrated` or `exact`.",
        "rate": "The number of the model's tokens for each token of the store's counter.",
        "counter": "The name of the exact counter.",
        "seq": "The seq of the reply whose reported usage was used.",
        "error": "Why there is no exact count, if an exact count was requested.",
    },
    "Checkpoint": {
        "note": "The signed text.",
        "name": "The name of the key.",
        "origin": "The name of the key, and the tenant.",
        "size": "How many threads the checkpoint covers.",
        "root": "The root of the Merkle tree over their heads.",
        "time": "The time of signing, by the signer's clock.",
        "heads": "The SHA-256 of the file of heads.",
        "previous": "The digest of the previous note, or None.",
        "key": "The public key.",
    },
    "Removal": {
        "tenant": "The tenant.",
        "threads": "How many threads it had, all of them erased now.",
        "messages": "How many messages they had.",
        "records": "How many records they had.",
        "keys": "How many keys of sealed content were destroyed.",
        "root": "The root of the Merkle tree over the heads of the threads and the tenant's log, in hexadecimal.",
        "heads": "The SHA-256 of the file of these heads.",
        "reason": "Why the tenant was removed.",
        "legal_basis": "The legal basis.",
        "authority": "On whose authority.",
        "actor": "Who removed it, as the program says.",
        "login": "The database's login.",
        "pos": "The pos of the event in the log of the database.",
        "created_at": "The time of the event, by the database's clock.",
        "note": "The signed statement; empty for a dry run.",
        "name": "The name of the key.",
        "key": "The public key.",
    },
    "Ask": {
        "summarize": "The summary, or a callable that writes it.",
        "replacement": "The messages that replace the span; empty to remove the span.",
        "reason": "A reason for the record.",
        "min_saving": "How much a summary must save: tokens, or a fraction of the span.",
        "room": "The most tokens that the framed summary may take.",
        "stated_room": "The room that the summarizer must keep to, if it is less than `room`.",
        "cut": "Whether a longer summary is cut instead of rejected.",
        "framed": "Whether the frame of the summary counts.",
        "role": "The role of the summary's message.",
        "checks": "The checks that the summary must pass.",
    },
    "Change": {
        "kind": "What happens to the span.",
        "messages": "The shortened messages.",
        "reason": "A reason for the record.",
        "text": "The text to which a summary is cut.",
    },
    "CompressResult": {
        "messages": "The compressed messages.",
        "token_count": "The size of the compressed messages in tokens.",
        "was_compacted": "Whether anything changed.",
        "error": "Why a summary failed or the target was missed, or None.",
        "original_token_count": "The size of the original messages in tokens.",
        "messages_summarized": "How many messages a summary replaces.",
        "messages_dropped": "How many messages were removed.",
        "summary_coverage": "The fraction of the old messages' tokens that summaries replace; None without a summary.",
        "summarizer_available": "Whether there was a summarizer.",
        "tail_tokens": "The original size of the recent messages in tokens.",
        "results_left_out": "How many tool results without a call were replaced by a note.",
    },
    "Measure": {
        "tokens": "The size in tokens.",
        "messages": "The number of messages.",
        "turns": "The number of messages from the user.",
        "ends_with_user": "Whether the last message is from the user.",
        "idle": "The seconds since the assistant's last message; 0 for a part of a view.",
        "limit": "The most tokens that the budget allows.",
    },
    "Carry": {
        "latest": "The tools whose newest call is kept; by default those of known agents.",
        "user_tokens": "The maximum number of tokens of the users' messages.",
        "files": "Whether files are named that calls read and wrote.",
    },
    "Node": {"level": "The level in the tree; leaves have level 1."},
    "Piece": {
        "item": "The item.",
        "source": "The original items that the item replaces, or the item itself.",
    },
    "Slid": {
        "pieces": "The pieces, in order.",
        "error": "The exception that the summarizer raised, or None.",
    },
    "Request": {
        "elements": "The elements to summarize.",
        "view": "Returns the view that the elements are part of, if it is known.",
        "budget": "The most tokens that the summary's text may take.",
        "counter": "Counts the tokens of the summary's text.",
        "repair": "The faults of a summary that is to be written again, or None.",
    },
    "Recalled": {
        "text": "The result, for the model.",
        "is_error": "Whether the model's call was invalid.",
    },
    "Counter": {
        "name": "The name that is stored with every count.",
        "function": "Counts a message, given its dict and its size in bytes.",
        "ruler": "Measures and cuts plain text.",
        "takes_long": "Returns whether a message of that many bytes must be counted in a thread.",
        "prepare": "Does slow work before the first count, such as loading ranks.",
    },
    "Bad": {
        "where": "The place of the message in the source.",
        "why": "Why the message could not be read.",
    },
    "Notes": {
        "skip_bad": "Whether messages that cannot be read are skipped.",
        "hint": "How the source could be read otherwise, or None.",
    },
    "Progress": {
        "done": "How much has been read.",
        "total": "How much there is, if it is known.",
        "unit": "`bytes`, `messages` or `threads`.",
        "thread_id": "The thread that is being imported.",
    },
    "SourceThread": {
        "items": "An iterator over messages and observed compactions, which can be read once.",
        "notes": "What was skipped.",
        "lines_of": "If this is the thread of a file's lines, the id of the session's thread in the source.",
        "metadata": "What becomes metadata of the thread, such as the title of a conversation.",
    },
    "ThreadImported": {
        "format": "The format of the source.",
        "loaded": "The result of the load, or None.",
        "refused": "The error, if the store refused the thread.",
        "hint": "How the source could be read otherwise, if it looks as if it should be, or None.",
    },
    "Distributed": {
        "now": "Whether this call distributed the tables; False if they were distributed before.",
        "nodes": "How many nodes hold shards.",
    },
}


# Descriptions of properties and methods that have no docstring, because in the code their names are enough.
MEMBERS = {
    "trigger_tokens": "The trigger in tokens.",
    "target_tokens": "The target in tokens.",
    "tokens": "Its size in tokens, by the store's counter.",
    "head": "The entry of the thread's hash chain at its pos.",
    "writer": "Returns a writer for a file of heads.",
    "generate": "Makes a new key.",
    "sign": "Signs data with Ed25519.",
    "name": "The name that records use.",
    "needs_async": "Whether it needs an `AsyncStore`.",
    "steps": "Plans on a context: yields `Ask`s, and is sent the result of each.",
    "can_repair": "Whether the summarizer can repair one of its summaries if it is given the faults.",
    "is_user": "Whether the user wrote it.",
    "is_assistant": "Whether the assistant wrote it.",
    "is_system": "Whether it is a system message.",
    "is_toolcall": "Whether it has a tool call.",
    "is_toolcall_result": "Whether it has a tool result.",
    "model": "The model's name.",
    "start_seq": "The first seq of the span.",
    "end_seq": "The last seq of the span.",
    "max_tokens": "The most tokens that the summary may take.",
    "refuse": "Counts a message that cannot be read, or raises `InvalidSource`.",
    "done": "How much has been read.",
    "threads": "Yields the threads.",
    "close": "Closes the source.",
}


def member(kind: str, name: str) -> str:
    """Returns the description of a property or method without a docstring."""
    if name not in MEMBERS:
        raise SystemExit(f"reference: {kind}.{name} must have a docstring, or a description in scripts/fields.py")
    return MEMBERS[name]


def described(kind: str, field: str) -> tuple[str, bool]:
    """Returns the description of a field of a class, and whether all classes share it. Exits if there is none."""
    own = FIELDS.get(kind, {}).get(field)
    if own is None and field not in SHARED:
        raise SystemExit(f"reference: scripts/fields.py must describe {kind}.{field}")
    return own or SHARED[field], own is None


def unused(values: dict[str, set[str]]) -> list[str]:
    """Returns the fields that are described here but no longer exist. `values` has the fields of each class."""
    own = [f"{kind}.{field}" for kind, fields in FIELDS.items() for field in fields.keys() - values.get(kind, set())]
    shared = SHARED.keys() - {field for fields in values.values() for field in fields}
    return sorted([*own, *shared])
