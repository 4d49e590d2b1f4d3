"""No call does nothing in silence: each does its work, or says what to write instead."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.compactable_thread import chat, span
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store import importers
from compaction_store.errors import NotConfigured
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import FallbackSummarizer

TIGHT = cs.TokenBudget(700)
SECRET = "marmalade-7741"
_LINE = '{"role": "user", "content": "hi"}\n'


def _lazy(store: Any, kind: str, folder: Path) -> dict[str, Any]:
    source = folder / "chat.jsonl"
    source.write_text(_LINE, encoding="utf-8")
    run = importers.import_into if kind == "sync" else importers.import_into_async
    return {
        "verify()": store.audit.verify,
        "load.threads(…)": lambda: store.load.threads([("t", chat(2))]),
        f"{run.__name__}(…)": lambda: run(store, str(source)),
    }


@pytest.mark.parametrize("number", range(3))
def test_a_result_that_nobody_iterates_over_warns_when_it_is_dropped(
    store: Face, faces: Faces, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, call = list(_lazy(store.store, faces.kind, tmp_path).items())[number]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        gc.collect()
    loop = "for" if faces.kind == "sync" else "async for"
    told = f"{name} did nothing, because nobody iterated over its result: write `{loop} … in {name}`"
    assert [(each.category, str(each.message)) for each in caught] == [(ResourceWarning, told)]
    assert [(each.name, each.levelno, each.message) for each in caplog.records] == [
        ("compaction_store", logging.WARNING, told)
    ]
    assert list(store.threads()) == []


@pytest.mark.parametrize("number", range(3))
def test_a_result_has_no_truth_value_and_does_not_warn_once_it_was_used(
    store: Face, faces: Faces, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.append("u", chat(2))
    store.append("v", chat(2))
    calls = list(_lazy(store.store, faces.kind, tmp_path).values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = calls[number]()
        with pytest.raises(TypeError, match="must be iterated over, not used as a truth value"):
            bool(result)
        # One step is enough: a caller may stop early.
        if faces.runner is None:
            next(result)
            result.close()
        else:
            faces.runner.run(_first(result))
        del result
        gc.collect()
    assert caplog.records == []


READ: dict[str, Any] = {
    "threads()": lambda s, _: s.threads(),
    "replay(…)": lambda s, _: s.replay("t"),
    "compactions(…)": lambda s, _: s.compactions("t"),
    "due(…)": lambda s, _: s.due(TIGHT),
    "events(…)": lambda s, _: s.audit.events(),
    "search(…)": lambda s, _: s.audit.search("nothing"),
    "originals(…)": lambda s, record: s.audit.originals(record),
    "tenants()": lambda s, _: s.audit.tenants(),
}


@pytest.mark.parametrize("call", READ)
def test_what_is_read_by_iterating_has_no_truth_value(
    store: Face, faces: Faces, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.append("t", chat())
    [record] = store.compact("t", span(1, 4, "short"))
    loop = "for" if faces.kind == "sync" else "async for"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = READ[call](store.store, record)
        told = f"the result of {call} must be iterated over, not used as a truth value: write `{loop} … in {call}`"
        with pytest.raises(TypeError) as caught:
            bool(result)
        assert str(caught.value) == told
        # A read that nobody looks at is no loss, so it does not warn.
        del result
        gc.collect()
    assert caplog.records == []


async def _first(result: Any) -> None:
    await anext(result)
    await result.aclose()


def test_a_result_that_is_still_held_at_exit_warns(url: str) -> None:
    program = (
        "import sys, compaction_store as cs\n"
        "store = cs.Store.open(sys.argv[1])\n"
        "class Kept: held = store.audit.verify()\n"
        "sys.modules['kept'] = Kept\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stderr.count("verify() did nothing, because nobody iterated over its result") == 1


# ---- callbacks


def test_a_store_of_another_tenant_keeps_the_callbacks(store: Face, faces: Faces) -> None:
    theirs = _face(store.of_tenant("theirs"), faces)
    store.on_compact(span(1, 8, "by the first"))
    theirs.append("t", chat())
    assert theirs.fit("t", TIGHT).run[0].summary_text == "by the first"
    # Registered on the one for a tenant, it runs there only, and after those of the store that it was made from.
    theirs.on_compact(span(9, 10, "by theirs"))
    theirs.append("u", chat())
    store.append("u", chat())
    assert [record.summary_text for record in theirs.compact("u")] == ["by the first", "by theirs"]
    assert [record.summary_text for record in store.compact("u")] == ["by the first"]
    again = _face(theirs.of_tenant("again"), faces)
    again.append("u", chat())
    assert [record.summary_text for record in again.compact("u")] == ["by the first", "by theirs"]


def _face(made: Any, faces: Faces) -> Face:
    return made if isinstance(made, Face) else Face(made, faces.runner)


@pytest.mark.parametrize("call", ["fit", "send"])
def test_a_view_over_the_trigger_needs_a_callback(store: Face, call: str) -> None:
    store.append("t", chat())
    view = store.view("t")
    # Over the trigger, and within the limit.
    budget = cs.TokenBudget(2 * view.tokens, trigger=0.4, target=0.2)
    sent: list[Any] = []
    with pytest.raises(NotConfigured, match=r"no callback .* register one with on_compact.*thread 't'"):
        store.fit("t", budget) if call == "fit" else store.send("t", sent.append, budget)
    assert sent == []
    assert store.thread("t").last_pos == 12
    # Within the trigger there is nothing to do.
    assert store.fit("t", cs.TokenBudget(100_000)).run is None


RETURNED: dict[str, Any] = {
    "a text": SECRET,
    "a summary": cs.Summary(SECRET),
    "messages": [{"role": "user", "content": SECRET}],
    "a tuple of messages": ({"role": "user", "content": SECRET},),
    "a message": {"role": "user", "content": SECRET},
    "an empty mapping": {},
    "texts": [SECRET],
    "an iterator": iter([{"role": "user", "content": SECRET}]),
    "a set": {SECRET},
    "an object": object(),
}


@pytest.mark.parametrize("what", [*RETURNED, "the context's elements", "the context's messages", "a view"])
def test_a_callback_that_returns_its_result_is_refused(store: Face, faces: Faces, what: str) -> None:
    store.append("t", chat())
    view = store.view("t")
    found: dict[str, Any] = {
        **RETURNED,
        "a view": view,
        "the context's elements": lambda ctx: ctx.elements,
        "the context's messages": lambda ctx: ctx.result_messages,
    }

    def returned(ctx: cs.CompactionContext) -> Any:
        value = found[what]
        return value(ctx) if what.startswith("the context") else value

    async def returned_async(ctx: cs.CompactionContext) -> Any:
        return returned(ctx)

    callback: Any = returned_async if faces.kind == "async" else returned
    run = store.compact("t", callback)
    [error] = run.errors
    assert isinstance(error, cs.InvalidInput)
    assert "must call ctx.compact(start_seq, end_seq, summary)" in str(error)
    assert SECRET not in str(error)
    assert [record.outcome for record in run] == ["failed"]


def test_a_callback_may_return_what_the_context_returned(store: Face) -> None:
    store.append("t", chat())
    run = store.compact("t", lambda ctx: [ctx.compact(1, 2, "one"), ctx.remove(3, 4)])
    assert [record.outcome for record in run] == ["applied", "applied"]
    assert not store.compact("t", lambda ctx: ctx.total_tokens > 10**6 and ctx.compact(5, 6, "two")).errors


# ---- first contact


def test_a_store_that_is_constructed_says_how_to_open_one(url: str) -> None:
    for kind in (cs.Store, cs.Reader, cs.AsyncStore, cs.AsyncReader):
        made: Any = kind
        prefix = "await " if "Async" in kind.__name__ else ""
        ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((url,), {}), ((), {}), ((), {"url": url}), ((url,), {"tenant": "t"}), ((url, "t"), {})
        ]  # fmt: skip
        for given, named in ways:
            with pytest.raises(cs.InvalidInput, match=f"`{prefix}{kind.__name__}\\.open\\(url\\)`") as caught:
                made(*given, **named)
            assert url not in str(caught.value)


def test_an_opening_that_was_not_awaited_says_so(url: str) -> None:
    opening: Any = cs.AsyncStore.open(url)
    with pytest.raises(AttributeError, match=r"write `await AsyncStore\.open\(…\)`"):
        opening.append("t", chat())
    assert not hasattr(opening, "view")
    opening.close()


# ---- erased messages


def test_a_callback_and_a_summarizer_get_a_stand_in_for_an_erased_message(store: Face, faces: Faces) -> None:
    store.append("t", chat())
    store.custody.redact("t", 3, reason="asked for")
    seen: list[Any] = []

    def summarize(elements: Sequence[cs.Element]) -> str:
        seen.append([message["content"] for element in elements for message in element.messages])
        return "short"

    def callback(ctx: cs.CompactionContext) -> None:
        assert all(message["role"] for message in ctx.result_messages)
        assert all(message["role"] for element in ctx.message_elements for message in element.messages)
        planned = ctx.compact(1, 4, summarize)
        seen.append([message["content"] for message in planned][-1])

    async def callback_async(ctx: cs.CompactionContext) -> None:
        assert all(message["role"] for message in ctx.result_messages)
        planned = await ctx.compact(1, 4, summarize)
        seen.append([message["content"] for message in planned][-1])

    given: Any = callback_async if faces.kind == "async" else callback
    run = store.compact("t", given)
    assert (run.applied, run.errors) == (True, ())
    assert seen[0][2] == "(A message was erased here.)"
    assert store.compact("t", SlidingWindow(FallbackSummarizer(summarize), retain=2)).applied
    view = store.view("t", at=13)
    # What a view shows can be sent as it is; `replay` tells an erased message from one with the same text.
    assert [message["content"] for message in view.messages][2] == "(A message was erased here.)"
    assert [element.is_erased for element in view.elements].count(True) == 1
    assert [message.payload for message in store.replay("t")][2] is None
