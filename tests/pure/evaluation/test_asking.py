"""Questions about compacted views: made by rules from what follows, answered by a model, and graded by a rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI
from support import chat_server
from support.messages_server import Behaviour, Server, fails, says, serving
from support.probed_threads import assistant, call, result, user
from support.reading_model import reads

from compaction_store import TokenBudget, tokens
from compaction_store.errors import InvalidInput
from compaction_store.evaluation import Evaluation, Examiner, Policy, RecordedThread, evaluate
from compaction_store.evaluation.asking import ASKED
from compaction_store.models import Message
from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer

ORDERS = {
    "ORD-1001": "lamp for Miller", "ORD-1002": "chair for Okafor", "ORD-1003": "table for Sato",
    "ORD-1004": "shelf for Novak", "ORD-1005": "clock for Weber",
}  # fmt: skip
SAID = [f"{order} is the {what}." for order, what in ORDERS.items()]
DECIDED = "We decided to refund broken glass without a photograph."
LATER = [
    "We decided to close the old warehouse in autumn.", "We decided to hire two drivers for the north.",
    "We decided to print the catalogue on grey paper.",
]  # fmt: skip
FILLING = "It rains again and nobody minds. " * 30
LIST = ", ".join(ORDERS)
BUDGET = TokenBudget(100_000, trigger=900, target=300)


def written(path: str, number: int) -> list[Any]:
    return [
        call("write_file", {"path": path, "text": "x"}, id=f"w{number}"),
        result(f"{path}: written", id=f"w{number}"),
    ]


def recorded(*payloads: Any, name: str = "t") -> RecordedThread:
    at, count = datetime(2026, 1, 1, tzinfo=UTC), tokens.bytes_over_four()
    return RecordedThread(name, tuple(
        Message(seq, seq, one["role"], one, count.messages([one]), at, None, False, json.dumps(one))
        for seq, one in enumerate(payloads, 1)
    ))  # fmt: skip


THREAD = recorded(
    user(" ".join(SAID)), assistant(DECIDED + " The names are in docs/read_me.md and docs/names.md."),
    *written("shop/prices.py", 1), assistant("The prices are as you wanted them."), user(FILLING * 3),
    assistant("It does rain rather often here."), user("And now?"), assistant("Now we look at all the rest of it."),
    user("Send the table for Sato, ORD-1003, and the clock for Weber, ORD-1005."),
    assistant(" ".join(["I sent them both to you.", *LATER])), user("Is shop/prices.py right?"),
)  # fmt: skip


def folding(text: str) -> Callable[[Any], None]:
    """Returns a callback that folds the beginning of the thread."""

    def fold(ctx: Any) -> None:
        if ctx.elements[0].number is None:
            ctx.compact(1, 7, text)

    return fold


def policies(**summaries: str) -> list[Policy | str]:
    return [Policy(name, (folding(text),), BUDGET) for name, text in summaries.items()]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.does(reads)
        yield running


@pytest.fixture(params=["anthropic", "openai"])
def answer(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    if request.param == "anthropic":
        with Anthropic(base_url=server.url, api_key="k", max_retries=0) as client:
            yield AnthropicSummarizer(client, model="m").answer
    else:
        with OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as openai:
            yield OpenAISummarizer(openai, model="m").answer


def asked(answer: Any, given: list[Policy | str], **options: Any) -> Evaluation:
    return evaluate([THREAD], given, counter=tokens.bytes_over_four(), ask=Examiner(answer, **options))


def test_a_summary_that_says_more_gets_more_answers_right(answer: Any, server: Server) -> None:
    said = "\n".join([*SAID, DECIDED, "The file shop/prices.py was written."])
    found = asked(answer, policies(says=said, lists=LIST, nothing="They talked."), limit=5)
    says, lists, nothing = found.policies
    for kind in ("asked_recall", "asked_artifact", "asked_decision"):
        assert says.rates[kind].share == 1
        assert says.rates[kind].asked == lists.rates[kind].asked == nothing.rates[kind].asked > 0
        assert lists.rates[kind].share == nothing.rates[kind].share == 0
    assert says.rates["asked_recall"].asked == 2 * 2
    # The stand-in for a model cannot know what comes next, even if it sees everything.
    assert "asked_continuation" not in says.rates
    assert (says.rates["asked_whole"].asked, says.rates["asked_whole"].kept) == (5, 4)
    difference = found.difference("asked_recall", "says", "lists")
    assert difference is not None
    assert difference.points == 1
    assert found.asked is not None
    # Three policies with five questions, each asked twice, and the same five questions with all messages.
    assert found.asked["calls"] == 3 * 5 * 2 + 5 == len(server.requests)
    assert (found.asked["failed"], found.asked["model"]) == (0, "m")
    assert found.asked["tokens"] > 0
    written = found.as_dict()
    assert written["asked"]["replicates"] == 2
    assert {one["probe"] for one in written["differences"]} >= {"asked_recall", "asked_decision"}


def test_a_model_sees_the_view_alone_and_everything_once(answer: Any, server: Server) -> None:
    asked(answer, policies(one="They talked."), replicates=3, limit=1)
    shown = [json.loads(body["messages"][-1]["content"]) for body in server.requests]
    assert [FILLING.strip() in json.dumps(one["view"]) for one in shown] == [False, False, False, True]
    assert len({json.dumps([one["question"], one["options"]]) for one in shown}) == 1
    assert sorted(shown[0]["options"]) == ["1", "2", "3", "4"]
    assert "ORD-1003" in shown[0]["options"].values()
    assert "ORD-1003" not in shown[0]["question"]
    # What the view has and what comes later are in no view.
    assert all(LATER[0] not in json.dumps(one["view"]) for one in shown)


def test_replicates_count_once_in_the_interval(answer: Any) -> None:
    once, often = (asked(answer, policies(one=LIST), replicates=n, limit=5).policies[0] for n in (1, 5))
    for kind, rate in once.rates.items():
        times = 5 if kind in ("asked_recall", "asked_artifact", "asked_decision") else 1
        assert (often.rates[kind].asked, often.rates[kind].kept) == (times * rate.asked, times * rate.kept)
        assert (often.rates[kind].low, often.rates[kind].high) == (rate.low, rate.high)
        assert often.lost_in_100_calls(kind) == once.lost_in_100_calls(kind)


def test_a_call_that_fails_is_no_answer(answer: Any, server: Server) -> None:
    server.does(fails(400, "invalid_request_error"))
    found = asked(answer, policies(one=LIST), limit=2)
    assert not any(kind.startswith("asked") for kind in found.policies[0].rates)
    assert found.asked is not None
    assert found.asked["failed"] == found.asked["calls"] == 6
    assert found.asked["errors"] == {"SummarizerRejected": 6}


def _by_api(anthropic: Behaviour, chat: Behaviour) -> Behaviour:
    return lambda handler, body: (anthropic if handler.path.endswith("/messages") else chat)(handler, body)


TOO_LONG = fails(400, "invalid_request_error", "prompt is too long: 9000 tokens > 4096 maximum")
WEAK = {
    "SourceTooLong": TOO_LONG,
    "SummaryCutShort": _by_api(says("It rains " * 9, "max_tokens"), chat_server.answers({"content": "It"}, "length")),
    "SummaryRefused": _by_api(says("No.", "refusal"), chat_server.answers({"content": ""}, "content_filter")),
    "SummaryUseless": _by_api(says(" "), chat_server.says(" ")),
}


@pytest.mark.parametrize(("error", "behaviour"), WEAK.items(), ids=WEAK)
def test_a_weak_models_errors_are_counted_by_their_type(
    answer: Any, server: Server, error: str, behaviour: Behaviour
) -> None:
    server.does(behaviour, behaviour, reads)
    found = asked(answer, policies(one=SAID[2]), limit=2)
    assert found.asked is not None
    assert (found.asked["failed"], found.asked["errors"], found.asked["calls"]) == (2, {error: 2}, 6)
    # The other answers count.
    assert any(kind.startswith("asked") for kind in found.policies[0].rates)


@pytest.mark.parametrize("said", ['{"answer": "ORD-1003"', "I'm sorry, but I can't help you.", "Either 1 or 2."])
def test_an_answer_without_one_number_is_unclear_and_wrong(answer: Any, server: Server, said: str) -> None:
    server.does(_by_api(says(said), chat_server.says(said)))
    found = asked(answer, policies(one=LIST), limit=1)
    assert found.asked is not None
    assert (found.asked["unclear"], found.asked["failed"], found.asked["errors"]) == (3, 0, {})
    # A question that the model cannot answer even with all messages is left out.
    assert {kind: rate.kept for kind, rate in found.policies[0].rates.items() if kind in ASKED} == {}
    assert found.policies[0].rates["asked_whole"].kept == 0


@pytest.mark.parametrize(("said", "share"), [("3", 1), ("**3**", 1), ("Option 3 is it.", 1), ("0", 0), ("3 or 4", 1),
    ("either 3 or 4", 0), ("None", 0), ("13", 0), ("", 0)])  # fmt: skip
def test_an_answer_is_graded_by_its_number(said: str, share: int) -> None:
    right = set()

    def answer(_prompt: str, document: str) -> str:
        given = json.loads(document)
        number = next(n for n, option in given["options"].items() if option == "ORD-1003")
        right.add(number)
        is_whole = "rains" in document
        return number if is_whole else said.replace("3", number).replace("4", "4" if number != "4" else "2")

    found = asked(answer, policies(one=LIST), limit=1)
    assert found.policies[0].rates["asked_recall"].share == share
    assert len(right) == 1


class Seen(list[Any]):
    """Keeps the documents, and answers nothing."""

    def __call__(self, _prompt: str, document: str) -> str:
        self.append(json.loads(document))
        return "0"


def test_the_same_thread_gives_the_same_questions() -> None:
    one, two = Seen(), Seen()
    for seen in (one, two):
        asked(seen, policies(one=LIST), limit=9)
    assert one == two
    assert len({document["question"] for document in one}) >= 4


def test_what_the_view_still_has_is_not_asked() -> None:
    def last(ctx: Any) -> None:
        if ctx.elements[0].number is None:
            ctx.compact(3, 7, "They talked.")

    seen = Seen()
    asked(seen, [Policy("last", (last,), BUDGET)], limit=9)
    said = {one["question"] for one in seen}
    assert said
    assert not any("____" in question or "decide" in question for question in said)


def test_credentials_are_in_no_question() -> None:
    secret = [f"sk-ant-api03-{letter * 24}1x{letter * 24}" for letter in "abcde"]
    thread = recorded(
        user(" ".join(f"The key {key} is for {order}." for key, order in zip(secret, ORDERS, strict=True))),
        assistant(FILLING * 4), user("Go on."), assistant("Yes."),
        user(f"Use {secret[2]} and then {secret[3]}, for ORD-1003."), assistant("Done."),
    )  # fmt: skip
    seen = Seen()

    def fold(ctx: Any) -> None:
        if ctx.elements[0].number is None:
            ctx.compact(1, 2, "They talked.")

    policy = Policy("p", (fold,), BUDGET)
    evaluate([thread], [policy], counter=tokens.bytes_over_four(), ask=Examiner(seen, limit=9))
    assert seen[0]["question"].count("____") == 2
    assert not any("api03" in one["question"] + json.dumps(one["options"]) for one in seen)


def test_an_examiner_that_cannot_be_asked_is_refused() -> None:
    given: Any = "model"
    with pytest.raises(InvalidInput, match="ask must be a callable"):
        Examiner(given)
    with pytest.raises(InvalidInput, match="limit must be"):
        Examiner(lambda _prompt, _document: "1", limit=0)
    with pytest.raises(InvalidInput, match="replicates must be"):
        Examiner(lambda _prompt, _document: "1", replicates=0)
