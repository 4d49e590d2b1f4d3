"""Allowed spans: compared with brute force on random threads, and for each shape of calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import anthropic.types
import anthropic.types.beta
import openai.types.responses.response_input_item_param as openai_items
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import random_threads as threads
from support.random_threads import FORMATS, Format, Word

from compaction_store.messages.parts import PARTS, row
from compaction_store.messages.tool_pairs import Links, call_and_result_ids, is_system, last_user

Span = tuple[int, int]


class Case:
    """A script written as payloads, with the links and the pending calls that follow from the script alone."""

    def __init__(self, script: threads.Script, forms: list[Format], cuts: list[bool]) -> None:
        self.items: list[list[Any]] = []
        said: list[tuple[int, Word, bool, Format]] = []
        for words, form, cut in zip(script, forms, cuts, strict=True):
            if cut or not self.items:
                self.items.append([])
            self.items[-1].extend(threads.written(words, form))
            said += [(len(self.items) - 1, word, form == "function", form) for word in words]
        self.links: set[Span] = set()
        self.pending: set[int] = set()
        self.orphans: set[int] = set()
        self._pair(said)
        self._reason(said)

    def _pair(self, said: list[tuple[int, Word, bool, Format]]) -> None:
        """Finds the nearest earlier unanswered call of each result by searching backwards."""
        answered: set[int] = set()
        for at, (index, word, by_name, _) in enumerate(said):
            if word.kind != "result":
                continue
            for before in range(at - 1, -1, -1):
                earlier = said[before]
                if earlier[1] == Word("call", word.id) and earlier[2] == by_name and before not in answered:
                    answered.add(before)
                    self.links.add((earlier[0], index))
                    break
            else:
                self.orphans.add(index)
        self.pending |= {
            index for at, (index, word, _, _) in enumerate(said) if word.kind == "call" and at not in answered
        }

    def _reason(self, said: list[tuple[int, Word, bool, Format]]) -> None:
        for at, (index, word, _, form) in enumerate(said):
            if word.kind != "reasoning" or form not in {"responses", "responses_message"}:
                continue
            if at + 1 == len(said):
                self.pending.add(index)
                continue
            after, next_word, _, next_form = said[at + 1]
            # A bare result comes from the caller; a message of items, or of Anthropic's blocks, from the model.
            if not (next_word.kind == "result" and next_form in {"chat", "function", "responses"}):
                self.links.add((index, after))

    def allowed(self, start: int, end: int) -> bool:
        closed = all((start <= a <= end) == (start <= b <= end) for a, b in self.links)
        return closed and not any(start <= index <= end for index in self.pending)

    def spans(self, start: int, end: int) -> Iterator[Span]:
        for a in range(start, end + 1):
            for b in range(a, end + 1):
                if self.allowed(a, b):
                    yield a, b

    def by_barriers(self, start: int, end: int) -> Span | None:
        """The rule as documented: barriers split the range, and what they break becomes a barrier in turn."""
        groups = [{index} for index in range(len(self.items))]
        for a, b in self.links:
            joined = groups[a] | groups[b]
            for index in joined:
                groups[index] = joined
        barriers = set(self.pending)
        while True:
            walls = [start - 1, *sorted(barriers & set(range(start, end + 1))), end + 1]
            segments = [(a + 1, b - 1) for a, b in itertools.pairwise(walls) if b - a > 1]
            fresh = {
                index for a, b in segments for index in range(a, b + 1) if not groups[index] <= set(range(a, b + 1))
            }
            if not fresh:
                return max(segments, key=lambda segment: segment[1] - segment[0], default=None)
            barriers |= fresh


@st.composite
def cases(draw: st.DrawFn) -> Case:
    script = draw(threads.scripts())
    count = len(script)
    if draw(st.booleans()):
        forms: list[Format] = [draw(st.sampled_from(FORMATS))] * count
    else:
        forms = draw(st.lists(st.sampled_from(FORMATS), min_size=count, max_size=count))
    cuts = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count))
    return Case(script, forms, cuts)


@given(cases())
@settings(max_examples=500, deadline=None)
def test_every_span_of_a_random_thread_is_judged_as_by_brute_force(case: Case) -> None:
    links = Links(case.items)
    assert links.pending == case.pending
    assert links.orphans == case.orphans
    size = len(case.items)
    for start in range(size):
        for end in range(start, size):
            problem = links.problem(start, end)
            assert (problem is None) == case.allowed(start, end)
            if problem is not None:
                waits = any(start <= index <= end for index in case.pending)
                assert problem == ("pending_call" if waits else "split_pair")
            inside = list(case.spans(start, end))
            longest = max(inside, key=lambda span: span[1] - span[0], default=None)
            assert links.safe(start, end) == longest == case.by_barriers(start, end)
            apart = [span for span in inside if not reaches_over(case, *span)]
            longest = max(apart, key=lambda span: span[1] - span[0], default=None)
            assert links.safe(start, end, interrupting=False) == longest
            pieces = list(links.pieces(start, end))
            assert pieces == [
                (a, b) for a, b in inside if not any(c <= a and b <= d and (a, b) != (c, d) for c, d in inside)
            ]
            around = [(a, b) for a, b in case.spans(0, size - 1) if a <= start and end <= b]
            assert links.closed(start, end) == min(around, key=lambda span: span[1] - span[0], default=None)
            if problem is None:
                assert links.interrupts(start, end) == reaches_over(case, start, end)


def reaches_over(case: Case, start: int, end: int) -> bool:
    """Returns whether links lead from before an allowed span to after it. If they do, a single link does."""
    return any(a < start and end < b for a, b in case.links)


def call(*names: str) -> dict[str, Any]:
    return threads.written([Word("call", name) for name in names], "chat")[0]


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "seen"}


USER: dict[str, Any] = {"role": "user", "content": "hi"}
SAID: dict[str, Any] = {"role": "assistant", "content": "hm"}


def links_of(*payloads: dict[str, Any] | None) -> Links:
    return Links([[payload] for payload in payloads])


def test_a_repeated_id_is_paired_by_position() -> None:
    links = links_of(USER, call("x"), result("x"), SAID, USER, call("x"), result("x"))
    assert links.problem(1, 2) is None
    assert links.problem(5, 6) is None
    assert links.problem(2, 5) == "split_pair"
    assert not links.orphans


def test_a_result_answers_the_nearest_call_and_the_next_the_one_before() -> None:
    links = links_of(call("x"), call("x"), result("x"), USER)
    assert links.pending == {0}
    assert links.problem(1, 2) is None
    nested = links_of(call("x"), call("x"), result("x"), result("x"))
    assert nested.problem(1, 2) is None
    assert nested.problem(0, 3) is None
    assert nested.interrupts(1, 2)


def test_a_second_result_for_one_call_is_an_orphan_and_free() -> None:
    links = links_of(call("x"), result("x"), result("x"), USER)
    assert links.orphans == {2}
    assert links.problem(0, 1) is None
    assert links.problem(2, 3) is None


def test_a_call_that_waits_bars_every_span_over_it_and_over_its_neighbours_in_the_message() -> None:
    links = links_of(USER, call("x", "y"), result("x"), SAID)
    assert links.pending == {1}
    assert links.problem(0, 3) == "pending_call"
    assert links.problem(2, 3) == "split_pair"
    assert links.safe(0, 3) == (0, 0)
    assert links.closed(2, 2) is None


def test_the_earliest_of_two_spans_of_one_length_is_taken() -> None:
    assert links_of(USER, SAID, call("x"), USER, SAID).safe(0, 4) == (0, 1)


def test_a_late_result_holds_what_it_answers() -> None:
    links = links_of(USER, call("x", "y"), result("x"), USER, result("y"), SAID)
    assert links.safe(0, 3) == (0, 0)
    assert links.closed(2, 2) == (1, 4)
    assert links.interrupts(3, 3)
    assert not links.interrupts(0, 0)


def test_an_erased_result_leaves_its_call_waiting() -> None:
    assert links_of(call("x"), None, USER).pending == {0}
    assert links_of(None, result("x")).orphans == {1}


def test_a_range_without_items_has_no_safe_span_and_a_wrong_one_is_refused() -> None:
    links = links_of(USER, SAID)
    assert links.safe(1, 0) is None
    assert Links([]).safe(0, -1) is None
    for start, end in ((-1, 0), (0, 2), (1, 0)):
        with pytest.raises(IndexError):
            links.problem(start, end)


PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "function_call", "call_id": "x"}, {"type": "function_call_output", "call_id": "x"}),
    ({"type": "custom_tool_call", "call_id": "x"}, {"type": "custom_tool_call_output", "call_id": "x"}),
    ({"type": "computer_call", "call_id": "x", "id": "cu"}, {"type": "computer_call_output", "call_id": "x"}),
    ({"type": "local_shell_call", "call_id": "x", "id": "ls"}, {"type": "local_shell_call_output", "id": "x"}),
    (
        {"type": "local_shell_call", "call_id": "x", "id": "ls"},
        {"type": "local_shell_call_output", "call_id": "x", "id": "lso"},
    ),
    ({"type": "shell_call", "call_id": "x"}, {"type": "shell_call_output", "call_id": "x"}),
    ({"type": "apply_patch_call", "call_id": "x"}, {"type": "apply_patch_call_output", "call_id": "x"}),
    ({"type": "tool_search_call", "call_id": "x"}, {"type": "tool_search_output", "call_id": "x"}),
    ({"type": "program", "call_id": "x"}, {"type": "program_output", "call_id": "x"}),
    ({"type": "mcp_approval_request", "id": "x"}, {"type": "mcp_approval_response", "approval_request_id": "x"}),
    ({"type": "tool_use", "id": "x"}, {"type": "tool_result", "tool_use_id": "x"}),
    ({"type": "mcp_tool_use", "id": "x"}, {"type": "mcp_tool_result", "tool_use_id": "x"}),
    ({"type": "server_tool_use", "id": "x"}, {"type": "web_fetch_tool_result", "tool_use_id": "x"}),
    ({"type": "server_tool_use", "id": "x"}, {"type": "bash_code_execution_tool_result", "tool_use_id": "x"}),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1]["type"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_every_kind_of_call_belongs_to_its_result(pair: tuple[dict[str, Any], dict[str, Any]], wrapped: bool) -> None:
    asked, answered = ({"role": "assistant", "content": [part]} for part in pair) if wrapped else pair
    links = links_of(USER, asked, SAID, answered)
    assert links.problem(0, 2) == "split_pair"
    assert links.problem(3, 3) == "split_pair"
    assert links.problem(1, 3) is None
    assert links_of(USER, asked).pending == {1}


def typed_dicts(*modules: Any) -> Iterator[tuple[str, set[str]]]:
    """Every type of block or item that the SDKs can send, and its fields."""
    for module in modules:
        for thing in vars(module).values():
            members = get_args(thing) or (thing,)
            for member in members:
                if hasattr(member, "__required_keys__"):
                    hints = get_type_hints(member)
                    kinds = get_args(hints.get("type"))
                    for kind in kinds:
                        if isinstance(kind, str):
                            yield kind, set(hints)


def test_no_call_or_result_in_the_sdks_is_unknown() -> None:
    """Every type with an id that another type answers is known, except those that contain their own result."""
    found = dict(typed_dicts(openai_items, anthropic.types, anthropic.types.beta))
    assert len(found) > 60
    for kind, fields in found.items():
        if "tool_use_id" in fields or "approval_request_id" in fields:
            assert kind == "mcp_call" or row(kind).step == "result", kind
        if "call_id" in fields:
            assert row(kind).step in ("call", "result"), kind
        if kind.endswith("_tool_use") or kind == "tool_use":
            assert row(kind).step == "call", kind
    for kind, part in PARTS.items():
        assert part.step not in ("call", "result") or kind not in found or found[kind] & set(part.id), kind


def test_a_hosted_call_carries_its_result() -> None:
    for kind in ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"):
        assert links_of(USER, {"type": kind, "id": "x", "status": "completed"}).problem(1, 1) is None


def test_reasoning_keeps_what_it_led_to() -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    asked, answered = PAIRS[0]
    links = links_of(USER, thought, thought, asked, answered, SAID)
    assert links.problem(3, 4) == "split_pair"
    assert links.problem(1, 4) is None
    assert links.problem(2, 4) == "split_pair"
    cut_short = links_of(USER, thought, USER, SAID)
    assert cut_short.problem(1, 1) is cut_short.problem(2, 3) is None
    assert links_of(USER, thought).pending == {1}
    assert links_of({"role": "assistant", "content": [SAID, thought]}, SAID).problem(0, 0) == "split_pair"
    assert links_of({"role": "assistant", "content": [thought, asked]}, answered).problem(0, 1) is None


def test_a_paused_turn_may_leave_a_servers_result_to_a_later_message() -> None:
    search = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "x", "name": "web_search"}]}
    found = {"role": "assistant", "content": [{"type": "web_search_tool_result", "tool_use_id": "x", "content": []}]}
    assert links_of(USER, search, found).problem(1, 1) == "split_pair"
    assert links_of(USER, search).problem(1, 1) == "pending_call"
    both = {"role": "assistant", "content": [*search["content"], *found["content"]]}
    assert links_of(USER, both).problem(1, 1) is None


@pytest.mark.parametrize(
    ("program", "caller", "end"),
    [
        (
            {"type": "server_tool_use", "id": "p"},
            {"type": "code_execution_20250825", "tool_id": "p"},
            {"type": "code_execution_tool_result", "tool_use_id": "p"},
        ),
        (
            {"type": "program", "call_id": "p"},
            {"type": "program", "caller_id": "p"},
            {"type": "program_output", "call_id": "p"},
        ),
    ],
)
def test_a_call_made_by_a_program_belongs_to_the_program(
    program: dict[str, Any], caller: dict[str, Any], end: dict[str, Any]
) -> None:
    asked, answered = PAIRS[0]
    links = links_of(program, {**asked, "caller": caller}, answered, end, USER)
    assert links.problem(1, 2) == "split_pair"
    assert links.problem(0, 3) is None
    # A caller that does not exist links nothing.
    assert links_of(USER, {**asked, "caller": caller}, answered).problem(1, 2) is None


def test_the_deprecated_function_call_is_paired_by_name_and_not_with_ids() -> None:
    asked = {"role": "assistant", "content": None, "function_call": {"name": "x", "arguments": "{}"}}
    answered = {"role": "function", "name": "x", "content": "seen"}
    assert links_of(asked, USER, answered).problem(0, 1) == "split_pair"
    assert links_of(asked, result("x")).orphans == {1}


def test_a_call_that_is_twice_in_one_message_is_one_call() -> None:
    both = {**call("x"), "content": [{"type": "tool_use", "id": "x", "name": "look", "input": {}}]}
    links = links_of(both, result("x"))
    assert not links.pending
    assert links.problem(0, 1) is None


ODD: list[Any] = [
    None, {}, {"tool_calls": None}, {"tool_calls": {"id": "x"}}, {"tool_calls": "x"},
    {"tool_calls": [None, 1, "x", []]}, {"tool_calls": [{"id": 1}, {"id": None}, {}]},
    {"function_call": "x"}, {"function_call": {"name": 1}},
    {"role": "tool"}, {"role": "tool", "tool_call_id": 7}, {"role": "function"}, {"role": ["user"]}, {"type": ["x"]},
    {"type": "function_call", "call_id": {}}, {"type": "tool_use"}, {"type": "tool_result", "tool_use_id": []},
    {"content": [None, 1, "x", [], {"type": None}, {"type": {}}, {"type": "tool_use", "id": 1}]}, {"content": {}},
    {"type": "function_call", "caller": {"tool_id": 1}}, {"type": "_tool_result"}, {"role": "user"},
    {"role": "user", "content": None}, {"role": "user", "content": ""}, {"role": "user", "content": []},
]  # fmt: skip


@pytest.mark.parametrize("payload", ODD, ids=str)
def test_odd_shapes_are_no_calls_and_never_raise(payload: Any) -> None:
    links = links_of(USER, payload, SAID)
    assert not links.pending
    assert not links.orphans
    assert links.problem(1, 1) is None
    assert call_and_result_ids([payload]) == []
    assert not is_system(payload)
    assert last_user([[USER], [payload]]) == 0


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner) | (
    st.dictionaries(st.sampled_from(["type", "role", "content", "id", "call_id", "tool_calls", "caller"]), inner)
)))  # fmt: skip
def test_no_json_raises(value: Any) -> None:
    Links([[value], [value, value]])
    call_and_result_ids([value])
    last_user([[value]])
    is_system(value)


def test_ids_are_listed_in_order_and_with_their_form() -> None:
    block = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b"}, {"type": "text", "text": "so"}]}
    found = call_and_result_ids([call("a", "b"), None, result("a"), block])
    assert [(step.kind, step.form, step.id) for step in found] == [
        ("call", "tool_calls", "a"),
        ("call", "tool_calls", "b"),
        ("result", "tool", "a"),
        ("result", "tool_result", "b"),
    ]


def test_the_last_user_is_one_who_says_something() -> None:
    only_result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "seen"}]}
    beside = {"role": "user", "content": [*only_result["content"], {"type": "text", "text": "and now?"}]}
    picture = {"role": "user", "content": [{"type": "image", "source": {}}]}
    assert last_user([[USER], [SAID], [only_result]]) == 0
    assert last_user([[USER], [beside], [only_result]]) == 1
    assert last_user([[USER], [SAID, picture]]) == 1
    assert last_user([[SAID], [], [None]]) is None
    assert last_user([]) is None


def test_system_and_developer_are_the_systems() -> None:
    assert is_system({"role": "system", "content": "x"})
    assert is_system({"role": "developer", "content": "x"})
    assert not is_system(USER)
    assert not is_system(None)


def test_long_chains_of_links_are_followed_without_recursion() -> None:
    """Each result comes after the next call, so each barrier breaks the next group."""
    payloads = [USER]
    for number in range(20_000):
        payloads += [call(f"x{number}")]
        if number:
            payloads += [result(f"x{number - 1}")]
    links = links_of(*payloads, SAID, SAID)
    size = len(payloads) + 2
    assert links.safe(0, size - 1) == (size - 2, size - 1)
    answered = links_of(*payloads, result("x19999"), SAID)
    assert answered.closed(1, 1) == (1, size - 2)
    assert answered.safe(2, size - 1) == (size - 1, size - 1)
