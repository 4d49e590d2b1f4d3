"""The record of a user's own summarizer: name, model, prompt, settings and cost, even if it fails."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
from openai.types import CompletionUsage
from support.faces import Face

import compaction_store as cs
from compaction_store.errors import InvalidCallback, SummaryTooLong
from compaction_store.summarizers import FallbackSummarizer, StateSummary

SETTINGS = {"temperature": 0.2, "max_tokens": 300, "thinking": {"type": "disabled"}, "service_tier": "auto"}
TEXT = "They talked about the move."
TOO_LONG = "far too long " * 900
KEY = "sk-of-a-test"


class House:
    """A summarizer that has a name, and returns or raises a given value."""

    name = "house"
    model = "house-7b"
    prompt = "Write little."
    settings = SETTINGS

    def __init__(self, does: Any) -> None:
        self._does = does

    def __call__(self, _elements: Any) -> Any:
        if isinstance(self._does, Exception):
            raise self._does
        return self._does


def of_a_function(_elements: Any, text: str = TEXT) -> str:
    return text


def compacted(store: Face, summarize: Any, thread: str = "t", text: str = "About the move. ") -> cs.Compaction:
    """The one record of a run."""
    store.append(thread, [{"role": "user", "content": text * 20} for _ in range(6)])
    [record] = store.compact(thread, lambda ctx: ctx.compact(1, 4, summarize))
    assert store.audit.verify(thread).findings == ()
    found: cs.Compaction = record
    return found


def said(record: cs.Compaction) -> tuple[Any, ...]:
    return record.summarizer, record.model, record.prompt, record.settings


@pytest.mark.parametrize(
    ("does", "outcome"),
    [
        (TEXT, "applied"), (cs.Summary(TEXT), "applied"), (TOO_LONG, "rejected"), ("", "rejected"),
        (OSError("no route"), "failed"), (SummaryTooLong("no"), "failed"), (7, "failed"),
    ],
    ids=["text", "summary", "too long", "empty", "another's error", "error of ours", "no summary"],
)  # fmt: skip
def test_a_summarizers_attributes_are_on_record_whatever_came_of_it(store: Face, does: Any, outcome: str) -> None:
    record = compacted(store, House(does))
    assert record.outcome == outcome
    assert said(record) == ("house", "house-7b", "Write little.", SETTINGS)
    assert record.duration is not None
    assert record.duration >= 0
    assert [r.number for r in store.compactions(model="house-7b", outcome=outcome)] == [1]
    shown = record.as_dict()
    assert (shown["summarizer"], shown["settings"], shown["duration"]) == ("house", SETTINGS, record.duration)
    assert json.dumps(shown)


def test_the_result_says_it_better(store: Face) -> None:
    told = cs.Summary(TEXT, model="m-2", prompt="Another.", settings={"top_p": 1}, summarizer="inner", duration=7.5)
    record = compacted(store, House(told))
    assert said(record) == ("inner", "m-2", "Another.", {"top_p": 1})
    assert record.duration == 7.5


def test_a_function_has_the_name_under_which_it_is_defined_or_its_own(store: Face) -> None:
    record = compacted(store, of_a_function)
    assert said(record) == (f"{__name__}.of_a_function", None, None, None)
    assert compacted(store, partial(of_a_function, text="Part.")).summarizer == f"{__name__}.of_a_function"

    def named(_elements: Any) -> str:
        return TEXT

    named.name, named.settings = "nightly", {"level": 3}  # type: ignore[attr-defined]
    assert said(compacted(store, named)) == ("nightly", None, None, {"level": 3})


def test_the_settings_of_a_summarizer_without_a_model_are_on_record(store: Face) -> None:
    record = compacted(store, StateSummary(share=0.25, max_tokens=900))
    assert said(record) == ("StateSummary", None, None, {"share": 0.25, "max_tokens": 900})
    failed = compacted(store, StateSummary(), "other", text="?")
    assert (failed.outcome, (failed.error or {})["type"]) == ("failed", "SummaryTooLong")
    assert said(failed) == ("StateSummary", None, None, {"share": 0.3, "max_tokens": 2048})


def test_a_fallback_records_what_each_summarizer_says(store: Face) -> None:
    record = compacted(store, FallbackSummarizer(House(OSError("no route")), StateSummary()))
    assert said(record) == ("StateSummary", None, None, {"share": 0.3, "max_tokens": 2048})
    [failed] = record.failed_before
    assert (failed["summarizer"], failed["model"], failed["settings"]) == ("house", "house-7b", SETTINGS)


def test_any_exception_may_say_what_the_call_cost(store: Face) -> None:
    error = OSError("no route")
    error.attempted = cs.Summary("half a text", model="m-2", usage={"input_tokens": 9})  # type: ignore[attr-defined]
    record = compacted(store, House(error))
    assert (record.outcome, record.model, record.usage) == ("failed", "m-2", {"input_tokens": 9})
    assert record.settings == SETTINGS
    assert "half a text" not in json.dumps(record.body)


def test_the_cost_of_a_summary_that_cannot_be_used_is_on_record(store: Face) -> None:
    for wrong in ({"role": "system", "content": "x"}, {"role": "user", "content": math.nan}, "x"):
        summary = cs.Summary(TEXT, usage={"input_tokens": 9}, replacement=(wrong,))  # type: ignore[arg-type]
        store.append("t", [{"role": "user", "content": f"Message {i}. " * 20} for i in range(6)])
        [record] = store.compact("t", lambda ctx, made=summary: ctx.compact(1, 4, House(made)))
        assert (record.outcome, record.start_seq, record.usage) == ("failed", 1, {"input_tokens": 9})
        assert said(record) == ("house", "house-7b", "Write little.", SETTINGS)
        assert record.summary_text is None


def test_a_summary_that_was_paid_for_stays_on_record_when_its_callback_fails(store: Face) -> None:
    store.append("t", [{"role": "user", "content": f"Message {i}. " * 20} for i in range(8)])
    paid = cs.Summary(TEXT, usage={"input_tokens": 9})

    def fails(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 2, "free of charge")
        ctx.compact(3, 4, House(paid))
        ctx.compact(3, 6, House(paid))
        raise LookupError(TEXT)

    run = store.compact("t", fails)
    assert [(r.outcome, r.start_seq, r.end_seq, r.usage) for r in run] == [
        ("failed", 3, 4, {"input_tokens": 9}), ("failed", 3, 6, {"input_tokens": 9}), ("failed", None, None, None),
    ]  # fmt: skip
    assert {(r.error or {})["type"] for r in run} == {"LookupError"}
    assert (run[0].error or {})["text"] == "the callback failed after this summary"
    # The second was made from the first, which was never written.
    assert [r.inputs for r in run] == [(), (0,), ()]
    assert TEXT not in json.dumps([r.body for r in run])
    assert len(store.view("t").elements) == 8


def test_what_a_summarizer_reports_is_stored_as_far_as_it_is_json(store: Face) -> None:
    usage: Any = CompletionUsage(completion_tokens=3, prompt_tokens=9, total_tokens=12)
    odd: Any = {"score": math.nan, "of": {1, 2}, "client": object(), 7: "seven"}
    told = cs.Summary(
        TEXT, model="m\0-\ud800" + "x" * 999, usage=usage, coverage=odd, provider=odd, duration=math.inf,
        settings={"api_key": KEY, "temperature": math.nan, "metadata": odd},
    )  # fmt: skip
    record = compacted(store, House(told))
    assert record.outcome == "applied"
    assert record.usage is not None
    assert (record.usage["prompt_tokens"], record.usage["completion_tokens"]) == (9, 3)
    assert record.body is not None
    assert record.body["coverage"] == {"score": "nan", "of": [1, 2], "client": "(object)", "7": "seven"}
    assert record.settings == {"api_key": "(withheld)", "temperature": "nan", "metadata": record.body["provider"]}
    assert KEY not in json.dumps(record.body)
    assert record.model is not None
    assert record.model.startswith("m-?xxx")
    assert len(record.model) == 255
    assert record.duration is None


def test_an_error_in_what_a_summarizer_returns_is_raised_in_the_callback_as_well(store: Face) -> None:
    store.append("t", [{"role": "user", "content": f"Message {i}. " * 20} for i in range(6)])
    seen = []

    def goes_on(ctx: cs.CompactionContext) -> None:
        for does in (7, cs.Summary(TEXT, replacement=({"role": "system", "content": "x"},))):
            try:
                ctx.compact(1, 4, House(does))
            except cs.InvalidInput as error:
                seen.append(type(error))
        ctx.compact(1, 4, House(TEXT))

    run = store.compact("t", goes_on)
    assert [r.outcome for r in run] == ["failed", "failed", "applied"]
    assert seen == [InvalidCallback, cs.InvalidInput]
