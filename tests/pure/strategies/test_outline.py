"""The outline of a view for strategies: speakers, messages that must stay, places to cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import random_threads as threads
from support.thread_patterns import calm, chat

from compaction_store.strategies import speaker
from compaction_store.strategies.outline import Outline, elements_of, speaks_anthropic

RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}


@pytest.mark.parametrize(
    ("message", "who"),
    [
        ({"role": "user", "content": "q"}, "user"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, "user"),
        ({"role": "user", "content": [RESULT, {"type": "text", "text": "hurry"}]}, "user"),
        ({"role": "user", "content": []}, "user"),
        ({"role": "user", "content": [RESULT]}, "result"),
        ({"role": "assistant", "content": "r"}, "assistant"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "assistant"),
        ({"role": "system", "content": "s"}, "system"),
        ({"role": "developer", "content": "s"}, "system"),
        ({"role": "tool", "tool_call_id": "a", "content": ""}, "result"),
        ({"role": "function", "name": "f", "content": ""}, "result"),
        ({"type": "message", "role": "assistant", "content": []}, "assistant"),
        ({"type": "function_call", "call_id": "a"}, "assistant"),
        ({"type": "function_call_output", "call_id": "a"}, "result"),
        ({"type": "reasoning", "summary": []}, "assistant"),
        ({"type": "web_search_call"}, "assistant"),
        ({"type": "item_reference", "id": "x"}, "other"),
        ({"role": "oracle"}, "other"),
        ({"role": ["user"]}, "other"),
        ({}, "other"),
        (None, "other"),
    ],
)
def test_who_speaks(message: Any, who: str) -> None:
    assert speaker(message) == who


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (chat("sua"), None),
        (chat("utr"), False),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}]}], True),
        ([{"type": "message", "role": "user", "content": [RESULT]}], True),
        ([{"role": "assistant", "content": [{"type": "text", "text": "hi"}]}], True),
        ([{"role": "assistant", "content": [{"type": "text", "text": "hi"}]}, *chat("tr")], False),
        ([{"type": "reasoning", "summary": []}], False),
        ([None, {"role": "user", "content": [3, {"type": []}]}], None),
    ],
)
def test_whose_format_it_is(messages: list[Any], found: bool | None) -> None:
    assert speaks_anthropic(messages) is found


@pytest.mark.parametrize(
    ("pattern", "stays"),
    [("suauau", "s    u"), ("sa", "s "), ("asua", " su "), ("utr", "u  ")],
)
def test_what_has_to_stay(pattern: str, stays: str) -> None:
    outline = Outline(elements_of(chat(pattern)))
    assert outline.stays == [letter != " " for letter in stays]
    assert not any(Outline(elements_of(chat(pattern)), allow={"system", "last_user"}).stays)


def test_in_anthropics_format_the_turn_after_a_system_message_stays() -> None:
    """The API accepts a system message only between a turn of the user and one of the assistant."""
    said = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "hi"}
    thread: list[Any] = [system, said, user, system, said, said, user, said, user]
    assert Outline(elements_of(thread)).stays == [True, False, False, True, True, True, False, False, True]


@calm
@given(st.sampled_from(threads.FORMATS), threads.scripts())
def test_blocks_are_the_smallest_parts_that_may_be_cut_apart(form: threads.Format, script: threads.Script) -> None:
    messages = [payload for words in script for payload in threads.written(words, form)]
    outline = Outline(elements_of(messages), allow={"last_user"})
    links = outline.links
    free = {
        (low, high)
        for low in range(len(messages))
        for high in range(low, len(messages))
        if links.problem(low, high) is None and not links.interrupts(low, high)
    }
    assert [index for block in outline.blocks for index in range(block.low, block.high + 1)] == list(
        range(len(messages))
    )
    assert {(low, high) for low, high in outline.safe(0, len(messages) - 1)} == {
        (low, high) for low, high in free if not any((low, high) != (a, b) and a <= low and high <= b for a, b in free)
    }
