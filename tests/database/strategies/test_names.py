"""The names of callbacks, strategies and summarizers in records: stable, and the same for all objects of a class."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from support.faces import Face, Faces

from compaction_store import CompactionContext, Summary, TokenBudget
from compaction_store.checks import Check
from compaction_store.compaction.callbacks import callback_name
from compaction_store.errors import InvalidCallback
from compaction_store.models import Element
from compaction_store.strategies import (
    AssistantRuns,
    ClearToolResults,
    Ladder,
    Pipeline,
    SlidingWindow,
    SummaryTree,
    compress_context,
    over,
    pin,
)
from compaction_store.summarizers import FallbackSummarizer, StateSummary

BUDGET = TokenBudget(6000)


class Model:
    """A summarizer with the default repr, which has a memory address."""

    def __call__(self, _elements: Any, *_more: object) -> str:
        return "They talked."

    def method(self, _elements: Any) -> str:
        return "They talked."


class Named(Model):
    def __init__(self) -> None:
        self.name = f"model {self!r}"


@dataclass
class Wrapped:
    model: Model

    def __call__(self, elements: Sequence[Element]) -> str:
        return self.model(elements)


class Strict(Check):
    def __repr__(self) -> str:
        return object.__repr__(self)

    def probes(self, span: Any, text: str) -> Any:
        return span.probes(text, "standing_order")


def plain(elements: Sequence[Element]) -> str:
    return Model()(elements)


SUMMARIZERS: dict[str, Callable[[], Any]] = {
    "object": Model, "own name": Named, "dataclass": lambda: Wrapped(Model()), "method": lambda: Model().method,
    "partial": lambda: partial(Model(), ()), "partial of a partial": lambda: partial(partial(plain)),
    "lambda": lambda: lambda _: "They talked.", "function": lambda: plain, "text": lambda: Summary("They talked."),
    "fallback": lambda: FallbackSummarizer(Model(), Named()), "state": StateSummary,
}  # fmt: skip
STRATEGIES: dict[str, Callable[[Any], Any]] = {
    "ladder": lambda s: Ladder(s, keep_recent=4, checks=[Strict()]),
    "window": lambda s: SlidingWindow(s, retain=2, threshold=lambda window: window.tokens > 100),
    "runs": lambda s: AssistantRuns(s, min_length=1, when=over(messages=3) & Model().method),
    "tree": lambda s: SummaryTree(s, 300, keep_recent=2),
    "pipeline": lambda s: Pipeline(ClearToolResults(), Model(), SlidingWindow(s), pin=Model().method),
    "pinned": lambda s: pin(Ladder(s), Model(), partial(Model(), ())),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("summarizer", SUMMARIZERS)
def test_two_objects_of_a_class_have_one_name_without_an_address(strategy: str, summarizer: str) -> None:
    names = {callback_name(STRATEGIES[strategy](SUMMARIZERS[summarizer]())) for _ in range(3)}
    assert len(names) == 1
    [name] = names
    assert "0x" not in name
    assert " at " not in name


def test_a_ladder_is_named_after_the_class_of_its_summarizer() -> None:
    assert Ladder(Model()).name == f"Ladder(summarize={__name__}.Model)"
    assert Ladder(StateSummary()).name == "Ladder(summarize=StateSummary)"
    assert Ladder(Summary("a secret text")).name == "Ladder(summarize=Summary)"


def test_no_record_has_an_address(faces: Faces, store: Face) -> None:
    def talk() -> list[dict[str, Any]]:
        text = "word " * 200
        return [{"role": role, "content": text} for _ in range(20) for role in ("user", "assistant")]

    class Callback:
        def __call__(self, ctx: CompactionContext) -> Any:
            return ctx.compact(2, 9, Model())

        async def later(self, ctx: CompactionContext) -> None:
            await ctx.compact(2, 9, Model())

    callback: Any = Callback()
    callback = callback if faces.kind == "sync" else callback.later
    given = [Ladder(Model()), SlidingWindow(Named()), Ladder(partial(Model(), ())), callback, partial(callback)]
    for place, one in enumerate(given):
        store.append(f"t{place}", talk())
        run = store.compact(f"t{place}", one, budget=BUDGET)
        assert run.applied
        for record in run:
            assert "0x" not in json.dumps(record.as_dict(), default=str)


@pytest.mark.parametrize("made", [SlidingWindow, AssistantRuns, SummaryTree, Ladder])
def test_a_text_is_no_summarizer(made: Any) -> None:
    with pytest.raises(
        InvalidCallback, match=r"AnthropicSummarizer\(client, model=…\).* not text.*Summary\(text\)"
    ) as e:
        made("gpt-5")
    assert "gpt-5" not in str(e.value)
    for wrong, named in ((StateSummary, "class StateSummary"), (5, "int"), (None, "NoneType")):
        if wrong is None and made is Ladder:
            continue
        with pytest.raises(InvalidCallback, match=named):
            made(wrong)
    made(Summary("Notes."))


def test_a_text_is_no_client_either() -> None:
    with pytest.raises(InvalidCallback, match="not str"):
        compress_context([{"role": "user", "content": "Hello."}], client="gpt-5")
