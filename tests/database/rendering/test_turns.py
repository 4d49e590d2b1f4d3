"""After a compaction, requests say what was removed, and the user and the assistant take turns."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faces import Face
from support.random_threads import WELL_FORMED

from compaction_store import InvalidInput, TokenBudget, tokens
from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.models import Element
from compaction_store.rendering.view import View
from compaction_store.strategies import Ladder, SlidingWindow
from compaction_store.summarizers import StateSummary

Payload = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(*messages: Payload | Element) -> View:
    elements = [
        m if isinstance(m, Element) else Element(n, n, n, (m,), 1, None, NOW) for n, m in enumerate(messages, 1)
    ]
    return View("t", 99, tuple(elements))


def removal(start: int, end: int) -> Element:
    return Element(start, end, 50, (), 14, 1, NOW, "removal", "f")


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


def said(text: str) -> Payload:
    return {"role": "assistant", "content": text}


def strict(messages: list[Payload]) -> bool:
    """The rule of strict templates: a system message only at the beginning, then turns, and the user's comes first."""
    roles = [m["role"] for m in messages]
    rest = roles[1:] if roles and roles[0] == "system" else roles
    spoken = [role for role in rest if role != "tool"]
    return (
        "system" not in rest
        and spoken[:1] != ["assistant"]
        and all(one != other for one, other in itertools.pairwise(spoken))
    )


# ---- removals


def test_a_line_says_what_was_removed_in_every_format(store: Face) -> None:
    turns = [turn for n in range(25) for turn in (user(f"question {n} " * 20), said(f"answer {n} " * 20))]
    store.append("t", turns)
    [record] = store.compact("t", lambda ctx: ctx.remove(4, 46))
    line = "[43 messages, seqs 4 to 46, left out]"
    seen = store.view("t")
    for request in (
        seen.for_anthropic()["messages"], seen.for_openai()["messages"], seen.for_openai(join=False)["messages"],
        seen.for_openai(api="responses")["input"],
    ):  # fmt: skip
        assert str(request).count(line) == 1
        assert str(request).index("question 1 ") < str(request).index(line) < str(request).index("answer 23 ")
    # The line is part of the view's size, of the record and of the thread, and an exact count has it too.
    counted = tokens.o200k_base().messages([user(line)])
    assert record.tokens_after == counted
    assert (
        seen.tokens
        == store.thread("t").view_tokens
        == counted + sum(m.tokens for m in store.replay("t") if not 4 <= m.seq <= 46)
    )
    assert tokens.o200k_base().messages(seen.for_openai(join=False)["messages"]) == seen.tokens
    assert record.replacement == []
    assert seen.messages == [*turns[:3], user(line), *turns[46:]]
    [reply] = store.append("t", said("so"), view=seen.for_openai())
    assert store.seen_by("t", reply.seq).evidence == "proved"
    # It is not what the user said last, and not a message that a later span must keep.
    store.compact("t", lambda ctx: ctx.compact(2, 48, "All was asked."))
    assert "left out]" not in str(store.view("t").for_openai())


def test_one_removed_message_and_a_removal_beside_a_call() -> None:
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    seen = view(user("a"), calls, removal(3, 3), {"role": "tool", "tool_call_id": "c", "content": "r"}, user("b"))
    for request, refused in (
        (seen.for_anthropic()["messages"], refused_by_anthropic),
        (seen.for_openai()["messages"], refused_by_openai),
        (seen.for_openai(api="responses")["input"], refused_by_openai_responses),
    ):
        assert refused(request) == []
        assert str(request).count("[1 message, seq 3, left out]") == 1


def test_what_a_rewind_or_a_clear_hides_leaves_no_line(store: Face) -> None:
    store.append("t", [user("a"), said("b"), user("c")])
    store.rewind("t", 1)
    assert store.view("t").for_openai()["messages"] == [user("a")]
    store.clear("t")
    store.append("t", user("d"))
    assert store.view("t").for_openai()["messages"] == [user("d")]


@pytest.mark.parametrize("window", [400, 900, 1800])
def test_a_ladder_counts_its_lines(store: Face, window: int) -> None:
    store.append("t", [turn for n in range(60) for turn in (user(f"question {n} " * 9), said(f"answer {n} " * 9))])
    budget = TokenBudget(window)
    run = store.compact("t", Ladder(), budget=budget, force=True)
    assert {record.kind for record in run} >= {"removal"}
    seen = store.view("t")
    assert seen.tokens <= budget.limit
    assert tokens.o200k_base().messages(seen.for_openai(join=False)["messages"]) == seen.tokens


# ---- turns


def test_consecutive_messages_of_one_role_are_joined() -> None:
    seen = view(
        {"role": "system", "content": "A"}, {"role": "system", "content": "B"}, user("a"), user("b"),
        {"role": "user", "content": [{"type": "text", "text": "c"}]}, said("d"), said("e"), user("f"),
    )  # fmt: skip
    assert seen.for_openai()["messages"] == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("a\n\nb", "c")]},
        said("d\n\ne"), user("f"),
    ]  # fmt: skip
    apart = seen.for_openai(join=False)
    assert [m["role"] for m in apart["messages"]] == ["system"] * 2 + ["user"] * 3 + ["assistant"] * 2 + ["user"]
    assert (seen.for_openai().options, apart.options) == ({"join": True}, {"join": False})
    with pytest.raises(InvalidInput, match="join must be a bool"):
        seen.for_openai(join="yes")  # type: ignore[arg-type]


def test_names_and_calls_keep_messages_apart() -> None:
    named = [{**user("a"), "name": "anna"}, {**user("b"), "name": "bert"}, {**user("c"), "name": "bert"}]
    assert [m["content"] for m in view(*named).for_openai()["messages"]] == ["a", "b\n\nc"]
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    thread = view(
        user("a"), said("b"), {"role": "assistant", "content": "c", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "r"}, said("d"), {"role": "assistant", "refusal": "no"},
    )  # fmt: skip
    assert thread.for_openai()["messages"][1:] == [
        {"role": "assistant", "content": "b\n\nc", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "r"}, said("d\n\nno"),
    ]  # fmt: skip


def test_a_thread_that_begins_with_the_assistant_begins_with_a_line() -> None:
    seen = view({"role": "system", "content": "S"}, said("Hello!"), user("a"))
    line = user("(The conversation begins here.)")
    assert seen.for_openai()["messages"] == [{"role": "system", "content": "S"}, line, said("Hello!"), user("a")]
    assert seen.for_openai(join=False)["messages"][1] == said("Hello!")
    assert seen.for_anthropic()["messages"][0] == line


@pytest.mark.parametrize("system", ["P", [{"type": "text", "text": "P"}]])
@pytest.mark.parametrize("own", [None, "S", [{"type": "text", "text": "S"}]])
def test_a_prompt_is_joined_with_the_threads_own_and_the_receipt_tells_them_apart(
    store: Face, system: Any, own: Any
) -> None:
    store.append("t", [*([] if own is None else [{"role": "system", "content": own}]), user("a")])
    request = store.view("t").for_openai(system=system)
    assert [m["role"] for m in request["messages"]] == ["system", "user"]
    [reply] = store.append("t", said("b"), view=request)
    assert store.seen_by("t", reply.seq).evidence == "proved"
    assert store.audit.explain("t", reply.seq, system=system).same_system
    request = store.view("t").for_openai(system=system)
    request["messages"] = request["messages"][1:]
    [reply] = store.append("t", said("b"), view=request)
    assert store.audit.explain("t", reply.seq, system=system).same_system is None


def test_items_of_responses_are_joined_only_if_asked() -> None:
    item = {"type": "message", "id": "m", "role": "user", "content": [{"type": "input_text", "text": "c"}]}
    seen = view(user("a"), user("b"), item, user("d"))
    assert seen.for_openai(api="responses")["input"] == [user("a"), user("b"), item, user("d")]
    assert seen.for_openai(api="responses", join=True)["input"] == [user("a\n\nb"), item, user("d")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_joined_threads_obey_the_rules_of_the_api(data: st.DataObject) -> None:
    thread = data.draw(WELL_FORMED["chat"]())
    messages = view(*thread).for_openai()["messages"]
    assert refused_by_openai(messages) == []
    assert all(one != other or one == "tool" for one, other in itertools.pairwise(m["role"] for m in messages))


@pytest.mark.parametrize("strategy", [SlidingWindow(StateSummary(), retain=5), Ladder(), Ladder(StateSummary())])
@pytest.mark.parametrize("greets", [False, True])
def test_strict_templates_take_a_thread_after_any_compaction(store: Face, strategy: Any, greets: bool) -> None:
    store.append("t", [{"role": "system", "content": "Be brief."}, *([said("Hello!")] if greets else [])])
    budget = TokenBudget(1500)
    for n in range(40):
        store.append("t", user(f"Question {n}: which supplier delivers on day {n}, and what does it cost? " * 3))
        request = store.fit("t", budget, strategy).for_openai(system="You help a buyer.")
        assert strict(request["messages"]), [m["role"] for m in request["messages"]]
        store.append("t", said(f"Answer {n}: supplier {n} delivers on day {n} for {n * 7} francs. " * 3), view=request)
    assert len(list(store.compactions("t"))) > 1
