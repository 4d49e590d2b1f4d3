"""Carries the living state of an agent across a fold, as lines below the summary: lists, users' words and files.

The lines are part of the summary's text, and are made only from the elements that the summary replaces. So they are
recorded, sealed, verified and erased like any other part of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compaction_store.arguments import number, other
from compaction_store.compaction.asks import Summarize
from compaction_store.compaction.summary_calls import CallRecord
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.messages import framing
from compaction_store.models import Element, Summary
from compaction_store.models.state import without_carried
from compaction_store.waiting import Call, Work, begin, drive_async, is_async

if TYPE_CHECKING:
    from compaction_store.probes.living import Line

# The lines take at most this share of the room of a summary, as a divisor.
_SHARE = 2


@dataclass(frozen=True)
class Carry:
    """The parts of a span that its summary keeps word for word. No model is called for them.

    `latest` names tools that keep a list or a plan; the newest call of each is kept, unless a newer one stays in the
    view. By default these are the tools of known agents, such as `TodoWrite` and `update_plan`. `user_tokens` is the
    maximum number of tokens of the users' messages, of which the newest are kept. With `files`, the files that calls
    read and wrote are named. Together the lines take at most half of the summary's room.
    """

    latest: Sequence[str] | None = None
    user_tokens: int = 2000
    files: bool = True

    def __post_init__(self) -> None:
        names = self.latest
        if names is not None:
            kept = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else None
            if kept is None or not all(isinstance(name, str) and name for name in kept):
                raise InvalidInput(f"latest must be names of tools{other(names)}")
            object.__setattr__(self, "latest", kept)
        number(self.user_tokens, "user_tokens", least=0)
        if not isinstance(self.files, bool):
            raise InvalidInput(f"files must be True or False{other(self.files)}")


def _lines_of(carry: Carry, request: Request, room: int | None) -> list[Line]:
    """Returns the lines of a request that fit the room, the most important first."""
    # The probes are a tenth of what a store needs, and few stores carry anything.
    from compaction_store.probes import living  # noqa: PLC0415

    latest = living.LATEST if carry.latest is None else carry.latest
    found = living.living(request.elements, latest)
    newer = living.living(request.unquoted_after or (), latest).lists
    chosen: list[Line] = []
    used = 0

    def takes(line: Line, most: int | None) -> bool:
        # Lines are counted alone, which gives at most a token less than together.
        nonlocal used
        cost = request.count(str(line)) + 1
        if (most is not None and cost > most) or (room is not None and used + cost > room):
            return False
        chosen.append(line)
        used += cost
        return True

    if room is not None:
        room -= request.count(living.block([living.Line(1, "user", "-")]))
    for line in found.lists.values():
        if line.who in latest and line.who not in newer:
            takes(line, None)
    left = carry.user_tokens
    for line in reversed(found.users):
        before = used
        if not takes(line, left):
            break  # An older one may be out of date without it.
        left -= used - before
    for line in reversed(found.files.values() if carry.files else ()):
        takes(line, None)
    return chosen


@dataclass(frozen=True, eq=False)
class Carrier:
    """A summarizer that writes the lines of a `Carry` below the summaries of another summarizer."""

    summarize: Summarize
    carry: Carry

    @property
    def needs_async(self) -> bool:
        return is_async(self.summarize)

    def __getattr__(self, name: str) -> Any:
        # The name, the model and the settings in records are those of the summarizer.
        if name == "summarize":
            raise AttributeError(name)
        return getattr(self.summarize, name)

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        work = self._work(Request.of(elements))
        return drive_async(work) if self.needs_async else begin(work)

    def _work(self, request: Request) -> Work[Summary]:
        from compaction_store.probes import living  # noqa: PLC0415

        budget = request.budget
        lines = _lines_of(self.carry, request, None if budget is None else budget // _SHARE)
        plain = replace(request, elements=tuple(map(_without_lines, request.elements)))
        if budget is not None and lines:
            plain = replace(plain, budget=max(1, budget - request.count(f"\n{living.block(lines)}")))
        if plain.repair is not None:
            plain = replace(plain, repair=replace(plain.repair, text=without_carried(plain.repair.text)))
        call = CallRecord(self.summarize)
        result = yield Call(self.summarize, plain)
        if not isinstance(result, str | Summary):
            raise InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
        summary = call.summary(result)
        if summary.replacement is not None or not summary.text.strip():
            return summary
        # A summary that is longer than its room leaves less for the lines, and must not be cut because of them.
        text = _joined(summary.text, lines)
        while lines and budget is not None and request.count(text) > budget:
            lines.pop()
            text = _joined(summary.text, lines)
        if not lines:
            return summary
        return replace(summary, text=text, coverage={**(summary.coverage or {}), "carried": len(lines)})


def _joined(text: str, lines: Sequence[Line]) -> str:
    from compaction_store.probes import living  # noqa: PLC0415

    return "\n".join([text.rstrip(), living.block(lines)]) if lines else text


def _without_lines(element: Element) -> Element:
    """Returns an earlier summary without its lines, which are read apart from it."""
    return element._replace(messages=tuple(_plain(element))) if element.is_summary else element


def _plain(element: Element) -> Iterator[Any]:
    for payload in element.messages:
        found = framing.parts_of(payload)
        rest = "" if found is None else without_carried(f"\n{found.notes}").lstrip("\n")
        if found is None or rest == found.notes:
            yield payload
        else:
            role: framing.Role = "assistant" if payload.get("role") == "assistant" else "user"
            yield framing.frame(rest, element.seq, element.end_seq, role, orders=found.orders)
