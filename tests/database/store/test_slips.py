"""Mistakes in arguments are refused on both faces, before anything is sent, in words that say what must be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store import Summary
from compaction_store.errors import InvalidCallback, MessageNotFound
from compaction_store.strategies import Pipeline, SlidingWindow
from compaction_store.summarizers import FallbackSummarizer, StateSummary

# Untyped, as for a caller without a type checker.
Window: Any = SlidingWindow
Fallback: Any = FallbackSummarizer
Several: Any = Pipeline
SECRET = "marmalade-7741"
ROUND = [{"role": "user", "content": "x " * 50}, {"role": "assistant", "content": SECRET * 20}]


class Notes(StateSummary):
    """A summarizer, which no name tells."""


class RunSummarizer:
    """A callback that is no summarizer, whatever its name says."""

    def __call__(self, ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 4, "They talked.")


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", ROUND * 3)
    return store


SLIPS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a request's messages as the view": (lambda s: s.append("t", ROUND, view=ROUND), "view must be a View"),
    "a request as the view": (lambda s: s.append("t", ROUND, view={"messages": ROUND}), "view must be a View"),
    "a window as the budget": (lambda s: s.fit("t", 200_000), "budget must be a TokenBudget, not int"),
    "a list as the budget": (lambda s: s.compact("t", budget=[1]), "budget must be a TokenBudget, not list"),
    "a text as the budget": (lambda s: s.plan("t", budget=SECRET), "budget must be a TokenBudget, not str"),
    "a number as the budget": (lambda s: list(s.due(5)), "budget must be a TokenBudget, not int"),
    "a budget as the callback": (
        lambda s: s.compact("t", cs.TokenBudget(100)),
        "not TokenBudget: pass the budget as budget=",
    ),
    "a name as the callback": (lambda s: s.compact("t", SECRET), "callback must be .* not str"),
    "a list of callbacks": (lambda s: s.compact("t", [print]), "not list: pass several callbacks one after"),
    "a class as the callback": (lambda s: s.on_compact(SlidingWindow), "callback must be .* the class SlidingWindow"),
    "a summarizer to register": (
        lambda s: s.on_compact(StateSummary()),
        "not the summarizer StateSummary: pass the summarizer to",
    ),
    "summarizers to register": (
        lambda s: s.compact("t", FallbackSummarizer(Notes())),
        "not the summarizer FallbackSummarizer: pass the summarizer to",
    ),
    "a summarizer with another name": (lambda s: s.on_compact(Notes()), "not the summarizer Notes: pass"),
    "nothing to register": (lambda s: s.on_compact(None), "callback must be .* not NoneType"),
    "two callbacks to register": (lambda s: s.on_compact(print, print), "on_compact must get one callback, not 2"),
    "a callback without an argument": (lambda s: s.on_compact(lambda: None), "must take one argument, the context"),
    "a callback with two arguments": (lambda s: s.compact("t", lambda _a, _b: None), "must take one argument"),
    "a name to register": (lambda s: s.on_compact(SECRET), "callback must be .* not str"),
    "a number as the record": (lambda s: list(s.audit.originals(1)), "compaction must be a Compaction, not int"),
    "a number as the tree's root": (lambda s: s.audit.tree(1), "compaction must be a Compaction, not int"),
    "a number to go on behind": (lambda s: list(s.compactions(after=1)), "after must be a Compaction, not int"),
    "a text as the time": (lambda s: list(s.compactions(since=SECRET)), "since must be a datetime .* not str"),
    "a time without its zone": (
        lambda s: s.custody.retain("t", "2031-01-01", reason="law"),
        "until must be a datetime",
    ),
    "a list of kinds": (lambda s: list(s.compactions(kind=["summary"])), "kind must be one of .* not list"),
    "a list in the outcomes": (
        lambda s: list(s.compactions(outcome=[["failed"]])),
        "outcome must be one of .* not list",
    ),
    "no outcomes": (lambda s: list(s.compactions(outcome=[])), "outcome must "),
    "a message as the seq": (
        lambda s: s.audit.explain("t", s.message("t", 1)),
        "seq must be an integer >= 1, not Message",
    ),
    "a text as the seq": (lambda s: s.message("t", SECRET), "seq must be an integer >= 1, not str"),
    "nothing as the seq": (lambda s: s.custody.redact("t", None, reason="law"), "seqs must be .* not NoneType"),
    "a number that is no seq": (lambda s: s.message("t", 0), "seq must be an integer >= 1, not 0"),
    "no reason": (lambda s: s.custody.redact("t", 1, reason=None), "reason must be a non-empty string"),
    "an object as the actor": (lambda s: s.compact("t", actor=s), "actor must be text"),
    "a path as the log": (lambda s: s.audit.verify("t", level="checkpoint", checkpoints="x"), "checkpoints must be a"),
    "a word as the progress": (lambda s: s.audit.verify("t", progress=SECRET), "progress must be a callable, not str"),
    "a path as the bundle": (lambda s: s.load.bundle(SECRET), "a bundle must be given as its lines"),
    "nothing as the metadata": (lambda s: s.set_metadata("t", None), "^metadata must be one JSON object, not NoneType"),
    "a text as the metadata": (lambda s: s.set_metadata("t", SECRET), "^metadata must be one JSON object, not str"),
    "a seq behind the end": (lambda s: s.seen_by("t", 99), "no seq 99: the last seq is 6"),
    "a text as the tail": (
        lambda _: Window(Summary("x"), retain="8"),
        "retain must be a number .* or a fraction .* str",
    ),
    "a number as the summarizer": (lambda _: Window(5), "summarize must be .* not int"),
    "a summarizer's class": (lambda _: Window(StateSummary), "summarize must be .* not the class"),
    "a list of summarizers": (lambda _: Fallback([print]), "a summarizer must be a callable, not list"),
    "a class to fall back on": (lambda _: Fallback(StateSummary), "must be .* not the class"),
    "a list of strategies": (
        lambda _: Several([SlidingWindow(Summary("x"))]),
        "a pipeline must consist of strategies and callbacks, not of list",
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_the_error_for_a_slip_says_what_must_be_given(thread: Face, name: str) -> None:
    call, told = SLIPS[name]
    with pytest.raises((cs.InvalidInput, MessageNotFound), match=told) as caught:
        call(thread)
    assert SECRET not in repr(caught.value)
    assert (thread.thread("t").last_pos, list(thread.compactions("t"))) == (6, [])


def test_a_name_makes_no_summarizer_of_a_callback(thread: Face) -> None:
    [record] = thread.compact("t", RunSummarizer())
    assert (record.outcome, record.end_seq) == ("applied", 4)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (lambda ctx: ctx.compact(1, 2, 5), "a summary must be text, a Summary or a callable, not int"),
        (lambda ctx: ctx.compact(1, 2, StateSummary), "not the class StateSummary"),
        (lambda ctx: ctx.compact(1, 2, "short", allow=5), "allow must be among"),
        (lambda ctx: ctx.compact(1, 2, "short", reason=5), "reason must be text, not 5"),
        (lambda ctx: ctx.compact(1, 2, lambda _: 5), "a summarizer must return text or a Summary, not int"),
    ],
    ids=["number", "class", "allow", "reason", "returned"],
)
def test_a_slip_in_a_plan_is_on_record_in_the_same_words(thread: Face, plan: Any, told: str) -> None:
    async def waits(ctx: Any) -> None:
        await plan(ctx)

    run = thread.compact("t", waits if thread.runner else plan)
    assert isinstance(run.errors[0], cs.InvalidInput)
    assert told in str(run.errors[0])
    assert told in run[0].error["text"]


def test_what_cannot_be_a_callback_is_a_type_error_too(thread: Face) -> None:
    with pytest.raises(TypeError) as caught:
        thread.on_compact("x")
    assert isinstance(caught.value, cs.CompactionStoreError)


def test_an_async_callback_on_a_store_is_one_of_our_errors(url: str) -> None:
    async def waits(_ctx: Any) -> None:
        """Never run."""

    with cs.Store.open(url) as store, pytest.raises(InvalidCallback, match="must be synchronous"):
        store.on_compact(waits)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pool_size": "4"}, "pool_size must be an integer >= 1, not str"),
        ({"pool_size": 0}, "pool_size must be an integer >= 1, not 0"),
        ({"connect_timeout": "10"}, "connect_timeout must be a number of seconds"),
        ({"deadline": -1}, "deadline must be a number of seconds >= 0, not -1"),
        ({"engine": "postgresql://"}, "engine must be an? (Async)?Engine, not str"),
        ({"actor": 3}, "actor must be text"),
        ({"telemetry": True}, "telemetry must be a Telemetry"),
        ({"counter": "o200k"}, "counter must be a Counter"),
    ],
    ids=str,
)
def test_a_store_is_not_opened_with_what_it_cannot_use(
    faces: Faces, url: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(cs.InvalidInput, match=told):
        faces.open(url, **options)
