"""The record of a model's calls besides the summary: model, prompt, settings, usage, and failed calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from support.faces import Face, Faces
from support.messages_server import SOURCE, Server, answers, fails, message, says, serving, talk

from compaction_store import Compaction, SummarizerError, Summary
from compaction_store.compaction.summary_calls import settings
from compaction_store.errors import SummarizerRejected, SummaryRefused
from compaction_store.summarizers import AnthropicSummarizer, FallbackSummarizer, StateSummary

KEY = "sk-ant-of-a-test"
SAMPLING = {"service_tier": "auto", "extra_body": {"temperature": 0.1}, "extra_headers": {"x-tenant-key": KEY}}
REFUSED = says("I won't.", reason="refusal")


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        yield found


Make = Callable[..., AnthropicSummarizer]


@pytest.fixture
def make(faces: Faces, api: Server) -> Iterator[Make]:
    """Makes summarizers over a client of the store's kind."""
    made: list[Any] = []

    def make(*, model: str = "claude-x", **options: Any) -> AnthropicSummarizer:
        kind = anthropic.Anthropic if faces.runner is None else anthropic.AsyncAnthropic
        made.append(kind(api_key=KEY, base_url=api.url, max_retries=0, timeout=10))
        return AnthropicSummarizer(made[-1], model=model, deadline=20, **options)

    yield make
    for client in made:
        closing = client.close()
        if faces.runner is not None:
            faces.runner.run(closing)


def compacted(store: Face, summarize: Any, end: int = 4) -> Compaction:
    """The one record of a run over a thread of six messages."""
    store.append("t", [e.message for e in talk(6)])

    async def waits(ctx: Any) -> None:
        await ctx.compact(1, end, summarize)

    run = store.compact("t", waits if store.runner else lambda ctx: ctx.compact(1, end, summarize))
    found: Compaction = run[0]
    return found


def test_the_settings_of_a_model_are_on_record_and_no_credentials(store: Face, make: Make, api: Server) -> None:
    record = compacted(store, make(parameters=SAMPLING, max_tokens=900))
    assert record.settings == {"max_tokens": 900, "service_tier": "auto", "extra_body": {"temperature": 0.1}}
    assert record.summarizer == "AnthropicSummarizer"
    assert api.requests[0]["temperature"] == 0.1
    assert KEY not in json.dumps(record.body)


@pytest.mark.parametrize(
    ("answer", "error", "model", "tokens"),
    [
        (REFUSED, "SummaryRefused", "claude-real-1", 9),
        (says("They will", reason="max_tokens"), "SummaryCutShort", "claude-real-1", 9),
        (says(SOURCE * 9), "SummaryTooLong", "claude-real-1", 9),
        (says("I'm sorry, but I cannot help with that."), "SummaryRefused", "claude-real-1", 9),
        (fails(400, "invalid_request_error"), "SummarizerRejected", "claude-x", None),
        (fails(500, "api_error"), "SummarizerUnavailable", "claude-x", None),
    ],
    ids=["refusal", "max_tokens", "longer", "refusing text", "400", "500"],
)
def test_a_failed_attempt_says_which_model_failed_and_what_it_cost(
    store: Face, make: Make, api: Server, answer: Any, error: str, model: str, tokens: int | None
) -> None:
    api.does(answer)
    record = compacted(store, make(parameters=SAMPLING))
    assert (record.outcome, record.error and record.error["type"]) == ("failed", error)
    [found] = store.compactions(outcome="failed", model=model)
    assert found.number == record.number
    assert record.summarizer == "AnthropicSummarizer"
    assert record.prompt is not None
    assert record.prompt.startswith("You write notes")
    assert record.settings == {"max_tokens": 4096, "service_tier": "auto", "extra_body": {"temperature": 0.1}}
    assert (record.usage or {}).get("output_tokens") == tokens
    assert record.body is not None
    assert record.body["duration"] > 0
    assert "summary_text" not in record.body
    assert store.audit.verify("t").findings == ()


def test_every_part_that_was_paid_for_is_counted(store: Face, make: Make, api: Server) -> None:
    whole = message({"type": "text", "text": "So"}, reason="model_context_window_exceeded")
    api.does(answers(whole), says("The first half."), REFUSED)
    record = compacted(store, make())
    assert (record.outcome, record.model) == ("failed", "claude-real-1")
    assert (record.usage or {})["requests"] == 3
    assert (record.usage or {})["output_tokens"] == 27


def too_long(_elements: Any) -> Summary:
    return Summary("far too long " * 900, model="m-9", usage={"output_tokens": 7}, prompt="Write on.")


def test_a_rejected_summary_keeps_its_cost_and_not_its_text(store: Face) -> None:
    record = compacted(store, too_long)
    kept = (record.outcome, record.model, record.usage, record.prompt, record.summarizer)
    assert kept == ("rejected", "m-9", {"output_tokens": 7}, "Write on.", f"{__name__}.too_long")
    assert "far too long" not in json.dumps(record.body)


def test_a_refusal_that_another_covered_is_on_record(store: Face, make: Make, api: Server) -> None:
    api.does(REFUSED)
    store.append("t", [e.message for e in talk(6)])
    summarize = FallbackSummarizer(make(), StateSummary())

    async def waits(ctx: Any) -> None:
        await ctx.compact(1, 4, summarize)

    run = store.compact("t", waits if store.runner else lambda ctx: ctx.compact(1, 4, summarize))
    [record] = run
    assert (record.outcome, record.model, record.summarizer) == ("applied", None, "StateSummary")
    [failed] = record.failed_before
    assert (failed["type"], failed["model"], failed["summarizer"]) == (
        "SummaryRefused", "claude-real-1", "AnthropicSummarizer",
    )  # fmt: skip
    assert failed["usage"]["output_tokens"] == 9
    assert failed["settings"] == {"max_tokens": 4096}
    assert run.covered == (failed,)


def test_where_all_fail_the_record_names_the_first_model_and_what_each_cost(
    store: Face, make: Make, api: Server
) -> None:
    api.does(REFUSED, fails(400, "invalid_request_error"))
    record = compacted(store, FallbackSummarizer(make(), make(model="claude-y")))
    assert (record.outcome, record.model) == ("failed", "claude-real-1")
    assert [failed["model"] for failed in record.failed_before] == ["claude-real-1", "claude-y"]
    assert record.summarizer == "FallbackSummarizer(AnthropicSummarizer, AnthropicSummarizer)"


def test_a_users_own_summarizer_may_say_what_a_failure_cost(store: Face) -> None:
    class Own:
        name = "house"
        model = "m-1"

        def __call__(self, _elements: Any) -> str:
            error = SummaryRefused("no")
            error.attempted = Summary("", usage={"output_tokens": 3})
            raise error

    record = compacted(store, Own())
    assert (record.summarizer, record.model, record.usage) == ("house", "m-1", {"output_tokens": 3})
    assert SummarizerError.attempted is None


def test_the_error_names_the_argument_that_a_client_does_not_take(store: Face, make: Make, api: Server) -> None:
    record = compacted(store, make(parameters={"temperatur": 0.5}))
    assert record.error is not None
    assert record.error["type"] == SummarizerRejected.__name__
    assert "TypeError over the argument 'temperatur'" in record.error["text"]
    assert api.requests == []


def test_settings_are_json_whatever_was_given_and_hold_no_secret() -> None:
    given = {
        "temperature": float("nan"), "top_p": 0.5, "client": object(), "tools": [{"name": "t" * 3000}],
        "api_key": KEY, "extra_body": {"Authorization": KEY, "max_tokens": 4, "deep": {"access_token": KEY}},
        "model": "m", "messages": ["content"], "timeout": 3, "extra_headers": {"x": KEY}, "seeds": (1, 2),
    }  # fmt: skip
    found = settings(given)
    text = json.dumps(found, allow_nan=False)
    assert KEY not in text
    assert "content" not in text
    assert found["temperature"] == "nan"
    assert found["seeds"] == [1, 2]
    assert found["extra_body"]["max_tokens"] == 4
    assert found["tools"].startswith("sha256:")
    assert found["client"] == "(object)"
