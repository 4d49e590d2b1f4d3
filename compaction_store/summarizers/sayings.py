"""Finds the texts in messages, and says of each what it is: words of a user, a command, a result, a line about a file.

The harness of an agent without tools writes its commands into the assistant's texts, and their outputs into messages of
the user. Such outputs are recognized by their form. They are results and never what a user wants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from compaction_store.compaction.summary_request import Request
from compaction_store.language.sentences import prose
from compaction_store.messages import stand_ins
from compaction_store.messages.framing import framed_text
from compaction_store.messages.parts import PartType, body_of, row_of, walk
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased
from compaction_store.models.state import PartName, State, StateLine, without_carried
from compaction_store.module_data import ModuleData
from compaction_store.probes.calls import changed_files, read_file, shell_command, used_files
from compaction_store.probes.living import LATEST, list_text
from compaction_store.probes.speech import ToolCall
from compaction_store.summarizers.cover import HEAD
from compaction_store.tokens.message_text import read

_DATA = ModuleData(__file__)
_OUTPUT, _CHROME, _HEADING, _OPENED = (
    re.compile(_DATA.pattern(name), re.MULTILINE) for name in ("output", "chrome", "heading", "opened")
)
_EXAMPLE, *_COMMANDS = (
    re.compile(_DATA.pattern(name), re.DOTALL) for name in ("example", "fenced", "tagged", "last_line")
)
_HOW, _MOVES, _UNMADE, _ERROR, _NO_ERROR, _HINT, _DEFINITION, _CODE, _POLITENESS, _INTENTION = (
    re.compile(_DATA.pattern(name))
    for name in (
        "how", "moves", "unmade", "error", "no_error", "hint", "definition", "code", "politeness", "intention",
    )
)  # fmt: skip
#: Whether a line is of source code, a listing or data; whether a sentence is only polite; whether it tells a next call.
is_code, is_polite, is_intention = _CODE.search, _POLITENESS.match, _INTENTION.match

# The weight of a user's first and last words, of a plan, and of a line of an earlier summary.
WISH = 2.0
CARRIED = 1.5
# The weight of a text that says nothing alone. Such a text is chosen if there is nothing else.
SILENT = 0.05
_RESULT = 0.6
# A result that is not longer is said in the line of its call.
_SHORT_RESULT = 100
_LONGEST_CALL = 160
# Calls that edit the open file.
_EDITS = (["edit"], ["insert"])
_MARK = "…"
# A line of data has fewer letters than this, or a word that is longer than that.
_LETTERS, _LETTERS_OF_PROSE = 0.5, 0.8
_WORDS = 5
# A file whose first lines are code, a third of them at least, is source code.
_MOST_LINES = 60
_LONGEST_WORD = 60
_SHORT_LINE = 24
# Of an output of more lines, only the first and the last are kept, besides prose, definitions and errors.
_LONG_OUTPUT, _HEAD, _TAIL = 12, 2, 4


class Saying(NamedTuple):
    """A text in some messages, and its part if that is already known. `whole` is the text that it was cut from."""

    seqs: tuple[int, ...]
    text: str
    kind: str
    weight: float
    part: PartName | None = None
    whole: str | None = None


def weight_of_output(line: str, kind: str, place: int, count: int) -> float:
    """Returns the weight of a line of an output: less for code and data, which say nothing alone, and for hints."""
    if kind == "fields":
        return 1.0
    if _DEFINITION.match(line) is not None:
        return 0.5
    if kind == "file" or is_code(line) or _HINT.match(line) is not None:
        return SILENT
    letters = sum(c.isalpha() or c == " " for c in line) / len(line)
    is_prose = letters > _LETTERS_OF_PROSE and (line.count(" ") > _WORDS or not line.isascii())
    is_data = letters < _LETTERS or max(map(len, re.split(r"[\s/]", line))) > _LONGEST_WORD
    is_inside = count > _LONG_OUTPUT and _HEAD <= place < count - _TAIL
    return SILENT if (is_data and len(line) > _SHORT_LINE) or (is_inside and not is_prose) else 1.0


def is_error(line: str) -> bool:
    """Returns whether a line of an output reports an error. Source code that raises or catches one does not."""
    return _ERROR.search(line) is not None and _NO_ERROR.search(line) is None


def sayings(request: Request) -> list[Saying]:
    before = request.unquoted_rest or ()
    reading = _Reading(any(one.end_seq < request.start_seq and one.role == "assistant" for one in before), request)
    batches = [
        # Several messages that replace a span have the seqs of the span, in order.
        list(carried(text, one.seq) if text is not None else reading.of(payload, min(one.seq + place, one.end_seq)))
        for one in request
        for place, payload in enumerate(one.messages)
        if not is_erased(payload)
        for text in [framed_text(payload) if one.is_summary else None]
    ]
    return newest([*batches, reading.waiting()])


def newest(batches: Iterable[list[Saying]]) -> list[Saying]:
    """Merges texts. A newer line about a file replaces the older one, and a newer plan replaces the older plan."""
    found: list[Saying] = []
    files: dict[str, Saying] = {}
    plan: list[Saying] = []
    for new in batches:
        if any(said.part == "todos" for said in new):
            plan = [said for said in new if said.part == "todos"]
        for said in new:
            if said.part == "files":
                path, _, state = said.text.rpartition(" (")
                known = files.pop(path or state, None)
                # A file that was written and is read again was still written.
                files[path or state] = said if known is None or state != "read)" else known
            elif said.part != "todos":
                found.append(said)
    return [*_placed(found), *files.values(), *plan]


def _placed(found: list[Saying]) -> list[Saying]:
    """Marks the texts whose place says more: the assistant's conclusions, and the users' first and last words."""
    spoken = [place for place, said in enumerate(found) if said.kind in ("user", "assistant")]
    for place, after in pairwise([*spoken, None]):
        if place is not None and found[place].kind == "assistant" and (after is None or found[after].kind == "user"):
            # A text of the assistant is a conclusion if the user speaks next, and the last one says how to go on.
            found[place] = found[place]._replace(kind="next" if after is None else "concluding")
    users = [place for place in spoken if found[place].kind == "user"]
    for place in users[-1:]:
        found[place] = found[place]._replace(weight=WISH)
    for place in users[:1]:
        found[place] = found[place]._replace(weight=WISH, kind="request")
    # A next step becomes a conclusion as soon as somebody speaks again.
    last = spoken[-1] if spoken else -1
    return [
        said._replace(kind="notes", part="decisions") if said.part == "next" and place < last else said
        for place, said in enumerate(found)
    ]


def carried(text: str, seq: int) -> Iterator[Saying]:
    """Yields the lines of an earlier state, or the lines of notes in another form."""
    text = without_carried(text)
    state = State.parse(text)
    if state is not None:
        for part, lines in state.items():
            kind = {"task": "user", "orders": "order", "next": "next", "errors": "error"}.get(part, "notes")
            kept = (line for line in lines if not line.text.startswith(HEAD))
            yield from (Saying(line.seqs or (seq,), line.text, kind, CARRIED, part) for line in kept)
        return
    for line in filter(str.strip, text.splitlines()):
        read_ = StateLine.parse(line)
        is_users = line.startswith("[") and line.partition("] ")[2].startswith("user: ")
        yield Saying(read_.seqs or (seq,), read_.text, "user" if is_users else "notes", CARRIED)


class _Reading:
    """Reads messages in order. Remembers the file in the editor, and the calls whose results have not come yet."""

    def __init__(self, has_begun: bool, elements: Iterable[Element]) -> None:
        self._has_begun = has_begun
        self._open = ""
        self._paths: set[str] = set()
        self._calls: dict[str | None, tuple[Saying | None, str, bool]] = {}
        # Whether outputs are messages of the user, so that commands are in the assistant's texts.
        self._in_texts = any(
            _is_output(payload) for element in elements for payload in element.messages if not is_erased(payload)
        )

    def of(self, payload: Payload, seq: int) -> Iterator[Saying]:
        role, content = payload.get("role"), payload.get("content")
        is_result = role in ("tool", "function")
        if role == "assistant":
            self._has_begun = True
            yield from self.waiting()
        if isinstance(content, str) and not is_result and row_of(payload).step is None:
            yield from self._text(payload, content, seq)
        for path, kind, part in walk(payload):
            if is_result and path:
                continue
            if kind.step == "call":
                yield from self._call(kind, part, seq)
            elif kind.step == "result":
                text = "\n".join(read({"content": part.get(kind.returns)})[0])
                failed = part.get("is_error") is True or part.get("status") in ("failed", "incomplete")
                yield from self._result(kind.id_of(part), text, seq, failed)
            elif path and isinstance(part, dict) and isinstance(part.get("type"), str) and not kind.is_thinking:
                if kind.name == "compaction" and isinstance(part.get("content"), str):
                    yield Saying((seq,), part["content"], "notes", CARRIED)
                else:
                    for text in read({"content": [part]})[0]:
                        yield from self._text(payload, text, seq)

    def waiting(self) -> list[Saying]:
        """Returns the calls without a result."""
        calls = [call for call, *_ in self._calls.values() if call is not None]
        self._calls.clear()
        return calls

    def _text(self, payload: Payload, text: str, seq: int) -> Iterator[Saying]:
        if payload.get("role") != "user":
            is_agents = self._in_texts and payload.get("role") == "assistant"
            found = next(filter(None, (form.search(text) for form in _COMMANDS)), None) if is_agents else None
            said = text if found is None else text[: found.start()]
            if said.strip():
                yield Saying((seq,), said, "assistant", 1.0)
            if found is not None:
                yield from self._called(ToolCall(None, "shell", "", {"command": found["command"].strip()}), seq)
        elif self._has_begun and _is_output(payload):
            yield from self._result(None, text, seq, False)
        else:
            wanted, how = _sections(_EXAMPLE.sub("", text) if "---" in text or "-- " in text else text)
            if wanted.strip():
                yield Saying((seq,), wanted, "user", 1.0)
            if how.strip():
                yield Saying((seq,), how, "how", SILENT)

    def _call(self, kind: PartType, call: Payload, seq: int) -> Iterator[Saying]:
        _, given = kind.input_of(call, "")
        known = ToolCall(kind.id_of(call), str(body_of(call).get("name") or kind.name), "", parsed(given))
        if stand_ins.has_cleared_input(given if isinstance(given, str) else json.dumps(given)):
            yield from (Saying((seq,), text, "call", 1.0, "files") for text in used_files(known))
        else:
            yield from self._called(known, seq)

    def _called(self, call: ToolCall, seq: int) -> Iterator[Saying]:
        entries = list_text(call).splitlines() if call.name in LATEST else []
        if entries:
            yield from (Saying((seq,), entry.removeprefix("- "), "notes", WISH, "todos") for entry in entries)
            return
        command = shell_command(call)
        files = [f"{change.path} ({change.state})" for change in changed_files(call)]
        if not files and self._open and (command or call.name).split(maxsplit=1)[:1] in _EDITS:
            files = [f"{self._open} (edited)"]
        written = files[-1].rpartition(" (")[0] if files else ""
        if not files and (path := read_file(call)) is not None:
            files, self._open = [f"{path} (read)"], path
        self._paths.update(text.rpartition(" (")[0] for text in files)
        yield from (Saying((seq,), text, "call", 1.0, "files") for text in files)
        line = None
        if not files and _MOVES.match(command or call.name) is None:
            said = " ".join((_inputs(call) if command is None else command).split())
            cut = said if len(said) <= _LONGEST_CALL else f"{said[:_LONGEST_CALL]}{_MARK}"
            # Only a command stands as it was written.
            line = Saying((seq,), f"ran: {cut}" if command is None else f"ran: `{cut}`", "call", _RESULT, "facts", said)
        self._calls[call.id] = line, written, bool(files)

    def _result(self, id_: str | None, text: str, seq: int, failed: bool) -> Iterator[Saying]:
        call, written, is_file = self._calls.pop(id_, (None, "", False))
        if (opened := _OPENED.search(text)) is not None:
            # The path as the assistant wrote it, if it did.
            full = "" if opened["path"] == "n/a" else opened["path"]
            self._open = next((path for path in self._paths if full.endswith(f"/{path}")), full)
        if written and (failed or _UNMADE.search(text) is not None):
            yield Saying((seq,), f"{written} (edit failed)", "call", 1.0, "files")
        elif written:
            self._open = written
        text = _CHROME.sub("", text).strip()
        has_fields = (found := parsed(text)) is not text
        said = "\n".join(_fields(found)) if has_fields else text
        is_short = 0 < len(said) <= _SHORT_RESULT and "\n" not in said
        if call is not None and not failed and is_short and not is_error(said):
            yield call._replace(text=f"{call.text}: {said}", seqs=(*call.seqs, seq), weight=1.0)
            return
        if call is not None:
            yield call
        first = said.splitlines()[:_MOST_LINES] if is_file else []
        is_source = 3 * sum(is_code(line) is not None for line in first) > len(first)
        kind = "error" if failed else "file" if is_source else "fields" if has_fields else "result"
        yield Saying((seq,), said, kind, 1.0 if failed else _RESULT)


def _is_output(payload: Payload) -> bool:
    content = payload.get("content")
    return payload.get("role") == "user" and isinstance(content, str) and _OUTPUT.search(content) is not None


def _sections(text: str) -> tuple[str, str]:
    """Divides a task into what is wanted and, below headings such as "INSTRUCTIONS:", how to work."""
    text = _CHROME.sub("", text)
    wanted: list[str] = []
    how: list[str] = []
    last, is_how = 0, False
    for heading in [*_HEADING.finditer(prose(text)), None]:
        end = len(text) if heading is None else heading.start()
        (how if is_how else wanted).append(text[last:end])
        if heading is not None:
            last, is_how = end, _HOW.search(heading["title"].upper()) is not None
    return ("".join(wanted), "".join(how)) if "".join(wanted).strip() else ("".join(how), "")


def _inputs(call: ToolCall) -> str:
    """Returns a call with its inputs as they are said, such as `find(name: a.py)`."""
    given = call.given if isinstance(call.given, dict) else {"": call.given}
    said = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in given.items()}
    return f"{call.name}({', '.join(f'{name}: {value}'.removeprefix(': ') for name, value in said.items())})"


def parsed(text: Any) -> Any:
    """Parses a JSON object or list, with its numbers as they are written. Returns any other text unchanged."""
    if not isinstance(text, str) or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return text


def _fields(value: Any, name: str = "") -> Iterator[str]:
    """Yields a line for each object in a JSON value, with the names of its fields: these say what the values are."""
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        name, one = waiting.pop()
        inside = [*one.items()] if isinstance(one, dict) else [(name, item) for item in one]
        plain = [(field, item) for field, item in inside if not isinstance(item, dict | list)]
        shown = [
            f"{field}: {item if isinstance(item, str) else json.dumps(item)}" if isinstance(one, dict) else str(item)
            for field, item in plain
            if item not in ("", None)
        ]
        if shown:
            yield (f"{name}: " if name else "") + ", ".join(shown)
        waiting += [(str(field), item) for field, item in reversed(inside) if isinstance(item, dict | list)]
