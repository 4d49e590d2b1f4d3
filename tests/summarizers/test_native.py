"""The API's own compaction: requested by its rules, kept unchanged, and sent back first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from support.faces import Face, Faces
from support.messages_server import (
    BLOCK,
    SOURCE,
    SPENT,
    Payload,
    Server,
    answers,
    compacts,
    cuts,
    elements,
    fails,
    message,
    says,
    serving,
    talk,
)

from compaction_store import SummarizerError, Summary
from compaction_store.api_rules import refused_by_anthropic
from compaction_store.errors import (
    NativeRefused,
    SourceTooLong,
    SummarizerRejected,
    SummaryCutShort,
    SummaryRefused,
    SummaryUseless,
)
from compaction_store.rendering.view import View
from compaction_store.summarizers import AnthropicSummarizer, Request

KEY = "sk-ant-of-a-test"


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        found.does(compacts())
        yield found
        assert found.all_closed()


@pytest.fixture(params=["sync", "async"])
def summarize(request: pytest.FixtureRequest, api: Server) -> Callable[..., Summary]:
    def call(given: Any, **options: Any) -> Summary:
        settings: dict[str, Any] = {"api_key": KEY, "base_url": api.url, "max_retries": 1}
        options = {"model": "claude-x", "mode": "native", "deadline": 20, **options}
        if request.param == "sync":
            with anthropic.Anthropic(**settings) as client:
                found: Any = AnthropicSummarizer(client, **options)(given)
                assert isinstance(found, Summary)
                return found

        async def wait() -> Summary:
            async with anthropic.AsyncAnthropic(**settings) as client:
                waiting: Any = AnthropicSummarizer(client, **options)(given)
                summary: Summary = await waiting
                return summary

        return asyncio.run(wait())

    return call


def test_the_block_is_kept_as_it_came_with_what_it_took(summarize: Any, api: Server) -> None:
    summary = summarize(talk(), parameters={"system": "Be brief.", "tools": []})
    assert summary.text == BLOCK["content"]
    assert summary.replacement == ({"role": "assistant", "content": [BLOCK]},)
    assert summary.model == "claude-real-1"
    assert summary.usage["iterations"] == [SPENT]
    assert summary.provider == {"id": "msg_1", "model": "claude-real-1", "stop_reason": "compaction"}
    assert summary.prompt is None
    [sent] = api.requests
    assert sent["compaction"] == {"type": "summarize"}
    assert (sent["system"], sent["tools"], "context_management" in sent) == ("Be brief.", [], False)
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "user", "assistant"]
    assert api.headers[0]["anthropic-beta"] == "compact-2026-09-04"


def test_instructions_replace_the_apis_own(summarize: Any, api: Server) -> None:
    assert summarize(talk(), instructions="Only numbers.").prompt == "Only numbers."
    assert api.requests[0]["compaction"] == {"type": "summarize", "instructions": "Only numbers."}


def test_system_messages_before_the_span_are_the_system_of_the_request(summarize: Any, api: Server) -> None:
    view = elements({"role": "system", "content": "Be brief."}, *[e.message for e in talk()])
    summarize(Request.within(view[1:], view))
    assert api.requests[0]["system"] == "Be brief."


def test_an_earlier_block_is_taken_in(summarize: Any, api: Server) -> None:
    earlier = {"role": "assistant", "content": [BLOCK]}
    summarize(elements(earlier, {"role": "user", "content": SOURCE}, {"role": "assistant", "content": SOURCE}))
    assert api.requests[0]["messages"][0] == earlier


USE: Payload = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
RESULT: Payload = {"type": "tool_result", "tool_use_id": "a", "content": "seen"}
USER: Payload = {"role": "user", "content": SOURCE}
REPLY: Payload = {"role": "assistant", "content": SOURCE}
SYSTEM: Payload = {"role": "system", "content": "S"}
CALL: Payload = {"role": "assistant", "content": [USE]}
ANSWER: Payload = {"role": "user", "content": [RESULT]}
EARLIER: Payload = {"role": "assistant", "content": [BLOCK]}


@pytest.mark.parametrize(
    ("payloads", "start", "end"),
    [
        ([USER, REPLY, USER, REPLY], 2, 4),
        ([SYSTEM, USER, REPLY, SYSTEM, USER], 2, 4),
        ([USER, REPLY, USER, REPLY], 1, 3.5),
        ([USER, CALL], 1, 2),
        ([USER, CALL, ANSWER], 1, 2),
        ([USER, ANSWER], 1, 2),
        ([USER, EARLIER, USER, REPLY], 1, 4),
        ([EARLIER, USER, EARLIER, USER], 1, 4),
        ([USER, REPLY, REPLY], 1, 2),
        ([USER, REPLY, SYSTEM], 1, 2),
        ([USER, REPLY, USER, ANSWER], 1, 3),
        ([EARLIER], 1, 1),
        ([None], 2, 2),
    ],
    ids=[
        "not the beginning", "a system message inside", "no place", "an open call", "a call parted from its result",
        "a result without a call", "a block that is not first", "two blocks", "the same role goes on",
        "a system message goes on", "the user goes on", "nothing but a block", "unknown before",
    ],
)  # fmt: skip
def test_the_rules_are_checked_before_anything_is_sent(
    summarize: Any, api: Server, payloads: Any, start: float, end: float
) -> None:
    view = elements(*payloads)
    given: Any = Request.within([e for e in view if start <= e.seq <= end] or view, view)
    if end == 3.5:
        given = view[1:]
    if start == 2 and end == 2:
        given = elements(USER, USER)[1:]
    with pytest.raises(NativeRefused):
        summarize(given)
    assert not api.requests


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (compacts({"type": "compaction", "content": None}), SummaryUseless),
        (compacts(reason="end_turn"), SummaryUseless),
        (compacts({**BLOCK, "content": " "}), SummaryUseless),
        (answers(message(BLOCK, {"type": "text", "text": "and"}, reason="compaction")), SummaryUseless),
        (answers(message(reason="compaction")), SummaryUseless),
        (says("Sure."), SummaryUseless),
        (says("No.", reason="refusal"), SummaryRefused),
        (says("They", reason="max_tokens"), SummaryCutShort),
        (compacts({**BLOCK, "content": "I'm sorry, but I can't help with that."}), SummaryRefused),
        (fails(400, "invalid_request_error", "prompt is too long: 5 tokens > 3 maximum"), SourceTooLong),
        (fails(400, "invalid_request_error", "compaction_incomplete_turn"), SummarizerRejected),
    ],
)
def test_anything_but_a_block_with_content_is_no_summary(
    summarize: Any, api: Server, behaviour: Any, error: type[SummarizerError]
) -> None:
    api.does(behaviour)
    with pytest.raises(error):
        summarize(talk())
    assert len(api.requests) == 1


@pytest.mark.parametrize("fault", [fails(529, "overloaded_error", retry_after="0.01"), cuts])
def test_what_is_only_unavailable_is_asked_again(summarize: Any, api: Server, fault: Any) -> None:
    api.does(fault, compacts())
    assert summarize(talk()).text == BLOCK["content"]


@pytest.fixture
def client(faces: Faces, api: Server) -> Iterator[Any]:
    kind = anthropic.Anthropic if faces.kind == "sync" else anthropic.AsyncAnthropic
    made: Any = kind(api_key=KEY, base_url=api.url)
    yield made
    closing = made.close()
    if faces.runner is not None:
        faces.runner.run(closing)


def test_the_block_stands_first_in_the_view_and_goes_back_unchanged(store: Face, client: Any, api: Server) -> None:
    store.append("t", [SYSTEM, *[e.message for e in talk(8)]])
    summarize = AnthropicSummarizer(client, model="claude-x", mode="native")

    def compact(start: int, end: int) -> Callable[[Any], Any]:
        def with_place(ctx: Any) -> Any:
            view = ctx.elements
            return ctx.compact(start, end, lambda found: summarize(Request.within(found, view)))

        return with_place

    [record] = store.compact("t", compact(2, 5))
    assert (record.outcome, record.summary_text) == ("applied", BLOCK["content"])
    assert record.replacement == [{"role": "assistant", "content": [BLOCK]}]
    assert record.body["usage"]["iterations"] == [SPENT]
    view: View = store.view("t")
    rendered = view.for_anthropic()
    assert rendered["messages"][0] == {"role": "assistant", "content": [BLOCK]}
    assert rendered["betas"] == ["compact-2026-09-04"]
    # The API may add fields to its block that the types do not have.
    assert {p.rule for p in refused_by_anthropic(rendered["messages"])} == {"extra_field"}
    # A block in the middle is refused. At the beginning, the next block includes the first.
    [middle] = store.compact("t", compact(6, 7))
    assert (middle.outcome, middle.error["type"]) == ("failed", "NativeRefused")
    [again] = store.compact("t", compact(2, 7))
    # 0 says that the system message before the span was sent too.
    assert (again.outcome, again.inputs) == ("applied", (0, 1))
    assert api.requests[-1]["messages"][0]["content"] == [BLOCK]
    assert not store.audit.verify("t").findings
