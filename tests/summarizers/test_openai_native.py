"""OpenAI's own compaction: asked for at its endpoint, kept unchanged, unreadable, and sent back to that API only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.chat_server import fails
from support.faces import Face, Faces
from support.messages_server import SOURCE, Behaviour, Payload, Server, elements, serving, talk

from compaction_store import InvalidInput, Summary
from compaction_store.checks import KeepsOrders
from compaction_store.errors import NativeRefused, NotRenderable, SummarizerRejected, SummaryUseless
from compaction_store.strategies import Carry, SlidingWindow
from compaction_store.summarizers import FallbackSummarizer, OpenAISummarizer, Request, StateSummary

KEPT: Payload = {
    "type": "message", "id": "msg_1", "status": "completed", "role": "user",
    "content": [{"type": "input_text", "text": "Shall we meet?"}],
}  # fmt: skip
SEALED: Payload = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Z" * 80, "of_a_later_version": 1}
USAGE = {
    "input_tokens": 139, "output_tokens": 438, "total_tokens": 577, "input_tokens_details": {"cached_tokens": 39},
    "output_tokens_details": {"reasoning_tokens": 64},
}  # fmt: skip
CALL: Payload = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
RESULT: Payload = {"type": "function_call_output", "call_id": "a", "output": SOURCE}


def compacts(*output: Payload, kind: str = "response.compaction") -> Behaviour:
    body = {"id": "resp_1", "object": kind, "created_at": 1_790_000_000, "output": list(output), "usage": USAGE}
    return lambda handler, _body: handler.send(200, json.dumps(body).encode())


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        found.does(compacts(KEPT, SEALED))
        yield found


@pytest.fixture
def client(faces: Faces, api: Server) -> Iterator[Any]:
    kind = openai.OpenAI if faces.kind == "sync" else openai.AsyncOpenAI
    made: Any = kind(api_key="k", base_url=f"{api.url}/v1", max_retries=0)
    yield made
    closing = made.close()
    if faces.runner is not None:
        faces.runner.run(closing)


def native(client: Any, **options: Any) -> OpenAISummarizer:
    return OpenAISummarizer(client, model="gpt-x", api="responses", mode="native", **options)


def summary_of(faces: Faces, found: Any) -> Summary:
    summary: Summary = found if faces.runner is None else faces.runner.run(found)
    return summary


def test_the_endpoint_is_asked_and_its_items_are_kept_as_they_came(faces: Faces, client: Any, api: Server) -> None:
    told = native(client, instructions="Plan trips.", parameters={"prompt_cache_key": "p"})
    summary = summary_of(faces, told(elements(*[e.message for e in talk(2)], CALL, RESULT)))
    assert (summary.text, summary.replacement, summary.unreadable) == ("", (KEPT, SEALED), True)
    assert (summary.model, summary.prompt, summary.summarizer) == ("gpt-x", "Plan trips.", "OpenAISummarizer")
    assert summary.settings == {"prompt_cache_key": "p", "mode": "native"}
    assert summary.usage == {
        "input_tokens": 100, "output_tokens": 438, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 39,
        "requests": 1,
    }  # fmt: skip
    assert api.paths == ["/v1/responses/compact"]
    [sent] = api.requests
    assert {name: value for name, value in sent.items() if name != "input"} == {
        "model": "gpt-x", "instructions": "Plan trips.", "prompt_cache_key": "p"
    }  # fmt: skip
    assert sent["input"][2:] == [CALL, RESULT]


def test_it_is_a_record_like_any_other_and_goes_back_to_the_api(store: Face, client: Any, api: Server) -> None:
    store.append("t", [e.message for e in talk(8)], actor="agent")
    window = SlidingWindow(native(client), retain=3, keep_first=False, carry=Carry())
    [record] = store.compact("t", window, actor="nightly", authority={"ticket": "X-1"})
    assert (record.kind, record.outcome, record.actor, record.summarizer) == (
        "summary", "applied", "nightly", "OpenAISummarizer",
    )  # fmt: skip
    assert (record.summary_text, record.unreadable, record.parts) == (None, True, None)
    assert record.replacement == [KEPT, SEALED]
    assert (record.model, record.usage["output_tokens"]) == ("gpt-x", 438)
    view = store.view("t")
    assert view.for_openai(api="responses")["input"][:2] == [KEPT, SEALED]
    for render in (view.for_openai, view.for_anthropic):
        with pytest.raises(NotRenderable, match=rf"revoke\(thread_id, {record.number}\) brings back"):
            render()
    assert not store.audit.verify("t").findings
    # The next fold sends the item back to the endpoint.
    store.append("t", [e.message for e in talk(8)])
    [again] = store.compact("t", lambda ctx: ctx.compact(1, 9, native(client)))
    assert (again.outcome, again.inputs) == ("applied", (record.number,))
    assert api.requests[-1]["input"][:2] == [KEPT, SEALED]
    store.revoke("t", again.number)
    store.revoke("t", record.number)
    assert [m for e in store.view("t").elements for m in e.messages][:8] == [e.message for e in talk(8)]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (compacts(KEPT), SummaryUseless), (compacts(), SummaryUseless),
        (compacts(KEPT, {**SEALED, "encrypted_content": ""}), SummaryUseless),
        (compacts(KEPT, SEALED, kind="response"), SummaryUseless),
        (lambda handler, _: handler.send(200, b'"no object"'), SummaryUseless), (fails(404), SummarizerRejected),
    ],
    ids=["no item", "nothing", "an empty item", "another object", "no object", "a server without the endpoint"],
)  # fmt: skip
def test_an_answer_without_a_compaction_changes_nothing(
    store: Face, client: Any, api: Server, behaviour: Behaviour, kind: type[Exception]
) -> None:
    api.does(behaviour)
    store.append("t", [e.message for e in talk(8)])
    before = store.view("t").messages
    [record] = store.compact("t", SlidingWindow(native(client), retain=3, keep_first=False))
    assert (record.outcome, record.error["type"], record.unreadable) == ("failed", kind.__name__, False)
    assert store.view("t").messages == before


def test_a_span_that_cannot_be_compacted_is_refused_before_anything_is_sent(
    faces: Faces, client: Any, api: Server
) -> None:
    system, user = {"role": "system", "content": SOURCE}, {"role": "user", "content": SOURCE}
    for payloads in ([user, system, *[e.message for e in talk(2)]], [user, user], [KEPT, SEALED, user]):
        with pytest.raises(NativeRefused):
            summary_of(faces, native(client)(Request.of(elements(*payloads))))
    assert api.requests == []


def test_a_check_rejects_what_nobody_can_read_and_a_fallback_may_follow(store: Face, client: Any) -> None:
    store.append("t", [{"role": "user", "content": "Never push to main."}, *[e.message for e in talk(9)][1:]])
    window = SlidingWindow(native(client), retain=3, keep_first=False, checks=[KeepsOrders(strict=True)])
    [record] = store.compact("t", window)
    assert (record.outcome, record.error["type"]) == ("rejected", "ChecksFailed")
    both = FallbackSummarizer(native(client), StateSummary())
    [record] = store.compact("t", SlidingWindow(both, retain=3, keep_first=False))
    assert (record.outcome, record.unreadable) == ("applied", True)


def test_options_that_the_endpoint_does_not_know_are_refused(client: Any) -> None:
    wrong: list[Payload] = [
        {"api": "chat"}, {"stream": True}, {"checks": [KeepsOrders()]}, {"parameters": {"input": []}},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidInput):
            OpenAISummarizer(client, **{"api": "responses", "mode": "native", **options})
    with pytest.raises(InvalidInput, match="mode must be 'prompt' or 'inline'"):
        native(client).answer("Judge.", "document")
    with pytest.raises(InvalidInput):
        StateSummary(native(client))
