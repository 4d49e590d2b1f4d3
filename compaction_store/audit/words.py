"""Puts messages and events in words, such as `call: read({"page": 7})` for a tool call."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from compaction_store.jsonable import AsDict
from compaction_store.messages.parts import PartType, body_of, walk
from compaction_store.models import Compaction, Event, Lease, Payload, Verdict
from compaction_store.models.messages import is_erased
from compaction_store.models.vocabulary import EventKind
from compaction_store.module_data import ModuleData
from compaction_store.tokens.message_text import read

_DATA = ModuleData(__file__).values
_PLACE = re.compile(r"\{(#?)([a-z ]+)\}")
_STEPS = ("call", "result")
# The roles of messages that are the results of calls.
_RESULT_ROLES = ("tool", "function")
# A call or a result whose input or text is a JSON object or list.
_JSON = re.compile(r"(call: [^(]*\(|result: |error: |)([\[{].*[\]}])(\)?)", re.DOTALL)
_LONGEST_HEAD, _MOST_PARTS = 80, 50
#: The kinds of events that say whether a thread is on hold or retained.
KEEPING: tuple[EventKind, ...] = ("hold", "release", "retention")
_Moment = Callable[[datetime], str]
#: The columns of a list of leases, after that of the thread.
LEASES: dict[str, Callable[[Lease, _Moment], str]] = {
    "actor": lambda lease, _: lease.actor or "",
    "since": lambda lease, moment: moment(lease.since),
    "until": lambda lease, moment: moment(lease.until),
    "state": lambda lease, _: "expired" if lease.expired else "running",
    "run": lambda lease, _: str(lease.run_id),
}


def said(payload: Payload | None) -> str:
    """Formats a message of any API. If it has no text, call or result, returns its JSON."""
    if payload is None or is_erased(payload):
        return "(erased)"
    content = payload.get("content")
    if isinstance(content, str) and payload.keys() <= {"role", "content"}:
        return content
    return "\n".join(text for _, text in pieces(payload) if text) or json.dumps(payload, ensure_ascii=False)


def pieces(payload: Payload) -> Iterator[tuple[str | None, str]]:
    """Yields the texts, calls and results of a message, each with its step: None for a text."""
    found = list(walk(payload))
    if found and not found[0][0] and found[0][1].step in _STEPS and "role" not in payload:
        yield found[0][1].step, _part(found[0][1], payload)
        return
    # A field with a call or a result is formatted part by part, unless the walk leaves out some of its parts.
    parts = Counter(path[0] for path, _, _ in found if path)
    steps = {path[0] for path, kind, _ in found if path and kind.step in _STEPS}
    divided = {field for field in steps if field == "function_call" or parts[field] == len(payload[str(field)])}
    rest = {name: value for name, value in payload.items() if name not in divided}
    yield from ((None, text) for text in ([] if rest.keys() <= {"role"} else read(rest)[0]))
    for path, kind, part in found:
        if path and path[0] in divided:
            yield kind.step if kind.step in _STEPS else None, _part(kind, part)


def _part(kind: PartType, part: Any) -> str:
    if kind.step == "call":
        _, given = kind.input_of(part, "")
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return f"call: {body_of(part).get('name') or kind.name}({text})"
    if kind.step != "result":
        return "\n".join(read({"content": [part]})[0])
    text = "\n".join(read({"content": part.get(kind.returns)})[0])
    return f"{'error' if part.get('is_error') is True else 'result'}: {text}"


def parts(payload: Payload, most: int | None = None) -> tuple[list[tuple[str | None, str, str]], int]:
    """Returns the parts of a message: the step, or None for a text; the beginning, for a part that is folded; the text.

    With `most`, for a page, the parts have only so many characters, and their JSON is in lines. The second value is the
    length of all parts if some of it was left out, else 0.
    """
    found = [(step, text) for step, text in pieces(payload) if text] or [(None, said(payload))]
    if payload.get("role") in _RESULT_ROLES:
        found = [("result", text) for _, text in found]
    heads = [text.split("\n", 1)[0][:_LONGEST_HEAD] for _, text in found]
    if most is None:
        return [(step, head, text) for head, (step, text) in zip(heads, found, strict=True)], 0
    shown, left = [], most
    for head, (step, text) in zip(heads[:_MOST_PARTS], found, strict=False):
        if left > 0:
            shown.append((step, head, _indented(text[:left]) if step else text[:left]))
        left -= len(text)
    return shown, sum(len(text) for _, text in found) if left < 0 or len(found) > _MOST_PARTS else 0


def _indented(text: str) -> str:
    """Returns a call or a result with its JSON in lines. If this would change a value, the text stays as it is."""
    found = _JSON.fullmatch(text)
    with suppress(ValueError, RecursionError):
        if found is not None:
            value = json.loads(found[2], parse_float=_exact, object_pairs_hook=_distinct)
            return f"{found[1]}{json.dumps(value, ensure_ascii=False, indent=2)}{found[3]}"
    return text


def _exact(digits: str) -> float:
    if repr(float(digits)) != digits:
        raise ValueError
    return float(digits)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError
    return found


@dataclass(frozen=True)
class Kept(AsDict):
    """Whether a thread is on hold, and until when it is retained, if that time is still to come.

    `locked` says that the term can only be made longer, and `shortened` that it shortens an earlier one. `held_by` and
    `retained_by` say when this was ordered, and by whom.
    """

    held: bool = False
    until: datetime | None = None
    locked: bool = False
    shortened: bool = False
    held_by: tuple[datetime, str] | None = None
    retained_by: tuple[datetime, str] | None = None

    def words(self, moment: Callable[[datetime], str]) -> list[str]:
        """Returns words for a list of threads. `moment` formats times."""
        held, kept = (f", since {moment(it[0])} by {it[1]}" if it else "" for it in (self.held_by, self.retained_by))
        what = f"retained{' and locked' * self.locked} until"
        until = [f"{what} {moment(self.until)}{', shortened' * self.shortened}{kept}"] if self.until is not None else []
        return [f"held{held}"] * self.held + until


def kept_by(newest_first: Iterable[Event]) -> Kept:
    """Returns what the holds, releases and retentions of a thread say. They must be newest first."""
    events = list(newest_first)
    hold = next((each for each in events if each.kind != "retention"), None)
    found = Kept(True, held_by=_by(hold)) if hold is not None and hold.kind == "hold" else Kept()
    term = next((each for each in events if each.kind == "retention"), None)
    until = None if term is None else _until(term)
    if term is None or until is None:
        return found
    # A term that was shortened to the past stays in the list, so that one sees that somebody ended the protection.
    is_shortened = "shortens" in term.body
    if until <= datetime.now(UTC) and not is_shortened:
        return found
    is_locked = term.body.get("locked") is True
    return replace(found, until=until, locked=is_locked, shortened=is_shortened, retained_by=_by(term))


def _by(event: Event) -> tuple[datetime, str]:
    return event.created_at, event.actor or event.login


def _until(event: Event) -> datetime | None:
    text = event.body.get("until")
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def described(event: Event, *, content: bool = True) -> str:
    """Describes an event, without `content` also without metadata's names. Leaves out values of wrong types."""
    if event.kind == "metadata" and not content:
        return ""
    describe = _WORDS.get(event.kind)
    return "" if describe is None else describe(event)


def _redaction(event: Event) -> str:
    body = event.body
    what = "the whole thread: " if body.get("whole") is True else ""
    parts = [_ranges(body.get("seqs"), "message", "messages"), _ranges(body.get("records"), "record", "records")]
    overrides = body.get("overrides")
    rule = "the term of the tenant's rule" if isinstance(overrides, list) and "rule" in overrides else ""
    recorded = f"what was recorded at pos {poses}" if (poses := _listed(overrides)) else ""
    despite = " and ".join(filter(None, (rule, recorded)))
    return what + " and ".join(filter(None, parts)) + (f", despite {despite}" if despite else "")


def _refusal(event: Event) -> str:
    seqs = _ranges(event.body.get("seqs"), "message", "messages")
    return f"refused to {_text(event.body, 'refused')}{f' {seqs}' if seqs else ''}: {_text(event.body, 'because')}"


def _retention(event: Event) -> str:
    until = _until(event)
    end = "an unknown time" if until is None else f"{until:%Y-%m-%d %H:%M:%S} UTC"
    shorter = _listed([event.body.get("shortens")])
    locked = ", locked" if event.body.get("locked") is True else ""
    return f"until {end}{locked}" + (f", shorter than the term of pos {shorter}" if shorter else "")


def _fork(event: Event) -> str:
    return f"at pos {event.body['pos']:,}" if type(event.body.get("pos")) is int else ""


def _verdict(event: Event) -> str:
    verdict = Verdict.of(event)
    return "" if verdict is None else f"{verdict.verdict}: record {verdict.number:,}"


def _metadata(event: Event) -> str:
    found = ((word, event.body.get(word)) for word in ("set", "removed"))
    return "; ".join(f"{word} {', '.join(map(str, some))}" for word, some in found if isinstance(some, list) and some)


def _subject(event: Event) -> str:
    old, new = (event.body.get(which) is not None for which in ("old", "new"))
    return "changed" if old and new else "removed" if old else "set"


def _verification(event: Event) -> str:
    result = "no findings" if event.body.get("findings") == 0 else _counts(event.body, "findings")
    return f"{_counts(event.body, 'threads')} at level {_text(event.body, 'level')}: {result}"


def _rule(event: Event) -> str:
    term = _age(event.body, "new_threads_seconds")
    kept = f"new threads are retained for {term}" if term else ""
    return "; ".join(filter(None, (_erasing(event.body), kept))) or "no rule any more"


def _policy(event: Event) -> str:
    state, erased, kept = (event.body.get(name) for name in ("state", "erased", "kept"))
    if state == "begun" or not isinstance(erased, dict):
        return f"run begun: {_erasing(event.body)}"
    left = {why: each for why, each in kept.items() if isinstance(each, dict)} if isinstance(kept, dict) else {}
    parts = [f"{_counts(each, 'threads')} kept, {why}" for why, each in left.items()]
    what = _counts(erased, "threads", "messages", "records")
    return f"run {_text(event.body, 'state')}: erased {'; '.join([what, *parts])}"


def _erasing(body: dict[str, Any]) -> str:
    age, prefix = _age(body, "older_than_seconds"), _text(body, "prefix")
    of_subject = " of one subject" if body.get("of_subject") is True else ""
    named = f" whose names begin with {prefix}" if prefix else ""
    return f"threads{of_subject}{named} are erased {age} after their last message" if age else ""


def _filled(event: Event) -> str:
    body, text = event.body, _DATA["events"][event.kind]
    return _PLACE.sub(lambda at: _counts(body, *at[2].split()) if at[1] else _text(body, at[2]), text)


_WORDS: dict[str, Callable[[Event], str]] = {
    "redaction": _redaction, "refusal": _refusal, "retention": _retention, "fork": _fork, "origin": _fork,
    "verdict": _verdict, "metadata": _metadata, "subject": _subject, "verification": _verification, "rule": _rule,
    "policy": _policy, **dict.fromkeys(_DATA["events"], _filled),
}  # fmt: skip


def _counts(body: dict[str, Any], *names: str) -> str:
    found = ((body.get(name), name) for name in names)
    *first, last = [f"{n:,} {name if n != 1 else name[:-1]}" for n, name in found if type(n) is int] or ["?"]
    return f"{', '.join(first)} and {last}" if first else last


def _age(body: dict[str, Any], name: str) -> str:
    seconds: Any = body.get(name)
    if type(seconds) not in (int, float) or not 0 < seconds < timedelta.max.total_seconds():
        return ""
    return str(timedelta(seconds=seconds)).removesuffix(", 0:00:00")


def _text(body: dict[str, Any], name: str) -> str:
    found = body.get(name)
    return found if isinstance(found, str) else ""


def _listed(given: Any) -> str:
    return ", ".join(f"{pos:,}" for pos in given if type(pos) is int) if isinstance(given, list) else ""


def _ranges(given: Any, one: str, many: str) -> str:
    if not isinstance(given, list):
        return ""
    spans = [pair for pair in given if isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)]  # noqa: PLR2004
    count = sum(end - start + 1 for start, end in spans)
    named = ", ".join(f"{start:,}" if start == end else f"{start:,}-{end:,}" for start, end in spans)
    return f"{one if count == 1 else many} {named}" if spans else ""


def without_text(record: Compaction) -> str:
    """Returns what to show for a record without a text: its reason or, for a revocation, what the view shows again."""
    text: str | None = _DATA["without_text"].get(record.outcome)
    if text is None and record.kind == "revocation":
        return f"what the view showed before record {record.revokes:,}" if record.revokes else "what was there before"
    return text or "nothing: the span was removed from the view"
