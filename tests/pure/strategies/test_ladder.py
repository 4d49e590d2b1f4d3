"""The ladder rung by rung, in every format, and what holds for every thread."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import (
    COUNTER,
    FORMS,
    REFUSED,
    Payload,
    attempts_of,
    committed,
    elements,
    malformed,
    mistakes,
    run,
    until_stable,
    well_formed,
)

from compaction_store import InvalidInput, Summary, TokenBudget
from compaction_store.messages.tool_pairs import call_and_result_ids
from compaction_store.models import Element
from compaction_store.strategies import Ladder, pin
from compaction_store.tokens import from_callable


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


def assistant(text: str) -> Payload:
    return {"role": "assistant", "content": text}


SYSTEM: Payload = {"role": "system", "content": "You are terse."}


def words(count: int, word: str = "word") -> str:
    return " ".join([word] * count)


def talk(turns: int, size: int) -> list[Payload]:
    made = [SYSTEM]
    for turn in range(turns):
        made += [user(f"question {turn} {words(size)}"), assistant(f"answer {turn} {words(size)}")]
    return made


def short(_elements: Any) -> str:
    return "They talked."


def kinds(ctx: Any) -> list[tuple[str, Any, Any]]:
    return [(a.kind, a.start_seq, a.end_seq) for a in attempts_of(ctx) if a.outcome == "applied"]


def test_nothing_is_done_where_the_view_fits() -> None:
    view = elements(talk(3, 10))
    total = sum(element.tokens for element in view)
    assert kinds(run(Ladder(short, target_tokens=total, reserve=0), view)) == []
    assert kinds(run(Ladder(short, target_tokens=total - 1, reserve=0, keep_recent=2), view)) == [("summary", 2, 5)]


def test_the_old_messages_are_summarized_and_the_recent_ones_kept() -> None:
    messages = talk(30, 100)
    ctx = run(Ladder(short, target_tokens=4000, reserve=500, keep_recent=5), elements(messages))
    assert kinds(ctx) == [("summary", 2, 56)]
    assert ctx.result_messages[-5:] == messages[-5:]
    assert ctx.result_messages[0] == SYSTEM
    assert ctx.result_messages[1]["role"] == "user"


def test_the_target_is_the_budgets_less_the_reserve() -> None:
    budget = TokenBudget(context_window=10_000)
    assert Ladder(reserve=1000).limit(budget) == 4000
    # A budget has its own reserve. Another one takes at most half of the target.
    assert Ladder().limit(TokenBudget(context_window=2000)) == 1000
    assert Ladder(reserve=2048).limit(TokenBudget(context_window=2000)) == 500
    assert Ladder(target_tokens=5000).limit(None) == 2952
    assert Ladder(target_tokens=5000, reserve=10).limit(budget) == 4990
    ctx = run(Ladder(short, reserve=1000), elements(talk(30, 100)), budget=budget)
    assert ctx.total_tokens <= 4000


def test_a_ladder_without_a_target_says_so() -> None:
    with pytest.raises(InvalidInput, match="target_tokens must be given"):
        run(Ladder(), elements(talk(1, 1)))


@pytest.mark.parametrize(
    "options",
    [
        {"keep_recent": -1}, {"keep_recent": 1.5}, {"reserve": -1}, {"floor_cap": 0}, {"start_cap": 100},
        {"target_tokens": 2048}, {"part_chars": 0}, {"keep_recent_tokens": -1},
    ],
)  # fmt: skip
def test_options_are_judged_when_they_are_given(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Ladder(**options)
    with pytest.raises(TypeError):
        Ladder(7)  # type: ignore[arg-type]


def test_contents_are_cut_before_anything_is_removed() -> None:
    messages = talk(10, 600)
    ctx = run(Ladder(target_tokens=7000, reserve=0), elements(messages))
    assert [kind for kind, *_ in kinds(ctx)] == ["truncation"]
    assert len(ctx.result_messages) == len(messages)
    assert ctx.total_tokens <= 7000


def test_the_cap_is_the_largest_that_will_do_and_the_newest_stay_whole() -> None:
    messages = [SYSTEM, *(user(words(1000)) for _ in range(10))]
    # All at 512 would fit, all at 1024 not; eight of the nine are enough.
    ctx = run(Ladder(target_tokens=6300, reserve=0), elements(messages))
    assert kinds(ctx) == [("truncation", 2, 9)]
    assert "512" in (attempts_of(ctx)[0].reason or "")
    assert ctx.result_messages[9:] == messages[9:]
    cut = str(ctx.result_messages[1]["content"])
    assert cut.startswith("word word")
    assert cut.endswith("word word")
    assert "…" in cut


def test_the_middle_is_removed_outwards_and_the_ends_stay() -> None:
    messages = [SYSTEM, *(user(f"{n:03} {words(200)}") for n in range(100))]
    ctx = run(Ladder(target_tokens=3000, reserve=0, keep_recent=10), elements(messages))
    removed = [(start, end) for kind, start, end in kinds(ctx) if kind == "removal"]
    assert len(removed) == 1
    low, high = removed[0]
    assert abs((low + high) / 2 - 51) < 2
    assert ctx.total_tokens <= 3000
    assert ctx.result_messages[0] == SYSTEM
    assert ctx.result_messages[-1] == messages[-1]


def test_the_recent_messages_are_removed_after_all_others() -> None:
    messages = [SYSTEM, *(user(f"{n:03} {words(200)}") for n in range(40))]
    ctx = run(Ladder(target_tokens=2600, reserve=0, keep_recent=15), elements(messages))
    removed = [(start, end) for kind, start, end in kinds(ctx) if kind == "removal"]
    assert removed
    assert max(end for _, end in removed) <= 41 - 15
    assert [str(m["content"])[:3] for m in ctx.result_messages[-15:]] == [f"{n:03}" for n in range(25, 40)]


def test_the_ends_are_cut_last_and_the_system_message_after_the_others() -> None:
    huge = [SYSTEM | {"content": words(3000)}, user(words(3000)), assistant("a"), user(words(3000))]
    ctx = run(Ladder(target_tokens=4000, reserve=0), elements(huge))
    assert ctx.total_tokens <= 4000
    assert ctx.result_messages[0] == huge[0]
    ctx = run(Ladder(target_tokens=2000, reserve=0), elements(huge))
    assert ctx.total_tokens <= 2000
    assert ctx.result_messages[0] != huge[0]
    allowed = {name for attempt in attempts_of(ctx) for name in attempt.allow}
    assert allowed == {"system", "last_user"}


def test_a_huge_last_result_is_cut_instead_of_the_conversation() -> None:
    messages = [*talk(8, 100), assistant(words(19_000))]
    ctx = run(Ladder(target_tokens=20_000, reserve=0), elements(messages))
    assert [kind for kind, *_ in kinds(ctx)] == ["truncation"]
    assert ctx.total_tokens <= 20_000
    # But not if it is the last message of the user.
    messages[-1] = user(words(19_000))
    ctx = run(Ladder(target_tokens=20_000, reserve=0), elements(messages))
    assert ctx.result_messages[-1] == messages[-1]


def test_only_the_final_form_is_planned() -> None:
    messages = [SYSTEM, *(user(f"{n:03} {words(300)}") for n in range(60))]
    ctx = run(Ladder(target_tokens=3000, reserve=0), elements(messages))
    spans = sorted((start, end) for _, start, end in kinds(ctx))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


def test_a_summary_that_suffices_not_is_followed_by_shorter_contents() -> None:
    messages = talk(30, 300)
    ctx = run(Ladder(short, target_tokens=2500, reserve=0), elements(messages))
    assert kinds(ctx)[0] == ("summary", 2, 46)
    assert {kind for kind, *_ in kinds(ctx)} == {"summary", "truncation"}
    assert ctx.total_tokens <= 2500
    assert "They talked." in str(ctx.result_messages[1])


def test_a_failing_summary_is_recorded_and_the_ladder_goes_on() -> None:
    def fails(_elements: Any) -> str:
        raise RuntimeError("secret words")

    ctx = run(Ladder(fails, target_tokens=2500, reserve=0), elements(talk(30, 300)))
    failed = [attempt for attempt in attempts_of(ctx) if attempt.outcome == "failed"]
    assert [(a.kind, a.start_seq, a.end_seq) for a in failed] == [("summary", 2, 46)]
    assert "secret" not in str(failed[0].error)
    assert ctx.total_tokens <= 2500


def test_what_is_old_is_summarized_in_parts_as_one_record() -> None:
    seen: list[list[int]] = []

    def summarize(part: Any) -> Summary:
        seen.append([element.seq for element in part])
        return Summary(f"part {len(seen)}", model="m", usage={"input_tokens": 10, "tier": "x"}, duration=0.5)

    messages = talk(30, 100)
    ctx = run(Ladder(summarize, target_tokens=4000, reserve=0, keep_recent=5, part_chars=10_000), elements(messages))
    assert len(seen) > 2
    assert [seq for part in seen for seq in part] == list(range(2, 57))
    (attempt,) = attempts_of(ctx)
    assert (attempt.start_seq, attempt.end_seq) == (2, 56)
    assert attempt.summary is not None
    assert attempt.summary.text == "\n\n".join(f"part {n + 1}" for n in range(len(seen)))
    assert attempt.summary.usage == {"input_tokens": 10 * len(seen)}
    assert attempt.summary.model == "m"
    assert attempt.summary.coverage == {"parts": [{} for _ in seen]}
    assert attempt.summary.duration == len(seen) / 2


def test_a_part_that_fails_leaves_what_was_written_until_then() -> None:
    calls = 0

    def summarize(_part: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise TimeoutError
        return f"part {calls}"

    view = elements(talk(30, 100))
    ctx = run(Ladder(summarize, target_tokens=6000, reserve=0, keep_recent=5, part_chars=10_000), view)
    assert calls == 3
    assert [(a.kind, a.outcome) for a in attempts_of(ctx)[:2]] == [("summary", "failed"), ("summary", "applied")]
    done = attempts_of(ctx)[1]
    assert done.summary is not None
    assert done.summary.text == "part 1\n\npart 2"
    assert done.start_seq == 2
    assert (done.end_seq or 0) < 56


def test_a_block_of_a_provider_cannot_be_one_of_several_parts() -> None:
    def native(_part: Any) -> Summary:
        return Summary("s", replacement=({"role": "user", "content": "block"},))

    view = elements(talk(30, 100))
    ctx = run(Ladder(native, target_tokens=6000, reserve=0, keep_recent=5, part_chars=10_000), view)
    assert attempts_of(ctx)[0].outcome == "failed"
    ctx = run(Ladder(native, target_tokens=6000, reserve=0, keep_recent=5, part_chars=None), view)
    assert [a.outcome for a in attempts_of(ctx)] == ["applied"]


def test_keep_recent_of_nothing_summarizes_everything_but_the_last_user_message() -> None:
    ctx = run(Ladder(short, target_tokens=300, reserve=0, keep_recent=0), elements(talk(5, 50)))
    # A summary of the last message has no room and is not needed.
    assert kinds(ctx) == [("summary", 2, 9)]
    assert ctx.total_tokens <= 300


def test_an_earlier_summary_becomes_part_of_the_next_one() -> None:
    view = elements(talk(30, 100))
    ladder = Ladder(short, target_tokens=4000, reserve=0, keep_recent=5)
    after = committed(run(ladder, view))
    later = [*after, *(e._replace(seq=e.seq + 61, end_seq=e.end_seq + 61) for e in view[1:])]
    ctx = run(ladder, later)
    assert kinds(ctx)[0][:2] == ("summary", 2)
    assert attempts_of(ctx)[0].inputs == (after[1].number,)


def test_a_pending_call_bounds_the_summary_and_is_kept() -> None:
    messages = talk(10, 100)
    call = {"id": "open", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages[5:5] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    ctx = run(Ladder(short, target_tokens=1500, reserve=0, keep_recent=3), elements(messages))
    assert kinds(ctx)[:2] == [("summary", 2, 5), ("summary", 7, 19)]
    assert messages[5] in ctx.result_messages


def test_a_pair_that_crosses_into_the_recent_messages_is_kept_whole() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    pair: list[Payload] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": words(100)},
    ]
    messages = [*talk(10, 100), *pair, assistant("done")]
    ctx = run(Ladder(short, target_tokens=800, reserve=0, keep_recent=2), elements(messages))
    assert kinds(ctx)[0] == ("summary", 2, 19)
    assert messages[-3] in ctx.result_messages
    assert not REFUSED["chat"](ctx.result_messages)


def test_what_is_pinned_stays_as_it_is() -> None:
    messages = talk(10, 300)
    ctx = run(Ladder(short, target_tokens=2000, reserve=0, keep_recent=3, pin=(6, 7)), elements(messages))
    assert kinds(ctx)[:2] == [("summary", 2, 5), ("summary", 8, 18)]
    ctx = run(Ladder(target_tokens=1500, reserve=0, pin=[6, (9, 9)]), elements(messages))
    assert messages[5] in ctx.result_messages
    assert messages[8] in ctx.result_messages


def test_earlier_summaries_are_never_cut_and_are_removed_last() -> None:
    view = elements([SYSTEM, *(user(f"{n} {words(300)}") for n in range(20))])
    view[5] = view[5]._replace(kind="summary", number=3)
    ctx = run(Ladder(target_tokens=2000, reserve=0), view)
    assert view[5].message in ctx.result_messages
    ctx = run(Ladder(target_tokens=500, reserve=0), view)
    assert view[5].message not in ctx.result_messages


def test_a_long_reply_to_tools_shrinks_its_inputs_and_keeps_them_json() -> None:
    arguments = json.dumps({"path": "/w/f", "lines": [words(4000), "kept"], "n": 2**60})
    call = {"id": "c", "type": "function", "function": {"name": "write", "arguments": arguments}}
    messages: list[Payload] = [
        user("start"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        user("now"),
    ]
    ctx = run(Ladder(target_tokens=1000, reserve=0), elements(messages))
    cut = json.loads(ctx.result_messages[1]["tool_calls"][0]["function"]["arguments"])
    assert cut["path"] == "/w/f"
    assert cut["lines"][1] == "kept"
    assert cut["n"] == 2**60
    kept = run(Ladder(target_tokens=1000, reserve=0, truncate_tool_arguments=False), elements(messages))
    assert kept.result_messages == messages


# ---- what holds for every thread

_TARGETS = st.sampled_from([1, 150, 400, 1500, 6000])
_LADDERS = st.builds(
    Ladder,
    st.sampled_from([None, short]),
    target_tokens=_TARGETS,
    reserve=st.just(0),
    keep_recent=st.integers(0, 6),
    keep_recent_tokens=st.sampled_from([None, None, 200]),
    start_cap=st.just(256),
    floor_cap=st.sampled_from([1, 16, 128]),
    truncate_tool_arguments=st.booleans(),
)


def _ids(view: list[Element]) -> set[Any]:
    return set(call_and_result_ids(m for element in view for m in element.messages))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), ladder=_LADDERS)
def test_every_well_formed_thread_stays_well_formed(form: str, data: st.DataObject, ladder: Ladder) -> None:
    messages = data.draw(well_formed(form))
    assert not REFUSED[form](messages)
    view = elements(messages)
    ctx = run(ladder, view)
    assert not mistakes(ctx)
    assert ctx.total_tokens <= sum(element.tokens for element in view)
    assert ctx.total_tokens == COUNTER.messages(ctx.result_messages)
    assert not REFUSED[form](ctx.result_messages)
    stable = until_stable(ladder, committed(ctx))
    assert not REFUSED[form]([message for element in stable for message in element.messages])


@settings(max_examples=200, deadline=None)
@given(malformed(), _LADDERS)
def test_no_thread_makes_it_raise_or_grow(messages: list[Payload], ladder: Ladder) -> None:
    view = elements(messages)
    if not view:
        return
    before = _ids(view)
    stable = until_stable(ladder, view)
    assert _ids(stable) <= before


@pytest.mark.parametrize("size", [1000, 10_000])
def test_the_work_grows_with_the_thread_and_not_with_its_square(size: int) -> None:
    counted = 0

    def count(message: Payload) -> int:
        nonlocal counted
        counted += 1
        return COUNTER.messages([message])

    messages = [user(words(50)) if n % 2 else assistant(words(50)) for n in range(size)]
    view = [element._replace(tokens=300) for element in elements(messages[:2]) * (size // 2)]
    view = [e._replace(seq=n, end_seq=n) for n, e in enumerate(view, 1)]
    run(Ladder(target_tokens=5000, reserve=0), view, counter=from_callable(count))
    # Only what is left is ever tokenized.
    assert counted < 4000


def test_pins_from_outside_hold_too() -> None:
    messages = talk(10, 300)
    for strategy in (
        Ladder(target_tokens=1500, reserve=0),
        Ladder(short, target_tokens=1500, reserve=0, keep_recent=3),
    ):
        ctx = run(pin(strategy, 6, (9, 9)), elements(messages))
        assert messages[5] in ctx.result_messages
        assert messages[8] in ctx.result_messages
