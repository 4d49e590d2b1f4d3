"""Reads the living state of an agent: its newest to-do list or plan, the files it used, and its users' words.

Everything is a line with the seq of its message. The lines can be written below a summary and read back from there, so
that a later summary of that summary has them too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from compaction_store.language.secrets import masked
from compaction_store.messages import framing
from compaction_store.models import Element, Payload
from compaction_store.models.state import CARRIED
from compaction_store.module_data import ModuleData
from compaction_store.probes.calls import used_files
from compaction_store.probes.speech import MessageReading, ToolCall

_DATA = ModuleData(__file__)
#: The names of tools that keep a list or a plan.
LATEST = tuple(_DATA.text("latest").split())
_LISTS = _DATA.text("lists").split()
_TEXTS = _DATA.text("texts").split()
_STATES = _DATA.text("states").split()
_FILES = "files"
_LINE = re.compile(r"\[(\d{1,19})\] (user|files|[^\s:]{1,100}): (.*)")


class Line(NamedTuple):
    """A text, who or which tool wrote it (`user`, `files`, or the name of a tool), and the seq of its message."""

    seq: int
    who: str
    text: str

    def __str__(self) -> str:
        # The lines of a text after the first are indented, so that no text can begin a line of its own.
        return f"[{self.seq}] {self.who}: " + "\n  ".join(self.text.splitlines())


class Living(NamedTuple):
    """The newest call of each tool that keeps a list, the users' messages, and for each file its newest use."""

    lists: dict[str, Line]
    users: list[Line]
    files: dict[str, Line]


def living(elements: Iterable[Element], latest: Collection[str] = LATEST) -> Living:
    """Reads some elements in order. The lines below an earlier summary are read as lines again."""
    found = Living({}, [], {})
    for element in elements:
        for place, payload in enumerate(element.messages):
            for line in _carried(payload) if element.is_summary else _lines(payload, element.seq + place, latest):
                _add(found, line)
    return found


def _add(found: Living, line: Line) -> None:
    if line.who == "user":
        found.users.append(line)
    elif line.who == _FILES:
        path = line.text.rpartition(" (")[0]
        if line.text.endswith(" (read)") and path in found.files:
            # A written file counts as written even if it is read again.
            line = line._replace(text=found.files[path].text)
        found.files.pop(path, None)
        found.files[path] = line
    else:
        found.lists[line.who] = line


def _lines(payload: Payload, seq: int, latest: Collection[str]) -> Iterator[Line]:
    reading = MessageReading(payload)
    words = "\n".join(said.text for said in reading.said if said.kind == "user").strip()
    if words and payload.get("role") == "user":
        yield Line(seq, "user", masked(words))
    for call in reading.calls:
        if call.name in latest and (text := list_text(call)):
            yield Line(seq, call.name, masked(text))
        yield from (Line(seq, _FILES, file) for file in used_files(call))


def list_text(call: ToolCall) -> str:
    """Returns the list or the plan that a call states as text, one entry a line, or an empty text."""
    value = call.given
    if isinstance(value, dict):
        value = next((value[name] for name in _LISTS if value.get(name)), None)
    if isinstance(value, str):
        return value.strip()
    return "\n".join(filter(None, map(_entry, value))) if isinstance(value, list) else ""


def _entry(entry: Any) -> str:
    if isinstance(entry, str):
        return f"- {entry}"
    if not isinstance(entry, dict):
        return ""
    text, state = (
        next((entry[name] for name in names if isinstance(entry.get(name), str)), "") for names in (_TEXTS, _STATES)
    )
    return f"- {text} ({state})" if text and state else f"- {text}" if text else ""


# ---- the lines below a summary


def block(lines: Sequence[Line]) -> str:
    """Returns the text with these lines: users' words, lists, files; an empty text if there are none."""
    ordered = sorted(lines, key=lambda line: (line.who == _FILES, line.who != "user", line.seq))
    return "\n".join([CARRIED, *map(str, ordered)]) if lines else ""


def _carried(payload: Payload) -> list[Line]:
    """Returns the lines in an earlier summary: those below it, and users' orders, which are in a part of their own."""
    framed = framing.parts_of(payload)
    if framed is None:
        return []
    below = f"\n{framed.notes}".partition(f"\n{CARRIED}\n")[2]
    orders = [line for line in framed.orders.split("\n") if below and (m := _LINE.match(line)) and m[2] == "user"]
    found: list[Line] = []
    for text in [*orders, *below.split("\n")]:
        if (start := _LINE.fullmatch(text)) is not None:
            found.append(Line(int(start[1]), start[2], start[3]))
        elif found and text.startswith("  "):
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{text[2:]}")
    return found
