"""Reads a compaction that a provider made, and plans the records that apply it to the view.

A provider replaces messages in one of two ways. OpenAI's compact endpoint returns new messages, called stand-ins here,
which become the replacement unchanged. Anthropic's API puts a block into a reply, and Claude Code puts a summary among
the messages. Both are in the thread already, so the messages before them are hidden without a replacement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from compaction_store.compaction.plan import EVERYTHING
from compaction_store.errors import InvalidInput, InvalidSpan
from compaction_store.messages import documents, encoding, provider_compactions
from compaction_store.messages.answers import field
from compaction_store.messages.tool_pairs import is_system
from compaction_store.models import Compaction, Element, Payload

_FORMS = (
    "an observed compaction, a reply with one, OpenAI's CompactedResponse, Claude Code's compact boundary, or a list of"
    " messages"
)
_BOUNDARY = "compact_boundary"


class Made(NamedTuple):
    """A provider's compaction of a span. `stand_ins` is None if the new messages are already in the thread."""

    what: str
    stand_ins: tuple[Payload, ...] | None
    #: The part of an observed record's body by which the record is found.
    provider: Payload | None = None
    record: Compaction | None = None
    summary_text: str | None = None
    model: str | None = None
    usage: Payload | None = None

    def __repr__(self) -> str:
        return f"Made({self.what!r}, …)"

    @property
    def is_boundary(self) -> bool:
        """Whether this is a compact boundary of Claude Code, for which the caller may give the span."""
        return self.what == _BOUNDARY

    @property
    def is_unreadable(self) -> bool:
        """Whether only the provider can read the compaction."""
        parts = [self.provider] if self.stand_ins is None else list(self.stand_ins)
        return self.summary_text is None and any(_is_encrypted(part) for part in parts)


def read(given: object) -> Made:
    """Reads a provider's compaction in any form that `adopt` accepts."""
    if isinstance(given, Compaction):
        return of_record(given)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return Made("given", _with_content(_encoded(given)))
    if field(given, "subtype") == _BOUNDARY:
        data = given if isinstance(given, Mapping) else field(given, "data")
        plain = dict(encoding.encode(data).payload) if isinstance(data, Mapping) and data else {}
        text = plain.pop("summary_text", None)
        return Made(_BOUNDARY, None, provider=plain, summary_text=text if isinstance(text, str) and text else None)
    output = field(given, "output")
    if isinstance(output, Sequence) and field(given, "object") == "response.compaction":
        about = {name: field(given, name) for name in ("id", "object", "created_at")}
        return Made(
            "responses.compact", _with_content(_encoded(output)),
            provider={name: v for name, v in about.items() if v is not None},
            usage=_plain(field(given, "usage")),
        )  # fmt: skip
    if not isinstance(given, Mapping) and not hasattr(given, "model_dump"):
        raise InvalidInput(f"compaction must be {_FORMS}, not {type(given).__name__}")
    return _of_reply(given, output)


def _with_content(stand_ins: tuple[Payload, ...]) -> tuple[Payload, ...]:
    """Refuses stand-ins that are nothing but empty compactions: the messages would be replaced by nothing."""
    if all(map(provider_compactions.is_empty, stand_ins)):
        raise InvalidInput("compaction must have a text or encrypted_content; its items have neither")
    return stand_ins


def _of_reply(reply: Any, output: Any) -> Made:
    found = None
    for part in output if isinstance(output, Sequence) else (reply,):
        for each in provider_compactions.compactions_of(part, encoding.encode(part).payload):
            found = each.record if each.folds else found
    if found is None:
        raise InvalidInput(f"compaction must be {_FORMS}; the reply has no compaction that replaces anything")
    body = json.loads(found["body"])
    return Made("compaction", None, provider=body["provider"], summary_text=body.get("summary_text"))


def of_record(record: Compaction) -> Made:
    """Reads an observed compaction. Its stand-ins are read from the body of the record, if the thread lacks them."""
    if record.outcome != "observed" or record.kind != "summary":
        raise InvalidInput(f"compaction must be an observed summary, not {record.outcome} ({record.kind})")
    if record.start_seq is None:
        raise InvalidInput(f"compaction {record.number} must have a span; it replaces nothing")
    provider = {} if record.body is None else record.body.get("provider")
    provider = provider if isinstance(provider, dict) else {}
    what = (record.callback or "provider:compaction").removeprefix("provider:")
    text = record.summary_text
    # Only a `compacted` line of Codex contains the messages with which the model continues: they are the stand-ins.
    stand_ins = _of_codex(provider) if what == "compacted" else None
    return Made(what, stand_ins, provider, record, text, record.model, record.usage)


def _of_codex(line: Payload) -> tuple[Payload, ...] | None:
    history, text = line.get("replacement_history"), line.get("message")
    items = history if isinstance(history, list) and all(isinstance(item, dict) for item in history) else []
    # Codex puts its instructions among them again. Those in the thread stay in the view, as with any provider.
    if said := [item for item in items if not is_system(item)]:
        return _encoded(said)
    return ({"role": "user", "content": text},) if isinstance(text, str) and text else None


def is_record_of(record: Compaction, made: Made) -> bool:
    """Returns whether an observed record describes this compaction."""
    stored = None if record.body is None else record.body.get("provider")
    if record.start_seq is None or not isinstance(stored, dict) or made.provider is None:
        return False
    if made.what == _BOUNDARY:
        own = made.provider.get("uuid")
        return stored.get("subtype") == _BOUNDARY and (own is None or stored.get("uuid") == own)
    return encoding.canonical(stored) == encoding.canonical(made.provider)


class AdoptedPart(NamedTuple):
    """A range of the view that one record replaces."""

    elements: tuple[Element, ...]
    replacement: tuple[Payload, ...]


def parts(elements: Iterable[Element], first: int, last: int, stand_ins: Sequence[Payload] | None) -> list[AdoptedPart]:
    """Returns the ranges of elements with their replacements; an empty list if the view has these replacements already.

    A provider does not replace system messages, so they stay and divide the elements into ranges. The stand-ins replace
    the last range.
    """
    inside = [element for element in elements if element.end_seq >= first and element.seq <= last]
    if not inside:
        raise InvalidSpan(f"seqs {first} to {last} must be in the view")
    for element in (inside[0], inside[-1]):
        if element.seq < first or element.end_seq > last:
            raise InvalidSpan(
                f"seqs {first} to {last} must not begin or end inside compaction {element.number}, which has seqs"
                f" {element.seq} to {element.end_seq}"
            )
    runs: list[list[Element]] = [[]]
    for element in inside:
        if any(map(is_system, element.messages)):
            runs.append([])
        else:
            runs[-1].append(element)
    runs = [run for run in runs if run]
    if not runs:
        raise InvalidInput("the range must have a message that is not a system message")
    kept = {encoding.canonical(m) for element in inside for m in element.messages if is_system(m)}
    given = tuple(m for m in stand_ins or () if encoding.canonical(m) not in kept)
    if any(map(is_system, given)):
        raise InvalidInput("the messages that replace a range must not be system messages")
    now = [element for run in runs for element in run]
    if all(element.kind == "adoption" for element in now) and given == tuple(m for e in now for m in e.messages):
        return []
    return [AdoptedPart(tuple(run), given if run is runs[-1] else ()) for run in runs]


def to_json(
    made: Made,
    plan: Iterable[AdoptedPart],
    count: Callable[[Iterable[Payload]], int],
    *,
    counter: str,
    reason: str | None,
    actor: str | None,
    authority: Payload | None,
) -> str:
    """Returns the records as JSON for the commit."""
    observed = () if made.record is None else (made.record.number,)
    stated = {"reason": reason, "authority": authority}
    about = {"summary_text": made.summary_text, "usage": made.usage, "unreadable": made.is_unreadable or None}
    if made.record is None:
        about["provider"] = made.provider
    found = []
    for part in plan:
        is_last = bool(part.replacement) or made.stand_ins is None
        body = {"replacement": list(part.replacement), **stated, **(about if is_last else {})}
        numbers = [element.number for element in part.elements if element.number is not None]
        if is_last and made.record is None:
            # The provider was given more than this part: it also got the other parts and the system messages.
            numbers.insert(0, EVERYTHING)
        columns = {
            "kind": "adoption", "outcome": "applied", "start_seq": part.elements[0].seq,
            "end_seq": part.elements[-1].end_seq, "tokens_after": _tokens(part, made, count),
            "callback": f"provider:{made.what}", "trigger": "provider", "actor": actor, "counter": counter,
            "model": made.model, "inputs": [*numbers, *observed],
        }  # fmt: skip
        found.append(documents.record(columns, {name: value for name, value in body.items() if value is not None}))
    return json.dumps(found)


def _tokens(part: AdoptedPart, made: Made, count: Callable[[Iterable[Payload]], int]) -> int:
    """Counts the tokens of a replacement. For encrypted messages, adds the provider's figure, if it gave one."""
    tokens = count(part.replacement)
    if any(map(_is_encrypted, part.replacement)):
        spent = (made.usage or {}).get("output_tokens")
        tokens += spent if type(spent) is int and 0 <= spent < 2**31 - 1 - tokens else 0
    return tokens


def _encoded(messages: Iterable[Any]) -> tuple[Payload, ...]:
    given = list(messages)
    if not given:
        raise InvalidInput("compaction must have at least one message")
    return tuple(each.payload for each in encoding.encode_many(given))


def _is_encrypted(part: Payload | None) -> bool:
    return part is not None and bool(part.get("encrypted_content")) and not part.get("content")


def _plain(value: object) -> Payload | None:
    if value is None:
        return None
    try:
        found = encoding.encode({"value": value}).payload["value"]
    except InvalidInput:
        return None
    return found if isinstance(found, dict) else None
