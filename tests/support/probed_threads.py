"""Threads for the probes, with messages as agents and people write them, and folds with a given summary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from compaction_store.messages.framing import frame
from compaction_store.probes import Fold, Probe, ThreadFacts, ThreadMessage, ThreadProbe

Payload = dict[str, Any]


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


def assistant(text: str) -> Payload:
    return {"role": "assistant", "content": text}


def call(name: str, given: Any, *, id: str = "c1") -> Payload:  # noqa: A002 — as the API names it
    """Returns a call in OpenAI's chat format, with arguments as a JSON string."""
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def use(name: str, given: Any, *, id: str = "c1") -> Payload:  # noqa: A002 — as the API names it
    """Returns a call in Anthropic's format."""
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": name, "input": given}]}


def result(text: str, *, id: str = "c1", failed: bool = False) -> Payload:  # noqa: A002 — as the API names it
    part = {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": failed}
    return {"role": "user", "content": [part]}


def summary(text: str, start_seq: int, end_seq: int, record: int = 1) -> Fold:
    return Fold(record, start_seq, end_seq, (frame(text, start_seq, end_seq),))


def probed(messages: Sequence[Payload], folds: Iterable[tuple[int, Fold]] = ()) -> list[Probe]:
    """Returns the probes of a thread. Each fold happens after the message with the seq that is given with the fold."""
    probe = ThreadProbe(ThreadFacts(ThreadMessage(seq, payload) for seq, payload in enumerate(messages, 1)))
    waiting = list(folds)
    for seq in range(1, len(messages) + 1):
        probe.append(seq)
        while waiting and waiting[0][0] == seq:
            probe.fold(waiting.pop(0)[1])
    return probe.finish()


def once(messages: Sequence[Payload], text: str, end_seq: int, type_: str, *, start_seq: int = 1) -> list[Probe]:
    """Returns the probes of one type for a thread with one fold, which happens after the message at `end_seq`."""
    found = probed(messages, [(end_seq, summary(text, start_seq, end_seq))])
    return [probe for probe in found if probe.type == type_]


def at(messages: Sequence[Payload], probe: Probe) -> str:
    """Returns the text at the place of a probe."""
    assert probe.place.seq is not None
    value: Any = messages[probe.place.seq - 1]
    for step in probe.place.field.replace("]", "").replace("[", ".").split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    assert isinstance(value, str)
    return value[probe.place.start : probe.place.end]
