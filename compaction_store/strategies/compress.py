"""The ladder without a store: shortens a plain list of messages.

The caller's messages are never altered. Messages that do not change are the same objects in the result.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from compaction_store.compaction.callbacks import run_steps
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.planner import Planner
from compaction_store.errors import InvalidCallback, InvalidInput, NotSmaller, SummaryTooLong
from compaction_store.jsonable import AsDict
from compaction_store.messages.encoding import encode
from compaction_store.messages.parts import Path, walk
from compaction_store.models import Payload, Summary
from compaction_store.models.messages import is_erased
from compaction_store.rendering.blocks import OF_NO_CALL
from compaction_store.rendering.view import View
from compaction_store.strategies import base
from compaction_store.strategies.ladder import Ladder
from compaction_store.strategies.outline import Layout, elements_of
from compaction_store.tokens import Counter, chosen
from compaction_store.waiting import Work, drive, drive_async

_TOO_LONG = {NotSmaller.__name__, SummaryTooLong.__name__}


@dataclass(frozen=True, slots=True)
class CompressResult(AsDict):
    """The result of `compress_context`.

    `error` is set if the result does not fit or a summary failed. `summary_coverage` is the share of the old messages'
    tokens that was summarized, or None if there was nothing to summarize or no summarizer. `tail_tokens` is the number
    of tokens of the recent messages before anything was cut. `results_left_out` is the number of tool results without a
    call. APIs refuse such results, so a note replaces them; `original_token_count` includes the notes.
    """

    messages: list[Payload] = field(repr=False)
    token_count: int
    was_compacted: bool
    error: str | None = None
    original_token_count: int = 0
    messages_summarized: int = 0
    messages_dropped: int = 0
    summary_coverage: float | None = None
    summarizer_available: bool = False
    tail_tokens: int = 0
    results_left_out: int = 0


def compress_context(
    messages: Iterable[Any],
    target_tokens: int = 120_000,
    *,
    model: str | None = None,
    client: Any = None,
    keep_recent: int = 15,
    reserve: int = 2048,
    start_cap: int = 8192,
    floor_cap: int = 128,
    counter: Counter | Callable[[Payload], int] | None = None,
    deadline: float | None = None,
    **options: Any,
) -> CompressResult:
    """Fits messages into at most `target_tokens` minus `reserve`, with the steps of `Ladder`.

    `client` is a summarizer, or an Anthropic or OpenAI client that summarizes with `model`; without it, nothing is
    summarized. The default of `model` is a small model of the provider. `deadline` is the number of seconds for all
    requests of one summary, 600 by default; after it, the list is shortened without that summary. An async client or
    summarizer needs `compress_context_async`. The other options are those of `Ladder`.
    """
    job = _Job(
        messages, target_tokens - reserve, _summarizer(client, model, deadline), counter, awaits=False,
        keep_recent=keep_recent, start_cap=start_cap, floor_cap=floor_cap, **options,
    )  # fmt: skip
    if job.ladder.needs_async:
        raise InvalidCallback(
            "the summarizer of compress_context must be synchronous; for an async one use compress_context_async"
        )
    return drive(job.work())


async def compress_context_async(
    messages: Iterable[Any],
    target_tokens: int = 120_000,
    *,
    model: str | None = None,
    client: Any = None,
    keep_recent: int = 15,
    reserve: int = 2048,
    start_cap: int = 8192,
    floor_cap: int = 128,
    counter: Counter | Callable[[Payload], int] | None = None,
    deadline: float | None = None,
    **options: Any,
) -> CompressResult:
    """Does the same as `compress_context`, with an async client or summarizer."""
    job = _Job(
        messages, target_tokens - reserve, _summarizer(client, model, deadline), counter, awaits=True,
        keep_recent=keep_recent, start_cap=start_cap, floor_cap=floor_cap, **options,
    )  # fmt: skip
    return await drive_async(job.work())


# The default models are small and cheap and have a large context window.
_MODELS = {"anthropic": "claude-haiku-4-5", "openai": "gpt-4o-mini"}


def _summarizer(client: Any, model: str | None, deadline: float | None) -> base.SummarySource | None:
    """Makes a summarizer from a client. Returns a summarizer or None unchanged."""
    if client is None or callable(client) or isinstance(client, Summary):
        if deadline is not None:
            raise InvalidInput("deadline must be None without a client: a summarizer has its own deadline")
        return cast("base.SummarySource | None", client)
    # Import these here, because few calls need them.
    from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer  # noqa: PLC0415
    from compaction_store.summarizers.openai import is_client  # noqa: PLC0415

    options: dict[str, Any] = {} if deadline is None else {"deadline": deadline}
    if is_client(client):
        return OpenAISummarizer(client, model=_MODELS["openai"] if model is None else model, **options)
    if hasattr(client, "messages"):
        return AnthropicSummarizer(client, model=_MODELS["anthropic"] if model is None else model, **options)
    raise InvalidCallback(
        f"client must be an Anthropic client, an OpenAI client or a summarizer, not {type(client).__name__}"
    )


class _Job:
    """One call of `compress_context`."""

    def __init__(
        self,
        messages: Iterable[Any],
        limit: int,
        summarize: base.SummarySource | None,
        counter: Counter | Callable[[Payload], int] | None,
        *,
        awaits: bool,
        **options: Any,
    ) -> None:
        counting = chosen(counter)
        self.limit = limit
        self.ladder = Ladder(summarize, reserve=0, **options)
        given = [encode(message) for message in messages]
        whole, self.left_out = _without_orphans([e.payload for e in given])
        encoded = given if not self.left_out else [encode(payload) for payload in whole]
        sizes = iter(encoded)
        self.elements = tuple(
            elements_of((e.payload for e in encoded), lambda payload: counting.tokens(payload, next(sizes).size))
        )
        self._planner = Planner(View("", 0, self.elements), counter=counting, awaits=awaits, leaves_lines=False)
        self._ctx = CompactionContext(self._planner)
        self.old = 0
        if self.elements and self.ladder.summarize is not None and self._over:
            for low, high in self.ladder.old(Layout(self.elements, links=self._ctx.links)):
                self.old += sum(element.tokens for element in self.elements[low : high + 1])

    @property
    def _over(self) -> bool:
        return sum(element.tokens for element in self.elements) > self.limit

    def work(self) -> Work[CompressResult]:
        if self.elements:
            yield from run_steps(self._planner, self.ladder.steps_to(self._ctx, self.limit))
        return self._result()

    def _result(self) -> CompressResult:
        if not self.elements:
            return CompressResult([], 0, was_compacted=False, summarizer_available=self.ladder.summarize is not None)
        ctx = self._ctx
        done = [attempt for attempt in self._planner.attempts if attempt.outcome == "applied"]
        messages = [message for message in ctx.result_messages if not is_erased(message)]
        recent = self.ladder.recent(self.elements)
        covered = sum(attempt.tokens_before or 0 for attempt in done if attempt.kind == "summary")
        return CompressResult(
            messages,
            ctx.total_tokens,
            was_compacted=bool(done),
            error=self._error(),
            original_token_count=sum(element.tokens for element in self.elements),
            messages_summarized=sum(_length(attempt) for attempt in done if attempt.kind == "summary"),
            messages_dropped=sum(_length(attempt) for attempt in done if attempt.kind == "removal"),
            summary_coverage=covered / self.old if self.old else None,
            summarizer_available=self.ladder.summarize is not None,
            tail_tokens=sum(element.tokens for element in self.elements[recent:]),
            results_left_out=self.left_out,
        )

    def _error(self) -> str | None:
        """Returns a description, without content, of failed summaries and a missed target."""
        problems = [
            f"a summary failed: {attempt.error['type']}, {attempt.error['text']}"
            for attempt in self._planner.attempts
            if attempt.error is not None and attempt.kind == "summary" and attempt.error["type"] not in _TOO_LONG
        ]
        if self._ctx.total_tokens > self.limit:
            problems.append(f"the result must have at most {self.limit} tokens, but has {self._ctx.total_tokens}")
        return "; ".join(dict.fromkeys(problems)) or None


def _length(attempt: Any) -> int:
    return attempt.end_seq - attempt.start_seq + 1  # type: ignore[no-any-return]


def _without_orphans(messages: Sequence[Payload]) -> tuple[list[Payload], int]:
    """Puts a note in place of each tool result without a call. Returns their number. Other messages stay the same."""
    waiting: Counts[tuple[bool, str]] = Counts()
    whole: list[Payload] = []
    left_out = 0
    noted = False
    for message in messages:
        kept, orphans = _without_own_orphans(message, waiting)
        left_out += orphans
        # A note for whole messages comes after all adjacent results, because nothing may come between a call and its
        # result.
        if noted and kept is not None and not any(kind.step == "result" for _, kind, _ in walk(kept)):
            whole.append({"role": "user", "content": OF_NO_CALL})
            noted = False
        if kept is None:
            noted = True
        else:
            whole.append(kept)
    if noted:
        whole.append({"role": "user", "content": OF_NO_CALL})
    return whole, left_out


def _without_own_orphans(message: Payload, waiting: Counts[tuple[bool, str]]) -> tuple[Payload | None, int]:
    """Returns a message without its orphaned results, and their number. A message that is one becomes None."""
    orphans: set[Path] = set()
    for path, kind, part in walk(message):
        if kind.step not in ("call", "result") or (name := kind.id_of(part)) is None:
            continue
        key = kind.name == "function", name
        if kind.step == "call":
            waiting[key] += 1
        elif waiting[key]:
            waiting[key] -= 1
        else:
            orphans.add(path)
    if not orphans or () in orphans:
        return (None if orphans else message), len(orphans)
    kept = [part for place, part in enumerate(message["content"]) if ("content", place) not in orphans]
    # The note is last, because results must come first in their turn.
    return {**message, "content": [*kept, {"type": "text", "text": OF_NO_CALL}]}, len(orphans)
