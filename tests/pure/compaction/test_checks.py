"""Checked summaries: faults are repaired once, lost lines are appended with their seqs, strict checks reject."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from support.probed_threads import assistant, result, use, user
from support.strategy_runs import COUNTER, attempts_of, context_of, elements, run

from compaction_store import CompactionContext, InvalidInput, Summary
from compaction_store.checks import (
    Check,
    CheckedSpan,
    KeepsFiles,
    KeepsIdentifiers,
    KeepsOrders,
    NothingInvented,
    NothingStale,
    QuotesAreQuotes,
)
from compaction_store.compaction.context import planner_of
from compaction_store.compaction.summary_request import Repair, Request
from compaction_store.errors import ChecksFailed, NoProgress
from compaction_store.models import Attempt
from compaction_store.probes import Probe
from compaction_store.rendering.view import View
from compaction_store.strategies import AssistantRuns, Ladder, SlidingWindow, SummaryTree, compress_context
from compaction_store.summarizers import FallbackSummarizer, StateSummary

Payload = dict[str, Any]
KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0k1"
FILLER = "The work on the service went on as it was planned, step by step, and nothing was remarkable about it. " * 4
THREAD = [
    user(f"Never push to main without Ben's approval. {FILLER}"),
    use("read", {"path": "src/core/session.py"}),
    result(f"class SessionStore: timeout = 4250\n{FILLER}"),
    use("edit", {"path": "src/core/session.py", "new": "x"}, id="c2"),
    result("ok", id="c2"),
    assistant(f"Changed. {FILLER}"),
    user("Go on."),
]
END = 6
GOOD = "They never push to main without approval by Ben. src/core/session.py was edited; its timeout is 4250."
LOSSY = "The session's file was edited."
ORDER_LINE = "[1] user: Never push to main without Ben's approval."


class Writer:
    """A summarizer that can repair: it has an answer for the summary, and one for the repair."""

    can_repair = True

    def __init__(self, first: str, second: str | Exception) -> None:
        self.first = first
        self.second = second
        self.repairs: list[Repair] = []

    def __call__(self, given: Sequence[Any]) -> Summary:
        repair = Request.of(given).repair
        if repair is None:
            return Summary(self.first, usage={"input_tokens": 900, "output_tokens": 20, "note": "x"}, duration=2.0)
        self.repairs.append(repair)
        if isinstance(self.second, Exception):
            raise self.second
        return Summary(self.second, usage={"input_tokens": 70, "output_tokens": 30, "note": "y"}, duration=1.0)


def compacted(
    summary: Any, *checks: Check, messages: Sequence[Payload] = THREAD, end: int = END
) -> tuple[CompactionContext, Attempt]:
    ctx = context_of(View("t", 0, tuple(elements(messages))))
    ctx.compact(1, end, summary, checks=checks)
    return ctx, attempts_of(ctx)[-1]


def text(attempt: Attempt) -> str:
    assert attempt.summary is not None
    return attempt.summary.text


def outcomes(attempt: Attempt) -> dict[str, Payload]:
    assert attempt.summary is not None
    assert attempt.summary.checks is not None
    return {one["check"]: one for one in attempt.summary.checks["outcomes"]}


def test_a_summary_that_passes_is_taken_as_it_is() -> None:
    _, attempt = compacted(GOOD, KeepsOrders(), KeepsIdentifiers(), KeepsFiles(), NothingInvented(), NothingStale())
    assert text(attempt) == GOOD
    assert {one["passed"] for one in outcomes(attempt).values()} == {True}
    assert outcomes(attempt)["KeepsOrders"] == {
        "check": "KeepsOrders", "strict": False, "asked": 1, "failed": 0, "left": 0, "exempt": 0, "passed": True,
        "examples": [],
    }  # fmt: skip


@pytest.mark.parametrize("summary", [LOSSY, lambda _elements: LOSSY], ids=["text", "summarizer"])
def test_lost_lines_are_appended_with_their_seqs(summary: Any) -> None:
    ctx, attempt = compacted(summary, KeepsOrders(), KeepsIdentifiers(), KeepsFiles())
    assert text(attempt).splitlines() == [
        LOSSY, "Word for word from the messages:", ORDER_LINE, "[2] named: src/core/session.py",
        "[4] named: src/core/session.py",
    ]  # fmt: skip
    shown = json.dumps(ctx.result_messages, ensure_ascii=False).replace("\\n", "\n")
    assert all(line in shown for line in text(attempt).splitlines())
    found = outcomes(attempt)["KeepsOrders"]
    assert (found["asked"], found["failed"], found["left"], found["passed"]) == (1, 1, 0, False)
    [example] = found["examples"]
    assert (example["seq"], example["field"], example["text"]) == (1, "content", ORDER_LINE.partition("user: ")[2])
    assert attempt.summary is not None
    assert attempt.summary.checks is not None
    assert attempt.summary.checks["appended"] == 3


@pytest.mark.parametrize(
    "said",
    [
        "Authorization: Bearer abcDEF123456ghiJKL789", "the password is Hunter2Zebra99", "the api key is Zk93jd82LmQp",
        "token: 9f8e7d6c5b4a39281706",
        "DB_PASSWORD=Tr0ub4dor_3", f"the key {KEY}", "https://user:pa55w0rdX@host.example/x",
    ],
)  # fmt: skip
def test_a_credential_is_not_appended_where_only_the_words_before_it_tell(said: str) -> None:
    value = said.rpartition(" ")[2].rpartition("=")[2]
    messages = [user(f"Never show {said} to anybody. {FILLER}"), assistant(FILLER), user(f"Use {value}. {FILLER}")]
    checks = KeepsOrders(), KeepsIdentifiers(least=1.0), KeepsFiles(), NothingInvented(), QuotesAreQuotes()
    ctx, attempt = compacted(LOSSY, *checks, messages=[*messages, assistant(FILLER), user("Go.")], end=4)
    assert ORDER_LINE[:9] not in text(attempt)
    assert value not in json.dumps([ctx.result_messages, attempt.summary and attempt.summary.checks])
    assert outcomes(attempt)["KeepsOrders"]["exempt"] == 1


@pytest.mark.parametrize("value", ["Zk93jd82LmQp", "correcthorse", "Tr0ub4dor_3"])
def test_a_credential_is_not_appended_where_only_another_sentence_tells(value: str) -> None:
    messages = [
        user(f"My password: {value}. Never show {value} to anybody! {FILLER}"),
        assistant(FILLER),
        user(f"Always log in with '{value}'. The budget cap is $450 for it."),
        user(f"Now the budget cap is $900, and {'x ' * 250} {value} stays."),
    ]
    writer = Writer("The budget cap is $450.", "They spoke of the $450.")
    checks = KeepsOrders(), KeepsIdentifiers(least=1.0), NothingStale()
    ctx, attempt = compacted(writer, *checks, messages=[*messages, assistant(FILLER), user("Go.")], end=4)
    assert value not in json.dumps([ctx.result_messages, attempt.summary and attempt.summary.checks])
    assert not any(value in line for repair in writer.repairs for line in repair.missing)
    assert outcomes(attempt)["KeepsOrders"]["exempt"] == 2


def test_without_checks_nothing_is_asked() -> None:
    _, attempt = compacted(LOSSY)
    assert (text(attempt), attempt.summary and attempt.summary.checks) == (LOSSY, None)


def test_a_summarizer_is_given_the_faults_once() -> None:
    writer = Writer("The timeout of SessionCache is 4520.", GOOD)
    _, attempt = compacted(writer, KeepsOrders(), NothingInvented())
    assert text(attempt) == GOOD
    [repair] = writer.repairs
    assert repair.text == writer.first
    assert repair.missing == (ORDER_LINE,)
    assert repair.unfounded == ("SessionCache", "4520")
    assert attempt.summary is not None
    assert attempt.summary.usage == {"input_tokens": 970, "output_tokens": 50, "note": "x"}
    assert attempt.summary.duration == 3.0
    assert attempt.summary.checks is not None
    assert attempt.summary.checks["repair"] == {"failures_before": 3, "failures_after": 0, "taken": True}


def test_a_repair_that_is_no_better_is_not_taken_and_its_cost_is_recorded() -> None:
    _, attempt = compacted(Writer(LOSSY, "Something else entirely."), KeepsOrders())
    assert text(attempt).startswith(LOSSY)
    assert ORDER_LINE in text(attempt)
    assert attempt.summary is not None
    assert attempt.summary.usage is not None
    assert attempt.summary.usage["input_tokens"] == 970


def test_a_repair_that_fails_leaves_the_first_summary() -> None:
    _, attempt = compacted(Writer(LOSSY, ValueError("the server is down")), KeepsOrders())
    assert attempt.outcome == "applied"
    assert ORDER_LINE in text(attempt)
    assert attempt.summary is not None
    assert attempt.summary.checks is not None
    assert attempt.summary.checks["repair"] == {"failed": "ValueError"}


@pytest.mark.parametrize("summary", [LOSSY, Writer(LOSSY, LOSSY)], ids=["text", "summarizer"])
def test_a_strict_check_rejects_with_its_name_and_counts(summary: Any) -> None:
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    with pytest.raises(ChecksFailed, match="KeepsOrders: 1 of 1 failed") as raised:
        ctx.compact(1, END, summary, checks=[KeepsOrders(strict=True), KeepsFiles()])
    assert "push" not in str(raised.value)
    [attempt] = attempts_of(ctx)
    assert (attempt.outcome, attempt.error and attempt.error["type"]) == ("rejected", "ChecksFailed")
    assert text(attempt) == ""
    assert outcomes(attempt)["KeepsOrders"]["failed"] == 1
    assert ctx.result_messages == THREAD
    assert planner_of(ctx).applied is False


def test_a_strict_check_passes_after_a_repair() -> None:
    _, attempt = compacted(Writer(LOSSY, GOOD), KeepsOrders(strict=True))
    assert (attempt.outcome, text(attempt)) == ("applied", GOOD)


def test_a_rejected_span_is_not_tried_again_until_the_thread_changes() -> None:
    assert issubclass(ChecksFailed, Exception)
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    with pytest.raises(ChecksFailed):
        ctx.compact(1, END, LOSSY, checks=[KeepsOrders(strict=True)])
    assert attempts_of(ctx)[0].error is not None
    assert attempts_of(ctx)[0].error["no_progress"] is True  # type: ignore[index]
    assert not issubclass(ChecksFailed, NoProgress)


def test_what_was_invented_is_named_in_the_summary() -> None:
    _, attempt = compacted(
        'Ben said "we will never ship this". SessionCache has 4250.', NothingInvented(), QuotesAreQuotes()
    )
    assert text(attempt).splitlines()[-1] == "In none of the messages: SessionCache, we will never ship this"
    assert outcomes(attempt)["NothingInvented"]["left"] == 1


def test_the_newer_value_is_appended_to_a_stale_one() -> None:
    messages = [
        user(f"The budget cap is $450 for it. {FILLER}"),
        assistant(FILLER),
        user("Now the budget cap is $900."),
        *THREAD[1:],
    ]
    _, attempt = compacted("The budget cap is $450.", NothingStale(), messages=messages, end=3)
    assert text(attempt).splitlines()[-1] == "[3] Now the budget cap is $900."
    assert outcomes(attempt)["NothingStale"]["left"] == 0


def test_a_credential_is_neither_named_nor_appended() -> None:
    messages = [
        user(f"Never use the key {KEY} for tests. {FILLER}"),
        assistant(FILLER),
        user(f"Set api_key to {KEY}."),
        *THREAD[1:],
    ]
    writer = Writer("They spoke of a key.", "They spoke of it.")
    _, attempt = compacted(writer, KeepsOrders(), KeepsIdentifiers(), messages=messages, end=3)
    assert KEY not in json.dumps(attempt.as_dict())
    assert not any(KEY in line for repair in writer.repairs for line in repair.missing)
    assert outcomes(attempt)["KeepsOrders"]["exempt"] == 1
    assert outcomes(attempt)["KeepsIdentifiers"]["exempt"] >= 1


def test_orders_are_kept_through_a_summary_of_a_summary() -> None:
    ctx, _ = compacted(LOSSY, KeepsOrders(), end=3)
    ctx.compact(1, END, "Work went on.", checks=[KeepsOrders()])
    last = attempts_of(ctx)[-1]
    assert text(last).splitlines().count(ORDER_LINE) == 1


def test_names_that_the_view_still_has_are_not_appended() -> None:
    messages = [*THREAD[:END], user("Look at src/core/session.py again, please."), *THREAD[-1:]]
    _, attempt = compacted(LOSSY, KeepsIdentifiers(), KeepsFiles(), messages=messages)
    assert text(attempt) == LOSSY


def test_a_check_may_be_lenient() -> None:
    assert text(compacted("src/core/session.py", KeepsIdentifiers(least=0.5))[1]) == "src/core/session.py"
    assert text(compacted(LOSSY, KeepsIdentifiers(calls=3))[1]) == LOSSY


class ShortLines(Check):
    """A check that an application defines."""

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        probes = span.probes(text, "standing_order")
        return [probe for probe in probes if len(text) < 1000 or not probe.kept]


def test_an_application_may_have_its_own_check() -> None:
    _, attempt = compacted(LOSSY, ShortLines())
    assert outcomes(attempt)["ShortLines"]["asked"] == 1


@pytest.mark.parametrize("checks", [KeepsOrders(), [KeepsOrders], "KeepsOrders", [KeepsOrders(), KeepsOrders()], None])
def test_anything_else_is_no_check(checks: Any) -> None:
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    with pytest.raises(InvalidInput, match="checks must"):
        ctx.compact(1, END, GOOD, checks=checks)


def test_options_of_checks_are_checked() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"least": 2}, {"calls": 0}, {"strict": 1})
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match="must be"):
            KeepsIdentifiers(**wrong)


# ---- strategies and summarizers


def lossy(_elements: Any) -> str:
    return LOSSY


STRATEGIES: dict[str, Callable[..., Any]] = {
    "sliding window": lambda **options: SlidingWindow(lossy, keep_first=False, **options),
    "assistant runs": lambda **options: AssistantRuns(lossy, tool_results=True, **options),
    "summary tree": lambda **options: SummaryTree(lossy, leaf_tokens=50, fan_in=2, keep_recent=1, **options),
    "ladder": lambda **options: Ladder(lossy, keep_recent=1, target_tokens=300, reserve=0, **options),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_its_summaries_checked(name: str) -> None:
    thread = [assistant(f"Hello. {FILLER}"), *THREAD]
    strategy = STRATEGIES[name](checks=[KeepsFiles()])
    ctx = run(strategy, elements(thread))
    made = [attempt for attempt in attempts_of(ctx) if attempt.kind == "summary" and attempt.outcome == "applied"]
    assert made
    assert any("named: src/core/session.py" in text(attempt) for attempt in made)
    assert "checks=(KeepsFiles(),)" in strategy.name


def test_appended_lines_stay_when_a_summary_must_be_cut_to_its_room() -> None:
    def long(_elements: Any) -> str:
        return "This is said again and again. " * 200

    thread = [*THREAD[:END], *[assistant(FILLER) for _ in range(6)], *THREAD[-1:]]
    ladder = Ladder(long, target_tokens=420, reserve=0, keep_recent=1, checks=[KeepsOrders()])
    ctx = run(ladder, elements(thread))
    [made] = [one for one in attempts_of(ctx) if one.outcome == "applied" and one.kind == "summary"]
    assert ORDER_LINE in text(made)
    assert made.summary is not None
    assert made.summary.checks is not None
    assert sum(element.tokens for element in ctx.elements) <= 420


def test_compress_context_checks_its_summary() -> None:
    thread = [*THREAD[:END], *[assistant(FILLER) for _ in range(6)], *THREAD[-1:]]
    done = compress_context(
        thread, 600, client=lossy, keep_recent=1, reserve=0, counter=COUNTER, checks=[KeepsOrders()]
    )
    assert ORDER_LINE in json.dumps(done.messages)


def test_a_summarizer_has_checks_of_its_own() -> None:
    given = elements(THREAD)[:END]
    made = FallbackSummarizer(lossy, checks=[KeepsOrders()])(given)
    assert isinstance(made, Summary)
    assert ORDER_LINE in made.text
    extract = StateSummary(share=0.05, checks=[KeepsOrders(), KeepsFiles()])(given)
    assert extract.checks is not None
    assert [one["left"] for one in extract.checks["outcomes"]] == [0, 0]


def test_a_fallback_asks_the_next_one_if_the_first_fails_a_strict_check() -> None:
    strict = FallbackSummarizer(lossy, checks=[KeepsOrders(strict=True)])
    made = FallbackSummarizer(strict, lambda _elements: GOOD)(elements(THREAD)[:END])
    assert isinstance(made, Summary)
    assert made.text == GOOD
    assert made.coverage is not None
    assert made.coverage["failed_before"][0]["type"] == "ChecksFailed"
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    with pytest.raises(ChecksFailed):
        ctx.compact(1, END, strict)
    assert attempts_of(ctx)[-1].outcome == "rejected"


def test_an_async_summarizer_is_checked_and_repaired() -> None:
    class Awaited(Writer):
        needs_async = True

        async def __call__(self, given: Sequence[Any]) -> Summary:  # type: ignore[override]
            await asyncio.sleep(0)
            return Writer.__call__(self, given)

    writer = Awaited(LOSSY, GOOD)

    async def plan() -> Attempt:
        ctx = context_of(View("t", 0, tuple(elements(THREAD))), awaits=True)
        await ctx.compact(1, END, writer, checks=[KeepsOrders(strict=True)])
        return attempts_of(ctx)[-1]

    assert text(asyncio.run(plan())) == GOOD
    assert len(writer.repairs) == 1
