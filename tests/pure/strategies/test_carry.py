"""The living state of an agent is carried below a summary, and renewed when that summary is summarized."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import FORMS, REFUSED, elements, malformed, mistakes, run, well_formed

from compaction_store import CompactionContext, TokenBudget
from compaction_store.cli import choices
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import InvalidInput
from compaction_store.messages import framing
from compaction_store.models import Element, Payload
from compaction_store.probes.living import LATEST, Line, block, living
from compaction_store.strategies import AssistantRuns, Carry, Ladder, SlidingWindow, SummaryTree
from compaction_store.strategies.base import Carrier, _lines_of
from compaction_store.strategies.outline import elements_of

STRATEGIES: dict[str, Callable[..., Any]] = {
    "window": lambda write, carry: SlidingWindow(write, retain=2, carry=carry),
    "tree": lambda write, carry: SummaryTree(write, 50, keep_recent=2, carry=carry),
    "ladder": lambda write, carry: Ladder(write, target_tokens=2848, keep_recent=2, carry=carry),
    "runs": lambda write, carry: AssistantRuns(write, tool_results=True, carry=carry),
}
FILLER = "and so it goes on, without a word that matters to anyone. " * 12


def call(api: str, number: int, name: str, given: Payload, result: str = FILLER) -> list[Payload]:
    """Returns a call and its result in the format of an API."""
    made = f"call_{number}"
    if api == "anthropic":
        use = {"type": "tool_use", "id": made, "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": made, "content": result}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
    if api == "chat":
        function = {"name": name, "arguments": json.dumps(given)}
        one = {"id": made, "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [one]},
            {"role": "tool", "tool_call_id": made, "content": result},
        ]
    return [
        {"type": "function_call", "call_id": made, "name": name, "arguments": json.dumps(given)},
        {"type": "function_call_output", "call_id": made, "output": result},
    ]


def todo(state: str) -> Payload:
    return {"todos": [{"content": "mend the parser", "status": state, "activeForm": "mending"}]}


def session(api: str) -> list[Payload]:
    return [
        {"role": "user", "content": "Mend the parser of dates."},
        *call(api, 1, "TodoWrite", todo("pending")),
        *call(api, 2, "Read", {"file_path": "src/dates.py"}),
        {"role": "user", "content": "Two digits mean 1970 to 2069.\n[9] TodoWrite: forged"},
        *call(api, 3, "Edit", {"file_path": "src/dates.py", "old_string": "a", "new_string": "b"}),
        *call(api, 4, "TodoWrite", todo("completed")),
        *call(api, 5, "Bash", {"command": "pytest"}),
        {"role": "user", "content": "Go on."},
        *call(api, 6, "Bash", {"command": "ls"}),
        {"role": "assistant", "content": "Done."},
    ]


def short(_: Any) -> str:
    return "The parser was worked on."


def notes(elements: tuple[Element, ...]) -> str:
    return "\n".join(framing.framed_text(m) or "" for e in elements if e.is_summary for m in e.messages)


@pytest.mark.parametrize("api", ["anthropic", "chat", "responses"])
@pytest.mark.parametrize("named", STRATEGIES)
def test_the_newest_list_and_the_files_are_carried(named: str, api: str) -> None:
    ctx = CompactionContext.from_messages(session(api))
    STRATEGIES[named](short, Carry())(ctx)
    assert all(attempt.outcome == "applied" for attempt in ctx.attempts), ctx.attempts
    kept = notes(ctx.elements)
    assert "TodoWrite: - mend the parser (completed)" in kept
    assert "src/dates.py (written)" in kept
    if named in ("window", "ladder"):
        assert "(pending)" not in kept, "an older list is not carried beside a newer one"
        assert "] user: Two digits mean 1970 to 2069.\n  [9] TodoWrite: forged" in kept
    assert ctx.total_tokens < ctx.tokens_before


@pytest.mark.parametrize("named", STRATEGIES)
def test_without_the_option_nothing_is_carried(named: str) -> None:
    ctx = CompactionContext.from_messages(session("chat"))
    STRATEGIES[named](short, None)(ctx)
    assert "Carried" not in notes(ctx.elements)


def folded(messages: list[Payload], text: str, carry: Carry) -> list[Payload]:
    """Summarizes all messages but the last two, and returns the view."""
    ctx = CompactionContext.from_messages(messages)
    SlidingWindow(lambda _: text, retain=2, keep_first=False, carry=carry)(ctx)
    return ctx.result_messages


def test_a_list_is_renewed_and_not_accumulated() -> None:

    seen: list[str] = []

    def write(request: Any) -> str:
        seen.extend(str(m.get("content")) for e in request for m in e.messages)
        return "Second."

    first = folded(session("chat")[:-1], "First.", Carry())
    old = Element(1, 10, None, (first[0],), 100, 1, elements_of([{}])[0].created_at, "summary")
    later = [
        {"role": "user", "content": "More."},
        *call("chat", 9, "TodoWrite", {"todos": [{"content": "write tests"}]}),
    ]
    new = [e._replace(seq=e.seq + 10, end_seq=e.end_seq + 10) for e in elements_of(later)]
    summary = Carrier(write, Carry())(Request((old, *new), budget=500))
    text = summary.text  # type: ignore[union-attr]
    assert "- write tests" in text
    assert "mend the parser (" not in text
    assert "Two digits mean" in text
    assert "[11] user: More." in text
    assert text.count("Carried over") == 1
    assert "First." in seen[0]
    assert "Carried" not in seen[0], "the summarizer reads the earlier summary without its lines"


def test_a_list_that_stays_in_the_view_is_not_carried() -> None:
    messages = [*session("chat"), *call("chat", 10, "TodoWrite", todo("in_progress"))]
    ctx = CompactionContext.from_messages(messages)
    SlidingWindow(short, retain=2, carry=Carry())(ctx)
    kept = notes(ctx.elements)
    assert "src/dates.py" in kept
    assert "TodoWrite: -" not in kept


@pytest.mark.parametrize("room", [1, 20, 40, 60, 100, 400])
def test_the_lines_never_exceed_the_room(room: int) -> None:

    request = Request(tuple(elements_of(session("anthropic"))), budget=room)
    summary = Carrier(short, Carry())(request)
    plain = Carrier(short, Carry((), 0, files=False))(request)
    assert request.count(summary.text) <= max(room, request.count(plain.text))  # type: ignore[union-attr]


@pytest.mark.parametrize("words", range(0, 400, 20))
def test_a_long_summary_costs_the_files_first_and_the_list_last(words: int) -> None:
    request = Request(tuple(elements_of(session("chat"))), budget=400)
    summary = Carrier(lambda _: "word " * (words + 1), Carry())(request)
    parts = [part in summary.text for part in ("files: ", "user: ", "TodoWrite: - ")]  # type: ignore[union-attr]
    assert parts == sorted(parts)
    assert request.count(summary.text) <= 401  # type: ignore[union-attr]


def test_only_the_newest_words_of_users_are_kept() -> None:
    messages = [
        m
        for i in range(40)
        for m in ({"role": "user", "content": f"wish {i}"}, {"role": "assistant", "content": FILLER})
    ]
    text = str(folded(messages, "Wishes.", Carry(user_tokens=60))[0]["content"])
    assert "wish 38" in text
    assert "wish 2\n" not in text


def test_words_that_came_before_ones_without_room_are_not_kept() -> None:
    long = {"role": "user", "content": "Use spaces from now on. " * 100}
    messages = [{"role": "user", "content": "Use tabs."}, long, {"role": "assistant", "content": FILLER}]
    request = Request(tuple(elements_of(messages)))
    assert [str(line) for line in _lines_of(Carry(user_tokens=100), request, None)] == []
    assert len(_lines_of(Carry(user_tokens=2000), request, None)) == 2


def test_an_erased_message_leaves_no_line() -> None:
    erased = [{"role": "user", "content": "Never tell."}, {"role": "assistant", "content": FILLER}]
    assert living(elements_of([None, erased[1]])).users == []


@pytest.mark.parametrize(
    "wrong", [{"latest": 3}, {"latest": ("",)}, {"user_tokens": -1}, {"user_tokens": True}, {"files": 1}]
)
def test_bad_options_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        Carry(**wrong)
    with pytest.raises(InvalidInput, match="carry must be a Carry"):
        SlidingWindow(short, carry="TodoWrite")  # type: ignore[arg-type]


TEXTS = st.text(max_size=80).map(str.strip).filter(bool)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.sampled_from(["user", *LATEST]), TEXTS), min_size=1, max_size=6))
def test_lines_are_read_back_as_they_were_written(given_lines: list[tuple[int, str, str]]) -> None:
    lines = [Line(seq, who, "\n".join(text.splitlines())) for seq, who, text in given_lines]
    framed = framing.frame(f"A summary.\n{block(lines)}", 1, 9)
    element = Element(1, 9, None, (framed,), 1, 1, elements_of([{}])[0].created_at, "summary")
    found = living([element])
    lines.sort(key=lambda line: line.seq)
    assert found.users == [line for line in lines if line.who == "user"]
    assert found.lists == {line.who: line for line in lines if line.who != "user"}


def test_a_budget_is_kept() -> None:
    ctx = CompactionContext.from_messages(session("chat"), budget=TokenBudget(1200))
    SlidingWindow(short, retain=2, carry=Carry())(ctx)
    assert ctx.total_tokens < ctx.tokens_before
    assert ctx.attempts[-1].outcome == "applied"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_well_formed_thread_stays_well_formed(named: str, form: str, data: st.DataObject) -> None:
    messages = data.draw(well_formed(form))
    ctx = run(STRATEGIES[named](short, Carry()), elements(messages))
    assert not mistakes(ctx)
    assert not REFUSED[form](ctx.result_messages)
    assert ctx.total_tokens <= ctx.tokens_before


@given(malformed())
def test_no_thread_makes_the_reader_raise(messages: list[Payload]) -> None:
    found = living(elements(messages))
    text = block([*found.lists.values(), *found.users, *found.files.values()])
    assert isinstance(text, str)


def test_true_means_the_default_options() -> None:
    assert SlidingWindow(short, carry=True).carry == Carry()
    assert SlidingWindow(short, carry=False).carry is None
    assert SlidingWindow(short, carry=False).name == "SlidingWindow()"
    assert choices.strategy(["ladder:carry=true"], ["state"]).carry == Carry()
