"""The table of message parts: a row is all that a new type of block needs, and the walk finds every part."""

from __future__ import annotations

from typing import Any

import pytest

from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.audit.words import said
from compaction_store.errors import InvalidMessage
from compaction_store.importers.formats import of_messages
from compaction_store.messages import parts, tool_pairs
from compaction_store.messages.parts import PARTS, PartType, Shape, walk
from compaction_store.models import Payload
from compaction_store.probes.speech import MessageReading
from compaction_store.rendering import View, for_anthropic, for_openai
from compaction_store.rendering.acceptance import accepted
from compaction_store.strategies import plan_clear_tool_results
from compaction_store.strategies.outline import elements_of, speaker
from compaction_store.strategies.truncation import Rule, shorten
from compaction_store.summarizers import StateSummary
from compaction_store.tokens import o200k_base
from compaction_store.tokens.message_text import read

LONG = "There are 4711 rows in the table. " * 80
ASK = PartType(
    "query_use", step="call", id=("query_id",), input=("query",), answer="query_rows", role="assistant",
    reads=("query_id", "query"), cuts=("query",),
    anthropic=Shape(("query_id", "query"), frozenset({"type", "query_id", "query", "name"})),
)  # fmt: skip
ROWS = PartType(
    "query_rows", step="result", id=("query_id",), answers=("query_use",), role="user", reads=("query_id", "rows"),
    cuts=("rows",), cleared=lambda part, line: {**part, "rows": line},
    anthropic=Shape(("query_id",), frozenset({"type", "query_id", "rows", "content", "is_error"})),
)  # fmt: skip
NOTE = PartType("margin_note", text="note", reads=("note",), cuts=("note",), anthropic=Shape(("note",), frozenset()))
ITEM = PartType(
    "query_call", step="call", id=("query_id",), input=("query",), answer="query_call_rows", reads=("query",),
    item=("query_id", "query"),
)  # fmt: skip
ITEM_ROWS = PartType(
    "query_call_rows", step="result", id=("query_id",), answers=("query_call",), reads=("rows",), cuts=("rows",),
    cleared=lambda part, line: {**part, "rows": line}, item=("query_id", "rows"),
)  # fmt: skip
USER: Payload = {"role": "user", "content": "How many rows are there?"}
CALL: Payload = {"type": "query_use", "query_id": "q1", "name": "sql", "query": {"sql": "select count(*)"}}
RESULT: Payload = {"type": "query_rows", "query_id": "q1", "rows": LONG}
THREAD: list[Payload] = [
    USER,
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
    {"role": "user", "content": [RESULT]},
    {"role": "assistant", "content": "There are 4711."},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(autouse=True)
def _new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in (ASK, ROWS, NOTE, ITEM, ITEM_ROWS):
        monkeypatch.setitem(PARTS, row.name, row)


def view(messages: list[Payload]) -> View:
    return View("t", len(messages), tuple(elements_of(messages, lambda message: o200k_base().messages([message]))))


def test_a_row_pairs_a_new_block() -> None:
    links = tool_pairs.Links([(message,) for message in THREAD])
    assert (links.problem(1, 1), links.problem(2, 2), links.problem(1, 2)) == ("split_pair", "split_pair", None)
    assert not links.pending
    assert not links.orphans
    (pending,) = view(THREAD[:2]).pending_calls
    assert (pending.id, pending.name, pending.input) == ("q1", "sql", {"sql": "select count(*)"})
    assert list(map(speaker, THREAD)) == ["user", "assistant", "result", "assistant", "user"]


def test_a_row_counts_a_new_block() -> None:
    assert read(THREAD[2])[0] == ["q1", LONG]
    assert read({"role": "user", "content": [{**RESULT, "type": "unheard_of"}]})[0] != ["q1", LONG]


def test_a_row_has_a_new_block_cut() -> None:
    short = shorten(THREAD[2], 60, o200k_base(), Rule())
    assert short["content"][0].keys() == RESULT.keys()
    assert len(short["content"][0]["rows"]) < len(LONG) / 4
    assert shorten(THREAD[1], 4, o200k_base(), Rule())["content"][1]["query"] != CALL["query"]
    noted = {"role": "user", "content": [{"type": "margin_note", "note": LONG}]}
    assert len(shorten(noted, 60, o200k_base(), Rule())["content"][0]["note"]) < len(LONG) / 4


def test_a_row_has_a_new_block_cleared() -> None:
    (change,) = plan_clear_tool_results(THREAD, keep=0)
    (block,) = change.messages[0]["content"]
    assert block == {**RESULT, "rows": block["rows"]}
    assert block["rows"].startswith("[Result of sql cleared: ")
    done = [*THREAD[:2], *change.messages, *THREAD[3:]]
    assert plan_clear_tool_results(done, keep=0) == []
    assert plan_clear_tool_results(THREAD, keep=0, exclude=["sql"]) == []


def test_a_row_displays_and_probes_a_new_block() -> None:
    assert said(THREAD[1]) == 'I look.\ncall: sql({"sql": "select count(*)"})'
    assert said(THREAD[2]) == f"result: {LONG}"
    asked, told = MessageReading(THREAD[1]), MessageReading(THREAD[2])
    assert [(call.id, call.name, call.given) for call in asked.calls] == [("q1", "sql", {"sql": "select count(*)"})]
    assert [(result.id, result.size) for result in told.results] == [("q1", len(LONG))]
    summary = StateSummary(share=0.5)(elements_of(THREAD[:3]))
    assert "4711 rows" in summary.text


def test_a_row_renders_a_new_block() -> None:
    rendered = for_anthropic(view(THREAD))
    assert rendered["messages"] == [
        USER, THREAD[1], {"role": "user", "content": [RESULT]}, THREAD[3], THREAD[4],
    ]  # fmt: skip
    assert refused_by_anthropic(rendered["messages"]) == []
    late = for_anthropic(view([*THREAD[:2], THREAD[4], THREAD[2]]))["messages"]
    assert late[2]["content"] == [RESULT, {"type": "text", "text": "Thanks."}]
    open_ = for_anthropic(view(THREAD[:2]))["messages"]
    assert open_[2]["content"][0].items() >= {"type": "query_rows", "query_id": "q1", "is_error": True}.items()
    chat = for_openai(view(THREAD), api="chat")["messages"]
    assert chat[1]["tool_calls"][0]["function"] == {"name": "sql", "arguments": '{"sql":"select count(*)"}'}
    assert chat[2] == {"role": "tool", "tool_call_id": "q1", "content": LONG}
    assert refused_by_openai(chat) == []
    items = for_openai(view(THREAD), api="responses")["input"]
    assert [item.get("type") for item in items] == [None, None, "function_call", "function_call_output", None, None]
    assert refused_by_openai_responses(items) == []


def test_a_row_renders_a_new_item() -> None:
    call, rows = {"type": "query_call", "query_id": "q", "query": "x"}, {"type": "query_call_rows", "query_id": "q"}
    items = [USER, call, {**rows, "rows": LONG}]
    assert for_openai(view(items), api="responses")["input"] == items
    assert refused_by_openai_responses(items) == []
    assert [problem.rule for problem in refused_by_openai_responses([USER, call])] == ["unanswered_call"]
    (*_, answer) = for_openai(view(items[:2]), api="responses")["input"]
    assert answer == {**rows, "rows": "(There is no result: the call was not answered.)"}
    (change,) = plan_clear_tool_results([*items, {"role": "assistant", "content": "a"}], keep=0)
    assert change.messages[0]["rows"].startswith("[Result of query cleared: ")


def test_a_row_has_a_new_block_accepted() -> None:
    for message in THREAD:
        assert accepted(message).payload == message
    for wrong, at in (
        ({"role": "assistant", "content": [{**CALL, "query_id": 7}]}, r"content\[0\].query_id"),
        ({"role": "user", "content": [{"type": "query_rows"}]}, r"content\[0\].query_id"),
        ({"type": "query_call", "query_id": "q"}, "query"),
    ):
        with pytest.raises(InvalidMessage, match=at):
            accepted(wrong)
    assert next(of_messages([THREAD[2]])) == "anthropic"


# ---- the walk


def test_the_walk_finds_every_part_once_with_its_path() -> None:
    text, block = {"type": "text", "text": "a"}, {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    message: Any = {"role": "assistant", "content": ["b", text, block], "tool_calls": [*calls, 7]}
    message["function_call"] = {"name": "g", "arguments": "{}"}
    assert [(path, row.name, part) for path, row, part in walk(message)] == [
        (("content", 0), "", "b"), (("content", 1), "text", text), (("content", 2), "tool_use", block),
        (("tool_calls", 1), "tool_calls", calls[1]), (("function_call",), "function", message["function_call"]),
    ]  # fmt: skip
    told = {"role": "tool", "tool_call_id": "a", "content": [text]}
    assert [(path, row.step) for path, row, _ in walk(told)] == [((), "result"), (("content", 0), None)]
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert [(path, row.name) for path, row, _ in walk(item)] == [((), "reasoning")]


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"type": []}, {"content": [{"type": {}}, None]}, {"tool_calls": {}}])
def test_the_walk_takes_any_value(odd: Any) -> None:
    assert all(row is parts.UNKNOWN for _, row, _ in walk(odd))


def test_a_call_of_a_result_and_a_result_of_a_call_are_in_the_table() -> None:
    for row in PARTS.values():
        assert (row.step is not None) or not (row.id or row.input or row.answer or row.answers), row.name
        assert row.step is None or row.id, row.name
        assert row.answer is None or row.name in PARTS[row.answer].answers, row.name
        assert all(PARTS[name].step == "call" for name in row.answers), row.name
