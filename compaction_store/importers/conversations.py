"""Reads JSON lines with messages of OpenAI's chat and Responses APIs and of Anthropic's API.

If the first line is a message, an item or an API's response, the file is one thread, or one thread for each value of
`thread_field`. If the first line is a conversation, as in a fine-tuning file or a batch of requests, each line is a
thread. Messages are stored unchanged, without that field. The `system` or `instructions` of a request becomes its first
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from compaction_store.importers.line_files import Files, Line, LineFile, LineRange
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load

CHAT, RESPONSES, ANTHROPIC = "openai-chat", "openai-responses", "anthropic"
# Fields of a message that usually say to which thread it belongs.
_COLUMNS = ("thread_id", "conversation_id", "session_id", "chat_id")
_IDS = ("thread_id", "conversation_id", "session_id", "custom_id", "id")
_TIMES = ("created_at", "created", "timestamp")
_SAYING = frozenset({"content", "tool_calls", "function_call", "refusal", "audio"})


# A message with its meta.
_Said = tuple[Any, dict[str, Any]]


class Conversations(Files):
    """A file of messages or of conversations, or a folder of such files."""

    def __init__(self, path: Path, form: str, *, skip_bad: bool = False, thread_field: str | None = None) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self.format, self._field = form, thread_field

    def threads(self) -> Iterator[SourceThread]:
        of_messages = []
        for file in self._files:
            if any(request(found) is not None for _, found in islice(file.sample(), 1)):
                yield from self._each_line(file)
            elif self._field is not None:
                of_messages.append(file)
            else:
                notes = Notes(self.skip_bad, hint=_hint(file))
                yield SourceThread(_stem(file), self._items([(file, None)], notes), notes)
        if self._field is not None:
            yield from self._each_value(of_messages, self._field)

    def _each_value(self, files: list[LineFile], field: str) -> Iterator[SourceThread]:
        """Yields a thread for each value of a field. Memory grows with the changes of the value from line to line."""
        threads: dict[str, list[tuple[LineFile, list[LineRange]]]] = {}
        notes = Notes(self.skip_bad)
        for file in files:
            for line, found in file.objects(notes):
                if (name := _named(found.get(field))) is None:
                    notes.refuse(file.where(line.number), f"it must have text or a number in {field!r}", line.number)
                    continue
                places = threads.setdefault(name, [])
                if not places or places[-1][0] is not file:
                    places.append((file, []))
                line.extend(places[-1][1])
            file.done = 0
        for name, places in threads.items():
            # Lines that were skipped are reported with the first thread.
            own = notes.take()
            yield SourceThread(name, self._items(places, own), own)
        if notes.skipped:
            yield SourceThread(_stem(files[0]), (), notes)

    def _items(self, places: Sequence[tuple[LineFile, list[LineRange] | None]], notes: Notes) -> Iterator[Item]:
        for file, runs in places:
            for line, found in file.objects(notes, runs):
                if request(found) is not None:
                    why = "it must be a message like the first line, not a conversation"
                    notes.refuse(file.where(line.number), why, line.number)
                    continue
                if self._field is not None:
                    del found[self._field]
                yield from self._checked(file, line, notes, answered(found) or [(found, _known(found))])

    def _each_line(self, file: LineFile) -> Iterator[SourceThread]:
        notes = Notes(self.skip_bad)
        for line, found in file.objects(notes):
            if (asked := request(found)) is None:
                notes.refuse(file.where(line.number), "it must be a conversation like the first line", line.number)
                continue
            names = [self._field and _named(found.get(self._field)), *(text(found.get(name)) for name in _IDS)]
            source_id = next(filter(None, names), f"{_stem(file)}:{line.number}")
            said = [(message, _known(message)) for message in said_in(asked)]
            # Bad lines are reported with the next thread.
            own = notes.take()
            yield SourceThread(source_id, self._checked(file, line, own, said), own)
        if notes.skipped:
            yield SourceThread(_stem(file), (), notes)

    def _checked(self, file: LineFile, line: Line, notes: Notes, said: list[_Said]) -> Iterator[Item]:
        where = file.where(line.number)
        for message, meta in said:
            if is_message(message, self.format):
                yield from to_load(message, {"source": self.format, **meta}, notes, where, line.number)
            else:
                notes.refuse(where, f"it is not a message of the format {self.format}", line.number)


def _named(value: Any) -> str | None:
    """Returns the name of a thread from a field with text or a number."""
    return str(value) if type(value) is int else text(value)


def _hint(file: LineFile) -> str | None:
    """Returns a hint if a usual field has different values in the lines of a file that becomes one thread."""
    first: dict[str, str | None] = {}
    for _, found in file.sample():
        for column in _COLUMNS:
            name = _named(found.get(column))
            if name is not None and first.setdefault(column, name) != name:
                return f"{file.name} becomes one thread; if {column!r} names the thread of a line, give thread_field"
    return None


def _stem(file: LineFile) -> str:
    return file.name.removesuffix(".jsonl")


def request(found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the request in a line; None if there is none. In a batch, a line has the request in one of its fields."""
    for inner in (found, found.get("body"), found.get("params")):
        if isinstance(inner, dict) and "role" not in inner and (
            isinstance(inner.get("messages"), list) or isinstance(inner.get("input"), list | str)
        ):  # fmt: skip
            # An item of the Responses API may have a field `input` too. Such an item has a type and is not a request.
            return None if isinstance(inner.get("type"), str) and "messages" not in inner else inner
    return None


def said_in(asked: dict[str, Any]) -> list[Any]:
    """Returns the messages of a request. For the Responses API, adds the response's output if the line contains it."""
    if isinstance(messages := asked.get("messages"), list):
        first = [{"role": "system", "content": asked["system"]}] if asked.get("system") else []
        return [*first, *messages]
    given, output = asked["input"], asked.get("output")
    first = [{"role": "system", "content": asked["instructions"]}] if asked.get("instructions") else []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [*first, *items, *(output if isinstance(output, list) else [])]


def answered(found: dict[str, Any]) -> list[_Said] | None:
    """Returns the messages of an OpenAI response, of several choices the first, or None, as for Anthropic's."""
    kind = found.get("object")
    about = {"occurred_at": _time(found), "response_id": text(found.get("id")), "model": text(found.get("model"))}
    if kind == "response" and isinstance(found.get("output"), list):
        parts = [(item, about | {"external_id": _id(item)}) for item in found["output"]]
    elif kind == "chat.completion" and isinstance(found.get("choices"), list):
        parts = [(choice.get("message"), about) for choice in found["choices"][:1] if isinstance(choice, dict)]
    else:
        return None
    if parts and isinstance(found.get("usage"), dict):
        parts[-1][1]["usage"] = found["usage"]
    return parts


def _known(message: Any) -> dict[str, Any]:
    return {"occurred_at": _time(message), "external_id": _id(message)} if isinstance(message, dict) else {}


def _id(message: Any) -> str | None:
    return text(message.get("id")) if isinstance(message, dict) else None


def _time(found: dict[str, Any]) -> str | None:
    return next((when for name in _TIMES if (when := moment(found.get(name)))), None)


def is_message(message: Any, form: str) -> bool:
    """Returns whether a value looks like a message in the format. The API need not accept it."""
    if isinstance(message, dict) and form == RESPONSES and isinstance(message.get("type"), str):
        return True
    return isinstance(message, dict) and isinstance(message.get("role"), str) and not _SAYING.isdisjoint(message)
