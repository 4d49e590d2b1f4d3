"""A name in a bare list of a summary is lost, and an assistant's own use of a name needs it as any other use does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.messages_server import elements
from support.paths import ROOT
from support.probed_threads import assistant, call, once, probed, result, summary, user

from compaction_store import TokenBudget, tokens
from compaction_store.checks import KeepsIdentifiers
from compaction_store.compaction.summary_request import texts
from compaction_store.evaluation import Policy, RecordedThread, evaluate
from compaction_store.language.names import NameReader
from compaction_store.language.sentences import sentences
from compaction_store.models import Message
from compaction_store.probes.checked_span import CheckedSpan
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import Request, StateSummary

SAID = "The order ORD-7001 is late, ORD-7002 was paid, and shop/prices.py has the prices of 2,750 lamps."
THREAD = [user(SAID), assistant("I see."), user("Go on."), user("Where is ORD-7001?")]


@pytest.mark.parametrize(("text", "is_kept"), [
    ("The order ORD-7001 is late.", True),
    ("named: ORD-7002, ORD-7001, shop/prices.py, 2,750", False),
    ("ORD-7002, ORD-7001, and shop/prices.py", False),
    ("- ORD-7002\n- ORD-7001\n- shop/prices.py", False),
    ("| ORD-7002 | ORD-7001 | 2,750 |", False),
    ("ORD-7001", False),
    ("- ORD-7001 (late) [1]", True),
    ('{"order_id": "ORD-7001", "price": 2750, "file": "shop/prices.py"}', True),
    ("order_id: ORD-7001, price: 2750, file: shop/prices.py, other: ORD-7002", True),
    ("Orders that are late: ORD-7001, ORD-7002", True),
    ("ORD-7002, ORD-7001, 2,750\nWe must ask about ORD-7001.", True),
    ("ORD-7001号注文は遅れている", True),
    ("El pedido ORD-7001 llega tarde.", True),
])  # fmt: skip
def test_a_name_is_kept_by_a_passage_that_describes_it(text: str, is_kept: bool) -> None:
    [needed] = once(THREAD, text, 2, "needed_later")
    assert (needed.text, needed.kept) == ("ORD-7001", is_kept)
    assert needed.detail == ("in a summary" if is_kept else "in a list")
    [explained] = [probe for probe in once(THREAD, text, 2, "explained") if probe.text == "ORD-7001"]
    assert explained.kept is is_kept
    assert explained.is_loss is False
    assert needed.is_loss is not is_kept


def test_a_message_that_has_the_name_too_keeps_it() -> None:
    thread = [user(SAID), assistant("I see."), user("ORD-7001?"), assistant("Yes."), user("Where is ORD-7001?")]
    found = probed(thread, [(4, summary("named: ORD-7002, ORD-7001", 1, 2))])
    [needed] = [probe for probe in found if probe.type == "needed_later"]
    assert (needed.kept, needed.detail) == (True, "in a message")


def test_a_list_that_is_folded_into_a_sentence_is_a_list_no_more() -> None:
    thread = [user(SAID), assistant("I see."), user("Go on."), assistant("Yes."), user("Where is ORD-7001?")]
    first = summary("named: ORD-7002, ORD-7001", 1, 2)
    for text, is_kept in (("The order ORD-7001 is late.", True), ("ORD-7001, ORD-7002", False)):
        found = probed(thread, [(2, first), (4, summary(text, 1, 4, 2))])
        [needed] = [probe for probe in found if probe.type == "needed_later"]
        assert needed.kept is is_kept


def test_the_assistants_own_use_of_a_name_needs_it() -> None:
    thread = [user(SAID), assistant("I see."), user("Go on."), assistant("I sent ORD-7001 again.")]
    [lost] = once(thread, "They talked.", 2, "needed_later")
    assert (lost.text, lost.kept, lost.again and lost.again.seq) == ("ORD-7001", False, 4)
    # The call of the same reply is no second question, and a result before it ends the question.
    used = [*thread, call("send", {"order": "ORD-7001"})]
    assert len(once(used, "They talked.", 2, "needed_later")) == 1
    told = [*thread[:3], call("list", {}), result("ORD-7001 is there"), *thread[3:]]
    assert once(told, "They talked.", 2, "needed_later") == []
    # Of a long text, only the ends are read.
    long = [*thread[:3], assistant("It rains. " * 400 + "ORD-7001 again. " + "It rains. " * 400)]
    assert once(long, "They talked.", 2, "needed_later") == []


def test_a_check_asks_for_what_users_and_calls_used() -> None:
    made = elements(assistant("ORD-7001 is late."), assistant("ORD-7001 again."), assistant("ORD-7001 is here."))
    assert list(KeepsIdentifiers().probes(CheckedSpan(Request.of(made)), "They talked.")) == []
    made = elements(assistant("ORD-7001 is late."), user("Where is ORD-7001?"))
    [probe] = KeepsIdentifiers().probes(CheckedSpan(Request.of(made)), "They talked.")
    assert (probe.text, probe.place.seq) == ("ORD-7001", 2)


# ---- a session of an agent, with the summaries of several writers


COUNTER = tokens.o200k_base()
READER = NameReader()


def session() -> RecordedThread:
    lines = (ROOT / "compaction_store" / "cli" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    at, found = datetime(2026, 1, 1, tzinfo=UTC), [json.loads(text) for text in lines]
    return RecordedThread("demo", tuple(
        Message(seq, seq, one["role"], one, COUNTER.messages([one]), at, None, False, json.dumps(one))
        for seq, one in enumerate(found, 1)
    ))  # fmt: skip


def cut(asked: Any, text: str) -> str:
    request = Request.of(asked)
    room = sum(element.tokens for element in request) // 4
    return COUNTER.cut(text, min(room, room if request.budget is None else request.budget), "ends")


def said(asked: Any) -> str:
    return "\n".join(text for element in Request.of(asked) for text in texts(element))


def names_only(asked: Any) -> str:
    return cut(asked, ", ".join(name.text for name in READER.names(said(asked))))


def names_in_lines(asked: Any) -> str:
    return cut(asked, "\n".join(f"- {name.text}" for name in READER.names(said(asked))))


def head_and_tail(asked: Any) -> str:
    return cut(asked, said(asked))


def drawn_sentences(asked: Any) -> str:
    text = said(asked)
    found = [text[start:end] for start, end in sentences(text)]
    random.Random(3).shuffle(found)
    return cut(asked, "\n".join(found))


def test_a_bare_list_of_names_is_below_every_summary_that_says_what_they_are() -> None:
    writers: list[Callable[..., Any]] = [names_only, names_in_lines, StateSummary(), head_and_tail, drawn_sentences]
    policies = [
        Policy(str(place), (SlidingWindow(writer, retain=6),), TokenBudget(4000))
        for place, writer in enumerate(writers)
    ]
    found = evaluate([session()], policies, counter=COUNTER).policies
    assert all(result.outcomes["applied"] >= 3 for result in found)
    needed, explained = ([result.rates[kind] for result in found] for kind in ("needed_later", "explained"))
    assert all(rate.asked > 10 for rate in needed)
    assert max(rate.share for rate in explained[:2]) < 0.1
    assert min(rate.share for rate in explained[2:]) > 0.4
    assert max(rate.share for rate in needed[:2]) < min(rate.share for rate in needed[2:])
    lost = [result.lost_in_100_calls("needed_later") for result in found]
    assert min(lost[:2]) > max(lost[2:])
