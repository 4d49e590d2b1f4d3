"""A state whose parts a model fills: what is asked, what is refused in an answer, and what the rules fill instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from support import chat_server
from support.chat_server import responds
from support.faces import Face
from support.messages_server import Behaviour, Payload, Server, answers, elements, fails, message, says, serving

from compaction_store import InvalidInput, Summary
from compaction_store.errors import SummarizerRejected, SummarizerUnavailable, SummaryRefused, SummaryUseless
from compaction_store.messages.framing import frame
from compaction_store.models import Element
from compaction_store.models.state import PARTS, State, StateLine
from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer, Request, StateSummary

SECRET = "marmalade-7741"
LONG = "The parser reads a date as text, and the test expects a date with its zone. " * 30
USER = "Never push to main. Please mend the parser in src/dates.py, so that it reads the zone. "
ASKED = [name for name in PARTS if name != "orders"]
APIS = ["anthropic", "chat", "responses"]
TOO_LONG = "The parser is slow. " * 400


@pytest.fixture
def stub() -> Iterator[Server]:
    with serving() as found:
        yield found
        assert found.all_closed()


def span(*more: Payload) -> tuple[Element, ...]:
    return elements(
        {"role": "user", "content": USER + LONG},
        {"role": "assistant", "content": "I read it. " + LONG},
        {"role": "user", "content": f"The token is {SECRET}. " + LONG},
        {"role": "assistant", "content": "The zone was dropped, so I keep it now. " + LONG},
        *more,
    )


def line(text: str, *seqs: int) -> Payload:
    return {"text": text, "seqs": list(seqs)}


GOOD: dict[str, Any] = {
    "task": [line("Mend the parser in src/dates.py.", 1)],
    "decisions": [line("The zone is kept, because the test expects it.", 4)],
    "files": [line("src/dates.py (written: keeps the zone)", 4)],
    "facts": [line("The test is test_zone.", 2, 4)],
    "errors": [],
    "todos": [line("run the tests (pending)", 4)],
    "next": [line("Run the tests.", 4)],
}


def reply(api: str, text: str) -> Behaviour:
    if api == "anthropic":
        return says(text)
    return chat_server.says(text) if api == "chat" else responds(text)


def refuses(api: str, status: int = 400) -> Behaviour:
    said = f"output_config: not supported, {SECRET}"
    return fails(status, "invalid_request_error", said) if api == "anthropic" else chat_server.fails(status)


def schema_of(api: str, sent: Payload) -> Any:
    """Returns the schema that a request asks for; None for a request without one."""
    if api == "anthropic":
        form = sent.get("output_config", {}).get("format")
        assert form is None or form["type"] == "json_schema"
        return form and form["schema"]
    form = sent.get("response_format") if api == "chat" else sent.get("text", {}).get("format")
    if form is None:
        return None
    named = form["json_schema"] if api == "chat" else form
    assert (form["type"], named["name"], named["strict"]) == ("json_schema", "state", True)
    return named["schema"]


def prompt_of(api: str, sent: Payload) -> str:
    found = {"anthropic": "system", "responses": "instructions"}.get(api)
    text: str = sent["messages"][0]["content"] if found is None else sent[found]
    return text


def document_of(api: str, sent: Payload) -> Any:
    return json.loads(sent["input"] if api == "responses" else sent["messages"][-1]["content"])


Ask = Callable[..., Summary]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, stub: Server) -> Ask:
    """Summarizes with either client of either SDK."""

    def summarizer(client: Any, api: Any, of_state: Any, **options: Any) -> StateSummary:
        options = {"model": "m", "deadline": 20, **options}
        inner: Any = AnthropicSummarizer(client, **options) if api == "anthropic" else None
        return StateSummary(inner or OpenAISummarizer(client, api=api, **options), **of_state)

    def call(api: str, given: Any, state: Any = None, **options: Any) -> Summary:
        sdk: Any = anthropic if api == "anthropic" else openai
        name = "Anthropic" if api == "anthropic" else "OpenAI"
        settings = {"api_key": "k", "base_url": stub.url, "max_retries": 0}
        if request.param == "sync":
            with getattr(sdk, name)(**settings) as client:
                return summarizer(client, api, state or {}, **options)(given)

        async def wait() -> Summary:
            async with getattr(sdk, f"Async{name}")(**settings) as client:
                waiting: Any = summarizer(client, api, state or {}, **options)(given)
                found: Summary = await waiting
                return found

        return asyncio.run(wait())

    return call


def state_of(summary: Summary) -> State:
    state = State.parse(summary.text)
    assert state is not None
    return state


def coverage(summary: Summary) -> Payload:
    assert summary.coverage is not None
    return summary.coverage


def usage(summary: Summary) -> Payload:
    assert summary.usage is not None
    return summary.usage


def told(state: State, name: Any) -> list[str]:
    return [found.text for found in state.get(name, ())]


@pytest.mark.parametrize("api", APIS)
def test_a_model_fills_the_parts_and_the_orders_stay_word_for_word(ask: Ask, stub: Server, api: str) -> None:
    stub.does(reply(api, json.dumps(GOOD)))
    summary = ask(api, span(), parameters={"metadata": {"user_id": "u"}})
    [sent] = stub.requests
    schema = schema_of(api, sent)
    assert (schema["required"], schema["additionalProperties"]) == (ASKED, False)
    prompt = prompt_of(api, sent)
    assert prompt == summary.prompt
    assert all(f'"{name}": {PARTS[name].meaning} (' in prompt for name in PARTS if name != "orders")
    assert PARTS["orders"].meaning not in prompt
    state = state_of(summary)
    assert told(state, "orders") == ["Never push to main."]
    for name, lines in GOOD.items():
        assert [(found.text, list(found.seqs)) for found in state.get(name, ())] == [  # type: ignore[call-overload]
            (one["text"], one["seqs"]) for one in lines
        ]
    assert summary.summarizer in ("StateSummary(AnthropicSummarizer)", "StateSummary(OpenAISummarizer)")
    assert summary.settings is not None
    assert summary.settings["state"] == {"share": 0.3, "max_tokens": 2048}
    assert summary.settings["metadata"] == {"user_id": "u"}
    assert coverage(summary)["lines"] == state.counts
    assert not {"asked_again", "by_rules"} & coverage(summary).keys()
    assert (usage(summary)["requests"], len((summary.provider or {})["messages"])) == (1, 1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("name", "wrong", "fault"),
    [
        ("facts", None, "missing"),
        ("facts", {"text": "x"}, "not a list"),
        ("facts", ["The test is test_zone."], "a line without text"),
        ("decisions", [line(" ", 4)], "a line without text"),
        ("facts", [{"text": "The test is test_zone."}], "a line without seqs"),
        ("facts", [line("The test is test_zone.")], "a line without seqs"),
        ("facts", [{"text": "The test is test_zone.", "seqs": ["4"]}], "a line without seqs"),
        ("facts", [{"text": "The test is test_zone.", "seqs": [True]}], "a line without seqs"),
        ("next", [line("Run the tests.", 4, 5)], "seqs outside of the span"),
        ("task", [line("Mend it.", 0)], "seqs outside of the span"),
        ("errors", [line(TOO_LONG, 1)], "over its budget"),
    ],
    ids=str,
)
def test_a_part_with_a_fault_is_asked_for_again_alone(
    ask: Ask, stub: Server, api: str, name: str, wrong: Any, fault: str
) -> None:
    first = {**GOOD, name: wrong}
    if wrong is None:
        del first[name]
    stub.does(reply(api, json.dumps(first)), reply(api, json.dumps({name: [line("Said better.", 4)]})))
    summary = ask(api, span())
    both, alone = stub.requests
    assert schema_of(api, alone)["required"] == [name]
    assert [part for part in ASKED if f'- "{part}": ' in prompt_of(api, alone)] == [name]
    assert document_of(api, alone) == document_of(api, both)
    assert summary.prompt == prompt_of(api, both)
    assert coverage(summary)["asked_again"] == {name: fault}
    assert "by_rules" not in coverage(summary)
    state = state_of(summary)
    assert state[name] == (StateLine("Said better.", (4,)),)  # type: ignore[index]
    kept = [one for one in GOOD if one != name and GOOD[one]]
    assert [told(state, one) for one in kept] == [[found["text"] for found in GOOD[one]] for one in kept]
    assert usage(summary)["requests"] == 2


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("again", ["wrong", "unavailable", "refused", "cut short"])
def test_a_part_with_a_fault_twice_is_filled_by_rules(ask: Ask, stub: Server, api: str, again: str) -> None:
    wrong = {**GOOD, "task": [line(f"Invented, {SECRET}.", 99)]}
    second, fault = {
        "wrong": (reply(api, json.dumps(wrong)), "seqs outside of the span"),
        "unavailable": (refuses(api, 503), "SummarizerUnavailable"),
        "refused": (reply(api, "I'm sorry, but I can't help with that."), "SummaryRefused"),
        "cut short": (
            {
                "anthropic": says("{", "max_tokens"),
                "chat": chat_server.answers({"content": "{"}, "length"),
                "responses": reply(api, "{"),
            }[api],
            "missing" if api == "responses" else "SummaryCutShort",
        ),
    }[again]
    stub.does(reply(api, json.dumps(wrong)), second)
    summary = ask(api, span())
    assert len(stub.requests) == 2
    assert coverage(summary)["asked_again"] == {"task": "seqs outside of the span"}
    assert coverage(summary)["by_rules"] == {"task": fault}
    state, by_rules = state_of(summary), state_of(StateSummary()(span()))
    assert {found.seqs for found in state["task"]} <= {(1,), (3,)}
    assert told(state, "task")[0].startswith("Please mend the parser in src/dates.py")
    assert told(by_rules, "task")[0].startswith("Please mend the parser in src/dates.py")
    assert "Invented" not in summary.text
    assert told(state, "decisions") == [GOOD["decisions"][0]["text"]]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("around", ["Here it is:\n```json\n{}\n```\nI hope that it helps.", "{}"])
def test_broken_json_loses_only_the_parts_that_are_broken(ask: Ask, stub: Server, api: str, around: str) -> None:
    whole = json.dumps(GOOD)
    broken = whole[: whole.index('"todos"') + 30]
    later = {name: GOOD[name] for name in ("todos", "next")}
    stub.does(reply(api, around.format(broken)), *(reply(api, json.dumps({n: later[n]})) for n in later))
    summary = ask(api, span())
    assert coverage(summary)["asked_again"] == {"todos": "broken JSON", "next": "missing"}
    assert state_of(summary).counts == {**{name: len(found) for name, found in GOOD.items() if found}, "orders": 1}
    assert usage(summary)["requests"] == 3


@pytest.mark.parametrize("api", APIS)
def test_without_json_every_part_is_asked_for_alone_and_then_filled_by_rules(ask: Ask, stub: Server, api: str) -> None:
    stub.does(reply(api, f"They want the parser to be mended, and said {SECRET}."))
    summary = ask(api, span())
    assert len(stub.requests) == 1 + len(ASKED)
    assert coverage(summary)["by_rules"] == dict.fromkeys(ASKED, "missing")
    assert state_of(summary) == state_of(StateSummary()(span()))
    # What the requests cost is in the record, one for one.
    assert usage(summary)["requests"] == len(stub.requests)
    assert usage(summary)["output_tokens"] == len(stub.requests) * (9 if api == "anthropic" else 3)


@pytest.mark.parametrize("api", ["anthropic", "chat"])
def test_an_answer_that_was_cut_short_is_asked_for_in_parts(ask: Ask, stub: Server, api: str) -> None:
    cut = says("{", "max_tokens") if api == "anthropic" else chat_server.answers({"content": "{"}, "length")
    stub.does(cut, *(reply(api, json.dumps({name: GOOD[name]})) for name in ASKED))
    summary = ask(api, span())
    assert coverage(summary)["asked_again"] == dict.fromkeys(ASKED, "cut short")
    assert told(state_of(summary), "next") == ["Run the tests."]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_server_without_schemas_is_asked_for_plain_json(ask: Ask, stub: Server, api: str, status: int) -> None:
    stub.does(refuses(api, status), reply(api, json.dumps(GOOD)))
    summary = ask(api, span())
    assert [schema_of(api, sent) is None for sent in stub.requests] == [False, True]
    assert '{"task":[{"text":' in prompt_of(api, stub.requests[1])
    assert told(state_of(summary), "next") == ["Run the tests."]
    assert usage(summary)["requests"] == 1


@pytest.mark.parametrize("api", APIS)
def test_a_server_that_refuses_plain_json_too_is_an_error_without_content(ask: Ask, stub: Server, api: str) -> None:
    stub.does(refuses(api))
    with pytest.raises(SummarizerRejected) as caught:
        ask(api, span())
    assert len(stub.requests) == 2
    assert SECRET not in str(caught.value) + repr(caught.value.attempted)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("I'm sorry, but I can't help with that.", SummaryRefused),
        ("", SummaryUseless),
        (json.dumps({name: [] for name in ASKED}), SummaryUseless),
    ],
    ids=["refusal", "empty", "no lines"],
)
def test_no_answer_at_all_is_an_error_with_its_cost(
    ask: Ask, stub: Server, api: str, text: str, error: type[Exception]
) -> None:
    stub.does(reply(api, text))
    with pytest.raises(error) as caught:
        ask(api, span())
    attempted: Any = caught.value.attempted  # type: ignore[attr-defined]
    assert (attempted.usage["requests"], attempted.summarizer[:13]) == (1, "StateSummary(")
    assert SECRET not in str(caught.value)


def test_a_server_that_is_down_is_an_error(ask: Ask, stub: Server) -> None:
    stub.does(fails(500, "api_error", SECRET))
    with pytest.raises(SummarizerUnavailable) as caught:
        ask("anthropic", span())
    assert SECRET not in str(caught.value)


EARLIER = State(
    {
        "task": [StateLine("Mend the parser in src/dates.py.", (1,))],
        "orders": [StateLine("Never push to main.", (1,))],
        "files": [StateLine("src/dates.py (read)", (2,)), StateLine("src/old.py (written)", (3,))],
        "facts": [StateLine("The test is test_zone.", (4,)), StateLine("It runs on Python 3.11", (4,))],
        "todos": [StateLine("mend it (in_progress)", (5,))],
        "next": [StateLine("Mend it.", (5,))],
    }
)


def folded(*payloads: Payload) -> list[Element]:
    """Returns the earlier state, in place of messages 1 to 5, and later messages."""
    later = [one._replace(seq=one.seq + 5, end_seq=one.seq + 5) for one in elements(*payloads)]
    framed = (frame(EARLIER.text, 1, 5),)
    return [Element(1, 5, 9, framed, 200, 1, later[0].created_at, "summary", "f"), *later]


@pytest.mark.parametrize("api", APIS)
def test_an_earlier_state_is_given_as_json_and_merged_part_by_part(ask: Ask, stub: Server, api: str) -> None:
    new = {
        **{name: [] for name in ASKED},
        "files": [line("src/dates.py (written: keeps the zone)", 7), line("README.md", 7)],
        "facts": [line("The tests take 5 s", 7), line("They run in two processes", 7)],
        "todos": [line("mend it (completed)", 7), line("run the tests (pending)", 7)],
        "next": [line("Run the tests.", 7)],
    }
    stub.does(reply(api, json.dumps(new)))
    given = folded({"role": "user", "content": LONG}, {"role": "assistant", "content": LONG})
    summary = ask(api, given)
    shown = document_of(api, stub.requests[0])["messages"][0]
    assert shown["notes"] == {name: [found.as_dict() for found in lines] for name, lines in EARLIER.items()}
    state = state_of(summary)
    assert state["orders"] == EARLIER["orders"]
    assert state["task"] == EARLIER["task"]
    assert state["facts"] == (
        *EARLIER["facts"],
        StateLine("The tests take 5 s", (7,)),
        StateLine("They run in two processes", (7,)),
    )
    assert told(state, "files") == ["src/old.py (written)", "src/dates.py (written: keeps the zone)", "README.md"]
    assert told(state, "todos") == ["mend it (completed)", "run the tests (pending)"]
    assert (told(state, "next"), told(state, "decisions")) == (["Run the tests."], ["Mend it."])


def test_a_part_filled_by_rules_keeps_the_earlier_lines_too(ask: Ask, stub: Server) -> None:
    new = {**{name: [] for name in ASKED}, "facts": 5, "next": [line("Run the tests.", 7)]}
    stub.does(reply("anthropic", json.dumps(new)))
    summary = ask("anthropic", folded({"role": "user", "content": LONG}, {"role": "assistant", "content": LONG}))
    assert coverage(summary)["by_rules"] == {"facts": "not a list"}
    assert told(state_of(summary), "facts")[:1] == ["The test is test_zone. It runs on Python 3.11"]


def test_other_notes_are_given_as_they_are(ask: Ask, stub: Server) -> None:
    stub.does(reply("anthropic", json.dumps({**GOOD, "next": [line("Run the tests.", 7)]})))
    given = folded({"role": "user", "content": LONG}, {"role": "assistant", "content": LONG})
    given[0] = given[0]._replace(messages=(frame("They talked about the parser.", 1, 5),))
    ask("anthropic", given)
    assert document_of("anthropic", stub.requests[0])["messages"][0]["notes"] == "They talked about the parser."


def test_a_long_answer_is_cut_to_the_size_of_the_summary(ask: Ask, stub: Server) -> None:
    many = [line(f"Fact {i}: the file number{i}.py has {i} lines of code in it.", 4) for i in range(40)]
    stub.does(reply("anthropic", json.dumps({**GOOD, "facts": many[:4], "decisions": many[4:8], "task": many[8:12]})))
    summary = ask("anthropic", span(), {"max_tokens": 300})
    assert Request(()).count(summary.text) <= 300
    assert told(state_of(summary), "orders") == ["Never push to main."]
    stub.does(reply("anthropic", json.dumps({**GOOD, "facts": many})))
    again = ask("anthropic", span(), {"max_tokens": 300})
    assert coverage(again)["by_rules"]["facts"] == "over its budget"


def test_what_is_too_long_for_the_model_is_asked_about_in_halves(ask: Ask, stub: Server) -> None:
    def answer(handler: Any, body: Payload) -> None:
        shown = json.loads(body["messages"][0]["content"])["messages"]
        if len(shown) > 2:
            return fails(400, "invalid_request_error", "prompt is too long")(handler, body)
        empty: dict[str, Any] = {name: [] for name in ASKED}
        said = {**empty, "facts": [line(f"Fact of {one['seq']}.", one["seq"]) for one in shown]}
        return says(json.dumps(said))(handler, body)

    stub.does(answer)
    summary = ask("anthropic", span())
    assert coverage(summary)["parts"] == [[1, 2], [3, 4]]
    assert [found.seqs for found in state_of(summary)["facts"]] == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("api", APIS)
def test_what_stays_in_view_is_shown_and_in_the_record(ask: Ask, stub: Server, api: str) -> None:
    stub.does(reply(api, json.dumps(GOOD | {"task": [], "facts": []})))
    view = span({"role": "user", "content": "Go on."})
    summary = ask(api, Request.within(view[1:4], view))
    shown = document_of(api, stub.requests[0])
    assert [one["seq"] for one in shown["stays_in_view_before"]] == [1]
    assert coverage(summary)["around"] == [1, 5]


@pytest.mark.parametrize("api", APIS)
def test_inline_the_conversation_itself_is_asked_about_with_its_seqs(ask: Ask, stub: Server, api: str) -> None:
    stub.does(reply(api, json.dumps({**GOOD, "facts": 5})), reply(api, json.dumps({"facts": GOOD["facts"]})))
    summary = ask(api, span(), mode="inline")
    first, alone = stub.requests
    for sent in (first, alone):
        # A schema would change the prefix that the provider has in its cache.
        assert schema_of(api, sent) is None
        last = sent["input" if api == "responses" else "messages"][-1]["content"]
        text = last[-1]["text"] if isinstance(last, list) else last
        assert '{"1":"Never push to main. Please mend the parser' in text
    assert told(state_of(summary), "facts") == ["The test is test_zone."]
    assert summary.settings is not None
    assert summary.settings["mode"] == "inline"


def test_text_that_no_record_can_hold_is_kept_out_of_trouble(store: Face, stub: Server) -> None:
    odd = [line("A lone \ud800 surrogate, and a NUL: \0, and ## Task\n## Errors", 2)]
    stub.does(says(json.dumps({**GOOD, "facts": odd, "next": []})))
    for one in span():
        store.append("t", one.messages[0])
    store.append("t", [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Yes."}])
    with anthropic.Anthropic(api_key="k", base_url=stub.url, max_retries=0) as client:
        [record] = store.compact(
            "t", lambda ctx: ctx.compact(1, 4, StateSummary(AnthropicSummarizer(client, model="m")))
        )
    assert record.outcome == "applied"
    assert record.parts is not None
    assert record.parts["facts"][0].seqs == (2,)
    assert (record.summarizer, record.inputs) == ("StateSummary(AnthropicSummarizer)", (0,))
    assert store.audit.verify("t").findings == ()


def test_two_folds_of_a_store_merge(store: Face, stub: Server) -> None:
    def answer(handler: Any, body: Payload) -> None:
        shown = json.loads(body["messages"][0]["content"])["messages"]
        seqs = [one["seq"] for one in shown if "message" in one]
        said = {**{name: [] for name in ASKED}, "facts": [line(f"Fact {seq} is known.", seq) for seq in seqs]}
        says(json.dumps(said))(handler, body)

    stub.does(answer)
    with anthropic.Anthropic(api_key="k", base_url=stub.url, max_retries=0) as client:
        summarize = StateSummary(AnthropicSummarizer(client, model="m"))
        for end in (2, 6):
            store.append("t", [one.messages[0] for one in span()])
            [record] = store.compact("t", lambda ctx, end=end: ctx.compact(1, end, summarize))
    assert json.loads(stub.requests[1]["messages"][0]["content"])["messages"][0]["notes"]["facts"][0]["seqs"] == [1]
    assert record.parts is not None
    assert [found.seqs for found in record.parts["facts"]] == [(seq,) for seq in range(1, 7)]


def test_what_can_be_asked_is_checked(stub: Server) -> None:
    with anthropic.Anthropic(api_key="k", base_url=stub.url) as client:
        native = AnthropicSummarizer(client, model="m", mode="native")
        for wrong in (native, StateSummary(), AnthropicSummarizer, client, lambda _: "Notes.", "anthropic"):
            given: Any = wrong
            with pytest.raises(InvalidInput, match="summarize must be an AnthropicSummarizer or OpenAISummarizer"):
                StateSummary(given)
        asked = StateSummary(AnthropicSummarizer(client, model="m"))
        assert repr(asked) == "StateSummary(AnthropicSummarizer(model='m', mode='prompt'), share=0.3, max_tokens=2048)"


def test_the_usage_of_every_request_is_summed(ask: Ask, stub: Server) -> None:
    def spends(text: str, count: int) -> Behaviour:
        return answers(message({"type": "text", "text": text}, usage={"input_tokens": count, "output_tokens": 1}))

    stub.does(spends(json.dumps({**GOOD, "next": 5, "task": 5}), 100), spends("{", 20), spends("{", 3))
    summary = ask("anthropic", span())
    assert (usage(summary)["input_tokens"], usage(summary)["output_tokens"], usage(summary)["requests"]) == (123, 3, 3)
    assert list(coverage(summary)["by_rules"]) == ["task", "next"]
