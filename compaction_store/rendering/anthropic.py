"""Renders a view for Anthropic's Messages API: alternating turns, results after their calls, a compaction block first.

A late result is moved to its call. A call without a result gets a result that says so. An id is replaced if the API
would refuse it or if two calls have it. New messages at the end of a thread rarely change how its beginning is
rendered, so caches and signed thinking stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from compaction_store.messages import framing
from compaction_store.messages.parts import row_of
from compaction_store.messages.stand_ins import shown
from compaction_store.models import Element, Payload
from compaction_store.rendering import blocks
from compaction_store.rendering.given import set_in_messages, without_mark

SIGNED_BETA = "compact-2026-09-04"
THRESHOLD_BETA = "compact-2026-01-12"
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class Options(NamedTuple):
    system_messages: str
    thinking: str
    cache: str | None


@dataclass
class _Message:
    """The blocks of one role in a payload. `last_summary` says whether the payload belongs to the last summary."""

    seq: int
    role: str
    blocks: list[Payload]
    last_summary: bool = False
    fields: Payload = field(default_factory=dict)


def request(elements: Sequence[Element], options: Options) -> Payload:
    """Makes the arguments of a request to the Messages API."""
    messages = list(_read(elements, options))
    results = _results(messages, erased=any(e.is_erased for e in elements))
    _settle_server_calls(messages)
    system, turns = _turns(messages, results, in_place=options.system_messages == "in_place")
    turns = list(_finished(turns))
    if turns and turns[0].role == "assistant" and turns[0].blocks[0].get("type") != "compaction":
        turns.insert(0, _Message(0, "user", [{"type": "text", "text": blocks.BEGINNING}]))
    _mark(turns, cache := options.cache)
    written = [{"role": turn.role, "content": _short(turn.blocks)} | turn.fields for turn in turns]
    arguments: Payload = {"messages": written}
    if system:
        arguments = {"system": _short(system if cache is None else list(map(without_mark, system)))} | arguments
    if compactions := [block for turn in turns for block in turn.blocks if block.get("type") == "compaction"]:
        betas = {SIGNED_BETA if block.get("signature") else THRESHOLD_BETA for block in compactions}
        arguments["betas"] = sorted(betas)
    return arguments


def _read(elements: Sequence[Element], options: Options) -> Iterator[_Message]:
    """Yields the messages in order. Leaves out content before a compaction block, and thinking that is dropped."""
    start = _last_block(elements)
    last = max((i for i, e in enumerate(elements) if e.is_summary), default=-1)
    folded: float = 0
    spoken = False
    for index, element in enumerate(elements):
        for place, payload in enumerate(shown(element)):
            found = blocks.parts(element.seq, payload)
            if (index, place) < start[:2]:
                found = [part for part in found if part.role == "system"]
            elif (index, place) == start[:2]:
                found = found[start[2] :]
            if element.kind is not None:
                found = [_ours(part, element, first=not spoken) for part in found]
            for message in _messages(found, payload):
                message.last_summary = index == last
                # The messages of a replacement are older than its record, so any compaction before them in the view
                # makes their thinking stale.
                written = _pos(element) if element.kind is None else 0
                if options.thinking != "keep" and (options.thinking == "drop" or written < folded):
                    message.blocks = [b for b in message.blocks if not row_of(b).is_thinking]
                spoken = spoken or (message.role != "system" and bool(message.blocks))
                yield message
        if element.kind is not None and not _is_signed(element):
            folded = max(folded, _pos(element))


def _pos(element: Element) -> float:
    return float("inf") if element.pos is None else element.pos


def _is_compaction(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "compaction" and bool(block.get("content"))


def _is_signed(element: Element) -> bool:
    """Returns whether an element is a compaction block of the API itself, after which thinking stays valid."""
    content = element.message.get("content") if element.message is not None else None
    return isinstance(content, list) and len(content) == 1 and _is_compaction(content[0])


def _last_block(elements: Iterable[Element]) -> tuple[int, int, int]:
    """Finds the last compaction block that came with a reply. The API ignores everything before this block."""
    last = (-1, 0, 0)
    for index, element in enumerate(elements):
        for place, payload in enumerate(element.messages if element.kind is None else ()):
            content = payload.get("content") if payload.get("role") == "assistant" else None
            if isinstance(content, list) and any(map(_is_compaction, content)):
                found = [part.block for part in blocks.parts(element.seq, payload)]
                last = index, place, max(number for number, block in enumerate(found) if _is_compaction(block))
    return last


def _ours(part: blocks.PlacedBlock, element: Element, *, first: bool) -> blocks.PlacedBlock:
    """Keeps a record's compaction block at the beginning, its only valid place. Elsewhere, makes framed notes of it."""
    if not _is_compaction(part.block) or first:
        return part
    return blocks.PlacedBlock(part.seq, "user", {"type": "text", "text": notes(part.block, element)})


def notes(block: Payload, element: Element) -> str:
    """Converts a compaction block to the text of framed notes."""
    text = block.get("content")
    if not isinstance(text, str):
        blocks.refuse(element.seq, 0, "an encrypted summary cannot be converted to the requested format")
    return str(framing.frame(text, element.seq, element.end_seq)["content"])


def _messages(found: list[blocks.PlacedBlock], payload: Payload) -> Iterator[_Message]:
    """Yields the parts of a payload as messages of one role each. This is nearly always one message."""
    kept = (part for part in found if part.block.get("type") != "compaction" or part.block.get("content"))
    for role, same in groupby(kept, lambda part: part.role):
        # Copy the blocks, because blocks are distinguished by identity and the same object may occur twice.
        message = _Message(found[0].seq, role, [{**part.block} for part in same])
        if role == "system":
            message.fields = {n: payload[n] for n in ("clear_at", "output_config") if n in payload}
        yield message


def _results(messages: list[_Message], *, erased: bool) -> dict[int, Payload]:
    """Removes the results from the messages and makes ids unique. Returns the results by the id() of their calls."""
    placed = [(message, block) for message in messages for block in message.blocks]
    rows = [row_of(block) for _, block in placed]
    steps = [
        (place, name, row.step == "call")
        for place, (row, (_, block)) in enumerate(zip(rows, placed, strict=True))
        if row.is_clients and (name := row.id_of(block)) is not None
    ]
    pairs = blocks.paired(steps)
    taken: set[str] = set()
    results: dict[int, Payload] = {}
    for place, name, is_call in steps:
        if is_call:
            new = _unused(name, taken)
            call = placed[place][1]
            result: Payload = {"type": rows[place].answer, "content": blocks.NO_RESULT, "is_error": True}
            if (answer := pairs.answers.get(place)) is not None:
                result = placed[answer][1]
            if new != name:
                call = {**call, rows[place].id[0]: new}
                message, old = placed[place]
                message.blocks = [call if b is old else b for b in message.blocks]
            results[id(call)] = {**result, row_of(result).id[0]: new}
    for message in messages if steps else ():
        message.blocks = [b for b in message.blocks if not ((row := row_of(b)).step == "result" and row.is_clients)]
    for place in pairs.orphans:
        placed[place][0].blocks.append({"type": "text", "text": blocks.OF_ERASED if erased else blocks.OF_NO_CALL})
    return results


def _unused(name: str, taken: set[str]) -> str:
    """Returns an id unchanged if the API accepts it and no other call has it, or else a similar id."""
    plain = name.removeprefix(blocks.BY_NAME)
    stem = plain if _ID.fullmatch(plain) else re.sub(r"[^a-zA-Z0-9_-]", "_", plain) or "call"
    new, count = stem, 1
    while new in taken:
        count += 1
        new = f"{stem}-{count}"
    taken.add(new)
    return new


def _settle_server_calls(messages: list[_Message]) -> None:
    """Removes interrupted calls of server tools, which get no result any more, and makes lone results a text."""
    open_: dict[str, tuple[_Message, Payload]] = {}
    for message in messages:
        if message.role == "user" and message.blocks:
            for caller, call in open_.values():
                caller.blocks = [b for b in caller.blocks if b is not call]
            open_ = {}
        for block in list(message.blocks):
            if block.get("type") == "text":
                continue
            row = row_of(block)
            if row.by_provider:
                open_[str(row.id_of(block))] = message, block
            elif row.step == "result" and open_.pop(str(row.id_of(block)), None) is None:
                note = {"type": "text", "text": blocks.OF_NO_CALL}
                message.blocks = [note if b is block else b for b in message.blocks]


def _turns(
    messages: Iterable[_Message], results: dict[int, Payload], *, in_place: bool
) -> tuple[list[Payload], list[_Message]]:
    """Returns the blocks of the system prompt, and the turns. The results of calls come first in the next turn."""
    turns: list[_Message] = []
    system: list[Payload] = []
    held: list[_Message] = []
    open_: list[Payload] = []

    def answer() -> None:
        if open_:
            _join(turns, _Message(0, "user", [results[id(call)] for call in open_]))
            open_.clear()

    for message in messages:
        if message.role == "system":
            if (in_place and turns) or any(row_of(block).role == "system" for block in message.blocks):
                held.append(message)
            else:
                system.extend(message.blocks)
            continue
        calls = [block for block in message.blocks if id(block) in results] if results else []
        if message.role == "user" or (open_ and not calls):
            answer()
        if message.role == "assistant" and held and turns and turns[-1].role == "user":
            turns.extend(held)
            held = []
        if message.blocks:
            _join(turns, message)
        open_.extend(calls)
    answer()
    if turns and turns[-1].role == "user":
        turns.extend(held)
    else:
        system.extend(block for message in held for block in message.blocks if block.get("type") == "text")
    return system, turns


def _join(turns: list[_Message], message: _Message) -> None:
    """Adds a message to the last turn if that has the same role, or else as a new turn."""
    if turns and turns[-1].role == message.role:
        turns[-1].blocks.extend(message.blocks)
    else:
        turns.append(_Message(message.seq, message.role, [*message.blocks], fields={**message.fields}))
    if message.last_summary and message.blocks:
        # Put the cache breakpoint after the summary, because later blocks are not part of the cached prefix.
        turns[-1].fields["cached"] = len(turns[-1].blocks) - 1


def _finished(turns: Iterable[_Message]) -> Iterator[_Message]:
    """Removes thinking at the end of turns, drops empty turns, and joins adjacent turns of the same role."""
    kept: list[_Message] = []
    for turn in turns:
        while turn.role == "assistant" and turn.blocks and row_of(turn.blocks[-1]).is_thinking:
            turn.blocks.pop()
        if not turn.blocks and "output_config" not in turn.fields:
            continue
        if kept and kept[-1].role == turn.role != "system":
            if "cached" in turn.fields:
                kept[-1].fields["cached"] = turn.fields["cached"] + len(kept[-1].blocks)
            kept[-1].blocks.extend(turn.blocks)
        else:
            kept.append(turn)
    if kept and kept[-1].role == "assistant" and kept[-1].blocks[-1].get("type") == "text":
        # The API continues an assistant turn at the end, and refuses one that ends in whitespace.
        last = kept[-1].blocks[-1]
        kept[-1].blocks[-1] = {**last, "text": last["text"].rstrip()}
    return iter(kept)


def _mark(turns: Sequence[_Message], cache: str | None) -> None:
    after_summary = None
    for index, turn in enumerate(turns):
        place = turn.fields.pop("cached", None)
        if place is not None and place < len(turn.blocks):
            after_summary = index, place
    set_in_messages([turn.blocks for turn in turns], after_summary, cache)


def _short(blocks: list[Payload]) -> Any:
    """Returns only the text if the blocks are a single plain text block, or else the blocks."""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks
