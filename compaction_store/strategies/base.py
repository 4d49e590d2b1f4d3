"""The base classes of the strategies, and their options, which are fields that check and keep the given value.

The `steps` of a strategy is a generator, which yields each span to compact and is sent the outcome. It does no I/O.

An option is written once: as a field with a default and a check. The name of a strategy in records is made from its
fields.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self, cast

from compaction_store.arguments import name_of, number, other, without_addresses
from compaction_store.compaction import summary_request, summary_room
from compaction_store.compaction.asks import Ask, Planned, Steps, Summarize, check_role
from compaction_store.compaction.callbacks import callback_name, run_steps
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.compaction.planner import Planner
from compaction_store.compaction.summary_calls import CallRecord
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import InvalidCallback, InvalidInput, NoProgress, PinnedInside
from compaction_store.messages import framing
from compaction_store.messages.framing import Role
from compaction_store.models import Element, Summary
from compaction_store.models.state import without_carried
from compaction_store.strategies.outline import PinOption, Pins
from compaction_store.strategies.thresholds import Threshold, as_threshold, sized
from compaction_store.waiting import Call, Work, begin, drive_async, is_async

if TYPE_CHECKING:
    from compaction_store.probes.living import Line

SummarySource = Summary | Summarize
Attempted = Generator[Ask, "Exception | None", "Exception | None"]
# The lines of a Carry take at most this share of the room of a summary, as a divisor.
_SHARE = 2


# ---- the living state of an agent, carried across a fold as lines below the summary: lists, users' words and files
# The lines are part of the summary's text, so they are recorded, sealed, verified and erased like the rest of it.


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
        # The lines of earlier summaries are read apart from them.
        bare = (e._replace(messages=tuple(_plain(e))) if e.is_summary else e for e in request.elements)
        plain = replace(request, elements=tuple(bare))
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


def _plain(element: Element) -> Iterator[Any]:
    for payload in element.messages:
        found = framing.parts_of(payload)
        rest = "" if found is None else without_carried(f"\n{found.notes}").lstrip("\n")
        if found is None or rest == found.notes:
            yield payload
        else:
            role: framing.Role = "assistant" if payload.get("role") == "assistant" else "user"
            yield framing.frame(rest, element.seq, element.end_seq, role, orders=found.orders)


class BaseStrategy(ABC):
    """The base class of the strategies.

    A callback can call a strategy with the context that it got; an async callback must await that call. A strategy with
    an async summarizer needs an AsyncStore.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the strategy in the `callback` field of records."""

    @property
    def needs_async(self) -> bool:
        return False

    @abstractmethod
    def steps(self, ctx: CompactionContext) -> Steps: ...

    def __call__(self, ctx: CompactionContext) -> Planned:
        planner = planner_of(ctx)
        return planner.run(self._work(planner, ctx))

    def _work(self, planner: Planner, ctx: CompactionContext) -> Work[None]:
        caller = planner.rename(callback_name(self))
        yield from run_steps(planner, self.steps(ctx))
        planner.rename(caller)

    def __repr__(self) -> str:
        return self.name


def attempt(ctx: CompactionContext, ask: Ask) -> Attempted:
    """Yields the `Ask` for a span. Returns None if the compaction of the span is planned, and otherwise an error.

    An error is returned if the attempt was recorded, if an earlier run has just tried the span in vain, or if a pin is
    inside the span. Any other error is raised, because it shows a mistake in the use of the strategy.
    """
    attempts = planner_of(ctx).attempts
    tried = len(attempts)
    error = yield ask
    if error is not None and len(attempts) == tried and not isinstance(error, NoProgress | PinnedInside):
        raise error
    return error


TOO_LITTLE = "a summary would save too little"
# The smallest share of a span's tokens that a summary must save to be worth a model call and a lost prompt cache.
MIN_SAVING = 0.1


def worth(ctx: CompactionContext, tokens: int, summarize: SummarySource, min_saving: float) -> bool:
    """Returns whether the shortest summary of a span with that many tokens would save enough."""
    return tokens - least_summary(ctx, summarize) > summary_room.least_saving(min_saving, tokens)


def least_summary(ctx: CompactionContext, summarize: SummarySource) -> int:
    """Returns a lower bound for the tokens of a summary in its frame, whose delimiters are made from hashes."""
    if isinstance(summarize, Summary) and summarize.replacement:
        return 0
    return max(0, ctx.count([framing.frame("-", 1, 1)]) - summary_room.FRAMES_DIFFER_BY)


def option(default: Any = MISSING, *, keep: Callable[[Any, str], Any], shown: bool = True) -> Any:
    """A field of a strategy, kept as `keep` returns it. The strategy's name has the value unless `shown` is False."""
    return field(default=default, metadata={"keep": keep, "shown": shown})


def a_summarizer(summarize: object, name: str) -> object:
    """Refuses an object that cannot summarize. A text is refused too, because it is often the name of a model."""
    if isinstance(summarize, str):
        raise InvalidCallback(
            f"{name} must be a summarizer such as StateSummary() or AnthropicSummarizer(client, model=…), "
            "not text; for the same text in place of every span, pass Summary(text)"
        )
    if not isinstance(summarize, Summary):
        summary_request.check_summarizer(summarize, name, choices="a summarizer or a Summary")
    return summarize


def a_summarizer_or_none(summarize: object, name: str) -> object:
    return None if summarize is None else a_summarizer(summarize, name)


def a_saving(value: Any, name: str) -> float:
    """Checks an option that is a number of tokens if it is an integer, or a share of the tokens if it is a float."""
    if type(value) not in (int, float) or value < 0 or (type(value) is float and value >= 1):
        raise InvalidInput(f"{name} must be an integer >= 0 in tokens, or a float from 0.0 to below 1.0{other(value)}")
    return cast("float", value)


def a_count(least: int, *, optional: bool = False) -> Callable[[Any, str], Any]:
    def keep(value: Any, name: str) -> Any:
        number(value, name, least=least, optional=optional)
        return value

    return keep


def a_switch(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False{other(value)}")
    return value


def a_threshold(value: Any, _name: str) -> Threshold | None:
    return None if value is None else as_threshold(value)


def a_size(value: Any, name: str) -> Threshold | None:
    found = a_threshold(value, name)
    return None if found is None else sized(found)


def _a_carry(value: Any, name: str) -> Carry | None:
    if not isinstance(value, Carry | bool | None):
        raise InvalidInput(f"{name} must be a Carry, True or None{other(value)}")
    return (Carry() if value else None) if isinstance(value, bool) else value


def _a_role(value: Any, _name: str) -> Any:
    check_role(value)
    return value


class _Options(BaseStrategy):
    """A strategy whose options are its fields."""

    def __post_init__(self) -> None:
        for one in fields(cast("Any", self)):
            object.__setattr__(self, one.name, _kept(one, getattr(self, one.name)))

    @property
    def name(self) -> str:
        # The options that all strategies have come last.
        own = {
            name for kind in type(self).__mro__ if kind.__module__ != __name__ for name in inspect.get_annotations(kind)
        }
        given = [
            f"{one.name}={_shown(value)}"
            for one in sorted(fields(cast("Any", self)), key=lambda one: one.name not in own)
            if one.metadata["shown"] and (value := getattr(self, one.name)) != _kept(one, one.default)
        ]
        return f"{type(self).__name__}({', '.join(given)})"


def _kept(one: Field[Any], value: Any) -> Any:
    return one.metadata["keep"](value, one.name)


def _shown(value: object) -> str:
    """Returns an option as it is written in a name, which must be the same in every process."""
    if isinstance(value, Summary):
        return "Summary"
    if isinstance(value, frozenset):
        return repr(sorted(value))
    if callable(value) and not isinstance(value, Threshold):
        return name_of(value, "summarizer")
    return without_addresses(repr(value))


@dataclass(frozen=True, eq=False, repr=False)
class Pinnable(_Options):
    """A strategy that leaves pinned messages unchanged."""

    _: KW_ONLY
    pin: PinOption = option((), keep=lambda value, _: Pins(value))

    @property
    def pins(self) -> Pins:
        """The pins of the option `pin`."""
        return cast("Pins", self.pin)

    def with_pins(self, pins: Pins) -> Self:
        """Returns a copy with more pins."""
        return replace(self, pin=self.pins | pins)


@dataclass(frozen=True, eq=False, repr=False)
class Summarizing(Pinnable):
    """A strategy that replaces spans by summaries."""

    summarize: SummarySource = option(keep=a_summarizer, shown=False)
    _: KW_ONLY
    min_saving: float = option(MIN_SAVING, keep=a_saving)
    role: Role = option("user", keep=_a_role)
    checks: Sequence[Check] = option((), keep=lambda value, _: check_checks(value))
    carry: Carry | bool | None = option(None, keep=_a_carry)

    @property
    def needs_async(self) -> bool:
        return is_async(self.summarize)

    def ask(self, start_seq: int, end_seq: int, reason: str, **more: Any) -> Ask:
        """Returns the request to summarize a span."""
        summarize = more.pop("summarize", self.summarize)
        if isinstance(self.carry, Carry) and not isinstance(summarize, Summary):
            summarize = Carrier(summarize, self.carry)
        return Ask(
            start_seq, end_seq, summarize, reason=reason, min_saving=self.min_saving, role=self.role,
            checks=tuple(self.checks), **more,
        )  # fmt: skip
