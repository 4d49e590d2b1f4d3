"""A request that is refused as too long is compacted harder and sent again."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from support.faces import Face, Faces
from support.messages_server import Behaviour, Server, fails, says, serving, taken

from compaction_store import InvalidInput, TokenBudget
from compaction_store.rendering import Rendered, View
from compaction_store.strategies import Ladder
from compaction_store.summarizers import StateSummary

BUDGET = TokenBudget(context_window=100_000)
TALK = [
    {"role": "assistant" if i % 2 else "user", "content": f"Parcel {i} is in hall {i % 7}, rack {i * 3}. " * 20}
    for i in range(60)
]


def holds(tokens: int) -> Behaviour:
    """Behaves like a model with this window."""

    def behave(handler: Any, body: dict[str, Any]) -> None:
        size = taken(body)
        text = f"prompt is too long: {size} tokens > {tokens} maximum"
        (fails(400, "invalid_request_error", text) if size > tokens else says("In hall 3."))(handler, body)

    return behave


def caller(api: Server, faces: Faces) -> Any:
    options: dict[str, Any] = {"api_key": "-", "base_url": api.url, "max_retries": 0}
    if faces.kind == "sync":

        def call_sync(request: Rendered) -> Any:
            with anthropic.Anthropic(**options) as client:
                return client.messages.create(model="m", max_tokens=9, **request)

        return call_sync

    async def call(request: Rendered) -> Any:
        async with anthropic.AsyncAnthropic(**options) as client:
            return await client.messages.create(model="m", max_tokens=9, **request)

    return call


def rendered(view: View) -> Rendered:
    return view.for_anthropic(system="You know where parcels are.")


def ladder() -> Ladder:
    return Ladder(StateSummary(), keep_recent=4)


def test_a_refused_request_is_compacted_by_the_providers_figures_and_sent_again(store: Face, faces: Faces) -> None:
    store.append("t", TALK)
    with serving() as api:
        api.does(holds(4000))
        sent = store.send("t", caller(api, faces), BUDGET, ladder(), render=rendered, actor="agent")
        assert [taken(body) <= 4000 for body in api.requests] == [False] * (len(api.requests) - 1) + [True]
    assert 2 <= len(api.requests) <= 3
    assert len(sent.runs) == len(api.requests) - 1
    assert {(r.trigger, r.actor) for run in sent.runs for r in run if r.outcome == "applied"} == {("too long", "agent")}
    [written] = store.append("t", sent.reply, view=sent.request)
    assert store.seen_by("t", written.seq).evidence == "proved"
    assert not store.audit.verify("t").findings
    assert [m.payload for m in store.replay("t", until=60)] == TALK
    assert set(sent.as_dict()) == {"request", "runs"}


def test_a_request_that_fits_is_sent_once(store: Face, faces: Faces) -> None:
    store.append("t", TALK[:2])
    with serving() as api:
        sent = store.send("t", caller(api, faces), BUDGET, ladder(), render=rendered)
    assert (len(api.requests), sent.runs) == (1, ())
    assert store.thread("t").last_pos == 2


def test_a_view_over_its_budget_is_compacted_before_it_is_sent(store: Face, faces: Faces) -> None:
    store.append("t", TALK)
    small = TokenBudget(context_window=4000)
    with serving() as api:
        sent = store.send("t", caller(api, faces), small, ladder(), render=rendered)
    assert len(api.requests) == 1
    assert sent.request.view.tokens <= small.limit
    assert {record.trigger for record in store.compactions("t")} == {"budget"}


def test_the_last_refusal_is_raised_when_the_attempts_are_used_up(store: Face, faces: Faces) -> None:
    store.append("t", TALK)
    with serving() as api:
        api.does(holds(1))
        with pytest.raises(anthropic.BadRequestError) as caught:
            store.send("t", caller(api, faces), BUDGET, ladder(), render=rendered, attempts=2)
    assert len(api.requests) == 2
    assert any("sent 2 times" in note for note in caught.value.__notes__)


def test_it_is_raised_at_once_if_nothing_can_be_compacted(store: Face, faces: Faces) -> None:
    store.append("t", TALK)
    with serving() as api:
        api.does(holds(1))
        with pytest.raises(anthropic.BadRequestError) as caught:
            store.send("t", caller(api, faces), BUDGET, lambda _ctx: None, render=rendered, attempts=9)
    assert len(api.requests) == 1
    assert any("was not compacted: the callbacks found nothing" in note for note in caught.value.__notes__)
    assert store.thread("t").last_pos == len(TALK)


def test_other_errors_pass_through(store: Face, faces: Faces) -> None:
    store.append("t", TALK)
    with serving() as api:
        api.does(fails(529, "overloaded_error"))
        with pytest.raises(anthropic.APIStatusError):
            store.send("t", caller(api, faces), BUDGET, ladder(), render=rendered)
    assert len(api.requests) == 1
    assert not list(store.compactions("t"))


def test_without_render_the_call_is_given_the_view(store: Face) -> None:
    store.append("t", TALK[:1])
    sent = store.send("t", lambda view: view.messages[0]["role"], BUDGET)
    assert sent.reply == "user"
    assert isinstance(sent.request, View)


@pytest.mark.parametrize(
    ("call", "options", "text"),
    [
        (3, {}, "call must be a callable, not int"),
        (len, {"render": 3}, "render must be a callable, not int"),
        (len, {"attempts": 0}, "attempts must be an integer >= 1, not 0"),
        (len, {"render": lambda view: view.messages}, "render must return a View or its rendering, not list"),
    ],
)
def test_bad_input_is_refused(store: Face, call: Any, options: dict[str, Any], text: str) -> None:
    store.append("t", TALK)
    with pytest.raises(InvalidInput, match=text):
        store.send("t", call, BUDGET, ladder(), **options)


def test_an_async_call_on_a_synchronous_store_is_refused(url: str) -> None:
    from compaction_store import Store  # noqa: PLC0415 — this test alone needs it

    async def call(_request: object) -> None:
        """Is never run."""

    with Store.open(url) as store:
        store.append("t", TALK[0])
        wrongs: tuple[Any, ...] = (call, lambda request: call({"of": request}))
        for wrong in wrongs:
            with pytest.raises(InvalidInput, match="call must be synchronous on a Store"):
                store.send("t", wrong, BUDGET)
