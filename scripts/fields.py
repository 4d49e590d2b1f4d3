"""Describes each field of every public value, for docs/reference.md. `scripts/reference.py` refuses a field without
one.

A field that means the same everywhere is in SHARED; the others are under the name of their class.
"""

from __future__ import annotations

SHARED = {
    "thread_id": "The thread's name.",
    "seq": "Its position among the thread's messages, from 1.",
    "pos": "Its position among all entries of the thread, from 1.",
    "number": "Its number among the thread's records, from 1.",
    "start_seq": "The first seq of the span.",
    "end_seq": "The last seq of the span.",
    "created_at": "When it was written, by the server's clock.",
    "head": "The entry of the thread's hash chain at its last pos.",
    "actor": "The person or program that did it, as the caller named it.",
    "login": "The database login that wrote it.",
    "thread_uid": "The thread's key, which no other thread ever has.",
    "authority": "The policy, approval or ticket that allowed it, as it was stated.",
    "fault": "Why the stored JSON cannot be parsed, or None.",
    "errors": "The exceptions of callbacks and summarizers, in order.",
    "tokens_before": "The size of the span in the view before, in tokens.",
    "tokens_after": "The size of its replacement, in tokens.",
    "inputs": "The numbers of earlier records that it was made from; 0 means any before it.",
    "allow": "The rules that it overrides.",
    "line": "The number of the line, if it was read from a file.",
    "model": "The model that wrote the summary.",
    "is_summary": "Whether it is a summary.",
    "last_seq": "The seq of its newest message.",
    "last_number": "The number of its newest record.",
    "last_pos": "The pos of its newest entry.",
    "skipped": "How many messages could not be read.",
    "left_out": "How many lines are not messages, such as titles.",
    "bad": "The first hundred that could not be read.",
    "source_id": "The thread's id in the source.",
}

FIELDS: dict[str, dict[str, str]] = {
    "TokenBudget": {
        "context_window": "The model's window, in tokens.",
        "reserve_output": "Tokens reserved for the model's answer.",
        "overhead": "Tokens sent besides the view, such as tools and instructions.",
        "trigger": "Above this a compaction starts: a fraction of the limit, or a number of tokens.",
        "target": "A compaction aims for this: a fraction of the limit, or a number of tokens.",
        "counter": "Counts a view exactly, such as an `AnthropicCounter`.",
    },
    "Summary": {
        "text": "The summary.",
        "prompt": "The instructions that were sent to the model.",
        "usage": "The tokens that the requests used.",
        "provider": "Data from the provider: ids and stop reasons.",
        "coverage": "Which parts of the source were split, left out or erased.",
        "duration": "How long it took, in seconds.",
        "replacement": "The messages that replace the span, if not the framed text.",
        "settings": "The model's parameters, such as max_tokens.",
        "summarizer": "The name of the summarizer.",
        "checks": "The outcome of the checks, for the record.",
    },
    "Message": {
        "role": "The payload's role, if it has one.",
        "payload": "The message, parsed; None if it was erased.",
        "tokens": "Its size in tokens, by the store's counter.",
        "meta": "The JSON object that was given with it.",
        "redacted": "Whether its content was erased.",
        "text": "The message as it was stored, byte for byte.",
    },
    "Element": {
        "seq": "The first seq that it represents.",
        "end_seq": "The last seq that it represents.",
        "pos": "The pos of the message or the record; None while it is only planned.",
        "messages": "The message, or the messages that replace the span.",
        "tokens": "Its size in tokens, by the store's counter.",
        "number": "The number of the record; None for a message.",
        "kind": "The kind of the record; None for a message.",
        "callback": "The callback that planned the record.",
    },
    "View": {
        "pos": "The version of the thread that it shows.",
        "elements": "Messages, and what replaces compacted spans, in order.",
        "measured": "Its best known size, if it was compared with a budget.",
        "head": "The entry of the thread's hash chain at `pos`.",
    },
    "SeenView": {
        "evidence": "`proved` by the receipt, `reconstructed` without one, or `differs`.",
        "view": "The view that the reply was written from.",
        "receipt": "The reply's receipt, or None.",
    },
    "Thread": {
        "metadata": "The thread's metadata.",
        "created_at": "When its first entry was written.",
        "view_tokens": "The size of its current view, by the store's counter; None where `unknown_pos` is not.",
        "last_at": "When its newest entry was written.",
        "erased_pos": "The pos of its erasure, if it was erased.",
        "hidden_seq": "The last seq that `clear` hid; the thread is hidden as long as that is `last_seq`.",
        "unknown_pos": "The pos of the first entry that changes views and is of a kind this release does not know.",
    },
    "Event": {
        "kind": "`redaction`, `refusal`, `hold`, `release`, `retention`, `origin`, `fork`; later ones may come.",
        "critical": "Whether it changes what a view is.",
        "body": "Its data, such as the reason and the authority.",
    },
    "Compaction": {
        "kind": "`summary`, `truncation`, `removal`, `adoption`, `rewind`, `clear` or `revocation`; a later release may"
        " write others.",
        "outcome": "`applied`, `rejected`, `failed` or `observed`; a later release may write others.",
        "source_count": "How many messages the span has.",
        "run_id": "The id of the run that wrote it.",
        "callback": "The name of the callback.",
        "trigger": "Why it was written: over `budget`, `forced`, `manual` (no budget), `too long` for the model,"
        " `repair`, for a `rewind`, or to `hide` the thread;"
        " `abandoned` if another run recorded that this one wrote nothing before its lease ran out.",
        "counter": "The name of the counter behind the token counts.",
        "revokes": "The number of the record that it revokes.",
        "redacted_pos": "The pos of the redaction that erased its body.",
        "superseded_by": "The number of the later record whose span contains its span.",
        "revoked_by": "The number of the revocation.",
        "unknown_pos": "The thread's `unknown_pos`: if there is one, nobody can say which records are active.",
        "body": "Summary, replacement, prompt, reason, authority, error and provider's data; None if erased.",
    },
    "CompactionRun": {
        "records": "The records that it wrote, whatever their outcome.",
        "reason": "Why something was compacted, or why not.",
        "view": "The view afterwards.",
    },
    "CompactionPlan": {
        "attempts": "The records that it would write.",
        "reason": "Why something would be compacted, or why not.",
        "before": "The view now.",
        "after": "The view if the plan were committed.",
    },
    "Explanation": {
        "message": "The message.",
        "records": "Every record that ever covered it, oldest first.",
        "element": "The element of the current view that represents it.",
        "receipt": "The reply's receipt, or None.",
        "same_tools": "Whether the given tools are those of the request, by the receipt's hash; None if unknown.",
        "same_system": "The same for the system prompt.",
        "redaction": "The event that erased it, or None.",
        "origin": "The thread and the place where a copied message was appended.",
    },
    "Redaction": {
        "thread_id": "The thread's name now: after `erase`, that of its stub.",
        "pos": "The pos of the event; None if nothing was left to erase.",
        "seqs": "The seqs of erased messages.",
        "forks": "One for each fork that holds copies of the messages.",
        "records": "The numbers of erased records.",
    },
    "Report": {
        "level": "The deepest level that was reached.",
        "entries": "How many entries were checked.",
        "redacted": "How many messages and records are erased.",
        "findings": "The problems that were found.",
        "head": "The entry at `pos`.",
        "redactions": "How many events erased something.",
        "notes": "What could not be checked, and other remarks.",
        "withheld": "How many entries of a bundle have no content, although they are not erased.",
        "pos": "The last pos that was checked.",
        "since": "The pos from which this verification continued, or 0.",
        "covered": "The pos up to which a checkpoint confirms the thread.",
        "thread_uid": "The thread's key; `verify_all` takes it as `after=`.",
    },
    "ThreadMessage": {
        "payload": "The message as it was appended; None if it is erased.",
        "tokens": "Its size, if costs are to be counted.",
        "at": "When it was appended, if seconds are to be counted.",
        "is_summary": "Whether it is an earlier summary.",
        "planted": "The sentences that were put into it, and what a summary must keep of each.",
    },
    "Fold": {
        "record": "The number of the compaction.",
        "replacement": "The messages that replace the span in the view.",
        "is_summary": "Whether they are a summary; otherwise nothing can be invented or stale.",
        "sources": "The first and the last seq that the summarizer was shown; None for those of the span.",
    },
    "Probe": {
        "type": "The question, such as `needed_later`; `PROBE_TYPES` has all.",
        "kind": "What was asked for, such as `path`, `identifier`, `number` or `quotation`.",
        "kept": "The answer: false for a loss, and for what a summary should not have.",
        "record": "The number of the compaction.",
        "place": "Where it stands: in a message of the span, or in the summary.",
        "text": "The name, quotation or sentence; masked if it may be a credential.",
        "again": "Where it was needed, called again or replaced.",
        "detail": "More, such as where it was kept.",
        "is_secret": "Whether it has the shape of a credential.",
        "tokens": "The size of the result of a repeated call.",
        "seconds": "How long a repeated call took.",
    },
    "Place": {
        "field": "The path in the message's JSON, such as `content[1].text`, or `summary_text`.",
        "start": "The first character.",
        "end": "The character after the last.",
        "seq": "The message; None in a summary.",
        "record": "The compaction whose summary it is; None in a message.",
    },
    "Finding": {
        "pos": "The pos of the entry; None if it concerns the whole thread.",
        "what": "The problem, in a sentence.",
        "records": "The numbers of compactions that cover the message.",
    },
    "ToLoad": {
        "message": "The message: a dict or an SDK's object.",
        "meta": "Its meta.",
        "tokens": "Its size in tokens; by default it is counted.",
    },
    "Observed": {
        "what": "A name for it; the record has it as `callback`.",
        "kind": "What the compaction did.",
        "summary_text": "The summary, if it can be read.",
        "provider": "The source's own data, verbatim.",
        "occurred_at": "When it happened, in ISO 8601.",
        "first": "The first message of the load that it covers, counted from 1.",
        "last": "The last one; by default the message before it.",
        "spans": "Whether its record has a span.",
    },
    "Loaded": {
        "first_seq": "The seq of the first message.",
        "last_seq": "The seq of the last message.",
        "count": "How many messages were given.",
        "added": "How many of them were new.",
        "observed": "How many compactions of providers were recorded.",
    },
    "ThreadLoaded": {
        "loaded": "The result, as of `load`; None if the thread was refused.",
        "refused": "The error, if the thread was refused.",
    },
    "Imported": {"added": "Whether the thread is new here."},
    "RedactedFork": {
        "thread_id": "The fork's name.",
        "thread_uid": "Its key.",
        "pos": "The pos of the redaction there; None if the copies were not erased.",
        "seqs": "The seqs of the copies.",
        "records": "The numbers of the records erased with them.",
    },
    "Forked": {
        "thread_id": "The new thread's name.",
        "thread_uid": "Its key.",
        "parent_id": "The name of the thread that was copied.",
        "parent_uid": "Its key.",
        "at": "The parent's pos up to which everything was copied.",
        "last_seq": "The last message that was copied.",
        "pos": "The last copy's pos in the new thread; the view there equals the parent's at `at`.",
        "head": "The new thread's head as it was made.",
        "event_pos": "The pos of the event in the parent.",
        "created_at": "The time of the fork.",
        "added": "Whether this call made the thread; False after an earlier call with the key.",
    },
    "Origin": {
        "thread_id": "The thread where the message was appended; None if it is not in this database.",
        "thread_uid": "Its key.",
        "pos": "The message's pos there.",
        "created_at": "When it was appended; None if the thread is not here.",
    },
    "Sample": {
        "records": "Those that were drawn, in the order of their hashes.",
        "population": "From how many records they were drawn.",
        "is_whole": "Whether these are all that match; if not, they are the oldest.",
    },
    "TokenStep": {
        "pos": "The pos of the record, or of the last message of the range.",
        "change": "By how many tokens the view changed; None if the record does not say.",
        "number": "The number of the record; None for messages.",
    },
    "Outline": {
        "pos": "The pos of the view.",
        "tokens": "The size of the view, in tokens.",
        "parts": "Its parts, in order.",
    },
    "Part": {
        "seq": "The first seq.",
        "end_seq": "The last seq.",
        "number": "The number of the record that folds them; None if they are messages.",
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
        "kind": "`summary`, `truncation` or `removal`.",
        "outcome": "`applied`, `rejected` or `failed`.",
        "replacement": "The messages that replace the span.",
        "summary": "What the summarizer returned.",
        "reason": "The callback's reason.",
        "error": "Why it was rejected or failed.",
    },
    "CompactionTree": {
        "record": "The record.",
        "inside": "The trees of the records that were active inside its span.",
    },
    "Found": {
        "kind": "Where the text is.",
        "seq": "The seq of the message.",
        "number": "The number of the record.",
        "created_at": "When the message or the record was written.",
        "excerpt": "The text around the match, with case and spaces normalized.",
    },
    "Measured": {
        "tokens": "The best known size.",
        "local": "The sum of the store's own counts.",
        "source": "Where `tokens` comes from.",
        "rate": "How many of the model's tokens one of the store's is.",
        "counter": "The name of the exact counter.",
        "seq": "The reply whose usage was used.",
        "error": "Why there is no exact count, if one was wanted.",
    },
    "Checkpoint": {
        "note": "The signed text.",
        "origin": "The name of the key, and the tenant.",
        "size": "How many threads it covers.",
        "root": "The root of the Merkle tree over their heads.",
        "time": "When it was signed, by the signer's clock.",
        "heads": "The SHA-256 of the file of heads.",
        "previous": "The digest of the previous note, or None.",
        "key": "The public key.",
    },
    "Ask": {
        "summarize": "The summary, or a callable that writes it.",
        "replacement": "The messages that replace the span; empty to remove it.",
        "reason": "A reason for the record.",
        "min_saving": "How much a summary must save: tokens, or a fraction of the span.",
        "room": "The most tokens that the framed summary may take.",
        "stated_room": "The room that the summarizer is given, if that is less.",
        "cut": "Whether a longer summary is cut instead of rejected.",
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
        "token_count": "Their size in tokens.",
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
        "tokens": "Its size in tokens.",
        "messages": "How many messages it has.",
        "turns": "How many of them are the user's.",
        "ends_with_user": "Whether the user wrote the last one.",
        "limit": "The most tokens that the budget allows.",
    },
    "Node": {"level": "Its level in the tree; leaves are at 1."},
    "Piece": {
        "item": "The item.",
        "source": "The original items that it replaces, or the item itself.",
    },
    "Slid": {
        "pieces": "The pieces, in order.",
        "error": "What the summarizer raised, or None.",
    },
    "Request": {
        "elements": "The elements to summarize.",
        "view": "Returns the view that they are part of, if it is known.",
        "budget": "The most tokens that the text may take.",
        "counter": "Counts those tokens.",
        "repair": "The faults of a summary that is to be written again, or None.",
    },
    "Recalled": {
        "text": "The result, for the model.",
        "is_error": "Whether the call was wrong.",
    },
    "Counter": {
        "name": "The name that is stored with every count.",
        "function": "Counts a message, given its dict and its size in bytes.",
        "ruler": "Measures and cuts plain text.",
        "takes_long": "Whether a message of that many bytes is counted in a thread.",
        "prepare": "Does the work that the first count would wait for.",
    },
    "Bad": {
        "where": "The place in the source.",
        "why": "The reason.",
    },
    "Notes": {"skip_bad": "Whether messages that cannot be read are skipped."},
    "Progress": {
        "done": "How much has been read.",
        "total": "How much there is, if it is known.",
        "unit": "`bytes`, `messages` or `threads`.",
        "thread_id": "The thread that is being imported.",
    },
    "SourceThread": {
        "items": "Messages and observed compactions; can be read once.",
        "notes": "What was skipped.",
    },
    "ThreadImported": {
        "format": "The format of the source.",
        "loaded": "The result of the load, or None.",
        "refused": "The error, if the store refused the thread.",
    },
    "Distributed": {
        "now": "Whether this call distributed the tables; False if they were distributed before.",
        "nodes": "How many nodes hold shards.",
    },
}


# Properties and methods without a docstring, because in the code their names are enough.
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
    "can_repair": "Whether it can be given the faults of a summary that it wrote, to write it again.",
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
        raise SystemExit(f"reference: {kind}.{name} needs a docstring, or a description in scripts/fields.py")
    return MEMBERS[name]


def described(kind: str, field: str) -> str:
    """Returns the description of a field of a class, and refuses one that has none."""
    found = FIELDS.get(kind, {}).get(field) or SHARED.get(field)
    if found is None:
        raise SystemExit(f"reference: scripts/fields.py must describe {kind}.{field}")
    return found


def unused(values: dict[str, set[str]]) -> list[str]:
    """Returns descriptions of fields that no longer exist, given the fields of each class."""
    own = [f"{kind}.{field}" for kind, fields in FIELDS.items() for field in fields.keys() - values.get(kind, set())]
    shared = SHARED.keys() - {field for fields in values.values() for field in fields}
    return sorted([*own, *shared])
