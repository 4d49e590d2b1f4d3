"""Compression of a plain list: the result, the report, and that nothing is altered in place."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import COUNTER, FORMS, REFUSED, Payload, malformed, well_formed

from compaction_store.errors import InvalidInput, InvalidMessage
from compaction_store.strategies import CompressResult, compress_context, compress_context_async
from compaction_store.strategies.contents import compact
from compaction_store.strategies.truncation import Rule, cut, shorten, shorter_json
from compaction_store.tokens import bytes_over_four


def words(count: int, word: str = "word") -> str:
    return " ".join([word] * count)


def talk(turns: int, size: int) -> list[Payload]:
    made: list[Payload] = [{"role": "system", "content": "You are terse."}]
    for turn in range(turns):
        made.append({"role": "user", "content": f"question {turn} {words(size)}"})
        made.append({"role": "assistant", "content": f"answer {turn} {words(size)}"})
    return made


def short(_elements: Any) -> str:
    return "They talked."


def test_nothing_in_nothing_out() -> None:
    assert compress_context([], 1000) == CompressResult([], 0, was_compacted=False)


def test_what_fits_comes_back_as_it_is() -> None:
    messages = talk(3, 10)
    result = compress_context(messages, client=short)
    assert result.messages == messages
    assert all(a is b for a, b in zip(result.messages, messages, strict=True))
    assert not result.was_compacted
    assert result.token_count == result.original_token_count == COUNTER.messages(messages)


def test_the_reserve_is_kept_free() -> None:
    messages = talk(3, 100)
    count = COUNTER.messages(messages)
    assert not compress_context(messages, count + 50, reserve=50).was_compacted
    assert compress_context(messages, count + 49, reserve=50).was_compacted


def test_the_old_part_is_summarized() -> None:
    messages = talk(30, 100)
    result = compress_context(messages, 5000, reserve=500, keep_recent=5, client=short)
    assert result.messages_summarized == 55
    assert result.messages_dropped == 0
    assert result.summary_coverage == 1.0
    assert result.summarizer_available
    assert result.error is None
    assert result.messages[-5:] == messages[-5:]
    assert [message["role"] for message in result.messages[:3]] == ["system", "user", "assistant"]
    assert result.token_count == COUNTER.messages(result.messages)


def test_a_failing_summary_is_reported_and_the_ladder_goes_on() -> None:
    def fails(_elements: Any) -> str:
        raise RuntimeError("secret")

    result = compress_context(talk(30, 300), 5000, reserve=500, keep_recent=5, client=fails)
    assert result.error == "a summary failed: RuntimeError, the summarizer failed"
    assert result.messages_summarized == 0
    assert result.summary_coverage == 0.0
    assert result.token_count <= 4500
    empty = compress_context(talk(30, 300), 5000, keep_recent=5, client=lambda _elements: " ")
    assert "EmptySummary" in (empty.error or "")


def test_a_target_that_cannot_be_met_is_reported() -> None:
    result = compress_context([{"role": "user", "content": "x" * 100_000}], 100, reserve=50)
    assert result.was_compacted
    assert result.error is not None
    assert "must have at most 50 tokens" in result.error
    assert result.token_count < 200
    # A reserve above the target leaves nothing at all.
    messages = talk(5, 100)
    result = compress_context(messages, 100)
    assert result.error is not None
    assert result.messages[-1]["content"].startswith("answer 4")


def test_removed_messages_are_counted() -> None:
    messages = [{"role": "user", "content": f"{n} {words(300)}"} for n in range(60)]
    result = compress_context(messages, 3000, reserve=0)
    assert result.messages_dropped == 60 - len(result.messages) > 0
    assert result.token_count <= 3000


def test_recent_messages_counted_in_tokens_stay_whole_as_long_as_others_can_go() -> None:
    messages = [{"role": "user", "content": f"old {n} {words(400)}"} for n in range(40)]
    messages += [{"role": "user", "content": f"recent {n} {words(400)}"} for n in range(4)]
    result = compress_context(messages, 4000, reserve=0, keep_recent_tokens=1500)
    assert result.messages[-4:] == messages[-4:]
    assert result.tail_tokens == COUNTER.messages(messages[-4:])
    assert result.token_count <= 4000


def test_arguments_are_cut_unless_the_caller_forbids_it() -> None:
    arguments = json.dumps({"path": "/w/f1", "text": words(15_000)})
    call = {"id": "c", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    messages: list[Payload] = [
        {"role": "user", "content": "start"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": words(50)},
        {"role": "user", "content": "now"},
    ]
    kept = compress_context(messages, 10_000, reserve=0, truncate_tool_arguments=False)
    assert kept.messages == messages
    assert kept.error is not None
    done = compress_context(messages, 10_000, reserve=0)
    assert done.error is None
    assert json.loads(done.messages[1]["tool_calls"][0]["function"]["arguments"])["path"] == "/w/f1"


def test_async() -> None:
    async def summarize(_elements: Any) -> str:
        await asyncio.sleep(0)
        return "They talked."

    async def fails(_elements: Any) -> str:
        raise TimeoutError

    async def both() -> None:
        messages = talk(30, 100)
        options: dict[str, Any] = {"keep_recent": 5, "reserve": 0, "part_chars": 10_000}
        result = await compress_context_async(messages, 4000, client=summarize, **options)
        assert result == await compress_context_async(messages, 4000, client=short, **options)
        assert result == compress_context(messages, 4000, client=short, **options)
        failed = await compress_context_async(messages, 4000, client=fails, **options)
        assert "TimeoutError" in (failed.error or "")

    asyncio.run(both())
    with pytest.raises(TypeError, match="compress_context_async"):
        compress_context(talk(1, 1), client=summarize)


def test_clients_that_cannot_summarize_are_refused() -> None:
    with pytest.raises(
        TypeError, match="client must be an Anthropic client, an OpenAI client or a summarizer, not object"
    ):
        compress_context(talk(1, 1), client=object())


def _answer(text: str) -> str:
    """A reply of the Messages API as it is streamed."""
    start: dict[str, Any] = {
        "id": "m", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1},
    }  # fmt: skip
    events: list[Payload] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]  # fmt: skip
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _anthropic(request: httpx2.Request) -> httpx2.Response:
    assert json.loads(request.content)["model"] == "claude"
    return httpx2.Response(200, text=_answer("They talked."), headers={"content-type": "text/event-stream"})


def test_a_client_of_anthropics_summarizes_by_itself() -> None:
    options: dict[str, Any] = {"model": "claude", "keep_recent": 5, "reserve": 0}
    transport = httpx2.MockTransport(_anthropic)
    with anthropic.Anthropic(api_key="none", http_client=anthropic.DefaultHttpxClient(transport=transport)) as client:
        result = compress_context(talk(30, 100), 4000, client=client, **options)
    assert result.error is None
    assert result.messages_summarized == 55
    assert "They talked." in result.messages[1]["content"]

    async def later() -> CompressResult:
        http = anthropic.DefaultAsyncHttpxClient(transport=transport)
        async with anthropic.AsyncAnthropic(api_key="none", http_client=http) as client:
            with pytest.raises(TypeError, match="compress_context_async"):
                compress_context(talk(1, 1), client=client, model="claude")
            return await compress_context_async(talk(30, 100), 4000, client=client, **options)

    assert asyncio.run(later()) == result


def test_a_client_gets_the_deadline() -> None:
    transport = httpx2.MockTransport(_anthropic)
    options: dict[str, Any] = {"model": "claude", "keep_recent": 5, "reserve": 0}
    with anthropic.Anthropic(api_key="none", http_client=anthropic.DefaultHttpxClient(transport=transport)) as client:
        result = compress_context(talk(30, 100), 4000, client=client, deadline=60, **options)
        assert (result.error, result.messages_summarized) == (None, 55)
        # After the deadline, the list is shortened without the summary.
        result = compress_context(talk(30, 100), 4000, client=client, deadline=1e-9, **options)
        assert result.messages_summarized == 0
        assert "a summary failed" in (result.error or "")
        assert result.token_count <= 4000
        for wrong in (0, -1.0, "30"):
            with pytest.raises((InvalidInput, TypeError)):
                compress_context(talk(1, 1), client=client, deadline=wrong)  # type: ignore[arg-type]

    async def later() -> CompressResult:
        http = anthropic.DefaultAsyncHttpxClient(transport=transport)
        async with anthropic.AsyncAnthropic(api_key="none", http_client=http) as client:
            return await compress_context_async(talk(30, 100), 4000, client=client, deadline=1e-9, **options)

    assert "a summary failed" in (asyncio.run(later()).error or "")
    for summarizer in (None, short):
        with pytest.raises(InvalidInput, match="deadline must be None without a client"):
            compress_context(talk(1, 1), client=summarizer, deadline=30)


def test_sdk_objects_are_taken_and_bad_messages_refused() -> None:
    message = anthropic.types.Message(
        id="m", content=[anthropic.types.TextBlock(type="text", text=words(500))], model="m", role="assistant",
        type="message", usage=anthropic.types.Usage(input_tokens=1, output_tokens=1),
    )  # fmt: skip
    result = compress_context([{"role": "user", "content": "hi"}, message], 200, reserve=0)
    assert result.was_compacted
    assert result.token_count <= 200
    with pytest.raises(InvalidMessage):
        compress_context(["no message"], 10)


def test_another_counter() -> None:
    messages = talk(10, 300)
    result = compress_context(messages, 4000, reserve=0, counter=bytes_over_four())
    assert result.token_count == bytes_over_four().messages(result.messages) <= 4000


def test_no_content_shows() -> None:
    assert "word" not in repr(compress_context(talk(3, 500), 500))


def test_the_callers_messages_are_not_altered() -> None:
    messages = talk(20, 400)
    before = copy.deepcopy(messages)
    compress_context(messages, 1000, reserve=0, client=short)
    assert messages == before


# ---- single messages


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "tool", "tool_call_id": "c", "content": "x" * 10_000}, ("content",)),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "y" * 10_000}]},
            ("content", 0, "content"),
        ),
        ({"type": "function_call_output", "call_id": "c", "output": words(5000)}, ("output",)),
        (
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": words(900), "stderr": ""}]},
            ("output", 0, "stdout"),
        ),
        ({"type": "mcp_call", "id": "m", "name": "n", "output": words(900), "arguments": "{}"}, ("output",)),
        ({"role": "user", "content": [{"type": "input_text", "text": words(900)}]}, ("content", 0, "text")),
        (
            {"role": "assistant", "content": [{"type": "output_text", "text": words(900), "annotations": [{"a": 1}]}]},
            ("content", 0, "text"),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words(900)}}
                ],
            },
            ("content", 0, "source", "data"),
        ),
    ],
)  # fmt: skip
def test_texts_lose_their_middles_wherever_they_are(message: Payload, place: tuple[Any, ...]) -> None:
    new: Any = shorten(message, 100, COUNTER, Rule())
    old: Any = message
    for step in place:
        new, old = new[step], old[step]
    assert "…" in new
    assert new[0] == old[0]
    assert new[-1] == old[-1]
    assert COUNTER.text(new) <= 100
    assert shorten(message, 20_000, COUNTER, Rule()) is message


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://a"}}, "text"),
        ({"type": "image_url", "image_url": {"url": "https://a"}}, "text"),
        ({"type": "input_image", "image_url": "https://a", "detail": "auto"}, "input_text"),
        ({"type": "input_file", "file_id": "f"}, "input_text"),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBER"}}, "text"),
    ],
)
def test_pictures_and_files_become_a_note(block: Payload, text: str) -> None:
    new = shorten({"role": "user", "content": [{"type": text, "text": "see"}, block]}, 128, COUNTER, Rule())
    assert new["content"][0] == {"type": text, "text": "see"}
    assert new["content"][1]["type"] == text
    assert "left out" in new["content"][1]["text"]


def test_the_smaller_pieces_of_a_message_stay_whole() -> None:
    parts = [{"type": "text", "text": words(n)} for n in (10, 2000, 30, 3000)]
    new = shorten({"role": "user", "content": parts}, 200, COUNTER, Rule())["content"]
    assert [new[0], new[2]] == [parts[0], parts[2]]
    sizes = [COUNTER.text(part["text"]) for part in new]
    assert sum(sizes) <= 200
    assert abs(sizes[1] - sizes[3]) <= 2


def test_thinking_is_left_whole_or_left_out() -> None:
    thinking = {"type": "thinking", "thinking": words(500), "signature": "s"}
    message: Payload = {"role": "assistant", "content": [thinking, {"type": "text", "text": "so"}]}
    assert shorten(message, 100, COUNTER, Rule()) is message
    new = shorten(message, 100, COUNTER, Rule(thinking=True))
    assert new["content"] == [{"type": "text", "text": "so"}]
    more = {"type": "thinking", "thinking": "hm", "signature": "s"}
    mixed: Payload = {"role": "assistant", "content": [thinking, {"type": "text", "text": "so"}, more]}
    assert shorten(mixed, 100, COUNTER, Rule(thinking=True)) == new
    alone: Payload = {"role": "assistant", "content": [thinking]}
    assert shorten(alone, 100, COUNTER, Rule(thinking=True)) == alone


def test_sealed_content_is_not_touched() -> None:
    found = {"type": "web_search_result", "title": words(200), "url": "u", "encrypted_content": words(500)}
    message = {
        "role": "assistant",
        "content": [{"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]}],
    }
    assert shorten(message, 16, COUNTER, Rule(thinking=True)) is message


@pytest.mark.parametrize("cap", [1, 2, 5, 33, 100])
@pytest.mark.parametrize(
    "text", ["héllo wörld " * 100, "👩‍👩‍👧‍👦" * 80, "漢字かな" * 200, "\ud800x" * 300, " \n" * 500, "a" * 5000]
)
def test_no_character_is_broken_and_nothing_blank_is_left(text: str, cap: int) -> None:
    kept = cut(text, cap, COUNTER)
    assert kept.strip() or kept == text
    assert COUNTER.text(kept) <= cap or kept == text
    head, _, tail = kept.partition("…")
    assert text.startswith(head.removesuffix(" "))
    assert text.endswith(tail.rpartition("…")[2].removeprefix(" "))


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=8) | st.sampled_from([words(50), words(300)]),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=10,
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(16, 300),
)
def test_an_input_stays_json_and_keeps_to_its_cap(value: Payload, cap: int) -> None:
    new = shorter_json(value, cap, COUNTER)
    assert json.loads(compact(new)) == new
    assert COUNTER.text(compact(new)) <= max(cap, 24) or COUNTER.text(compact(value)) <= cap


@pytest.mark.parametrize(
    "text", ['{"broken": "' + words(900), '["a list", "' + words(900) + '"]', '"' + words(900) + '"']
)
def test_arguments_that_are_no_object_are_cut_too(text: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    new = shorten({"role": "assistant", "content": None, "tool_calls": [call]}, 100, COUNTER, Rule())
    cut_ = new["tool_calls"][0]["function"]["arguments"]
    assert COUNTER.text(cut_) <= 110
    if not text.startswith("{"):
        json.loads(cut_)


# ---- what holds for every thread


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), target=st.sampled_from([1, 200, 800, 4000]), client=st.sampled_from([None, short]))
def test_what_comes_out_of_a_well_formed_thread_is_well_formed(
    form: str, data: st.DataObject, target: int, client: Any
) -> None:
    messages = data.draw(well_formed(form))
    before = copy.deepcopy(messages)
    result = compress_context(messages, target, reserve=0, keep_recent=3, client=client)
    assert messages == before
    assert not REFUSED[form](result.messages)
    assert result.token_count == COUNTER.messages(result.messages) <= result.original_token_count
    assert (result.token_count <= target) == (result.error is None)
    again = compress_context(result.messages, target, reserve=0, keep_recent=3, client=client)
    assert again.token_count <= result.token_count


@settings(max_examples=100, deadline=None)
@given(malformed(), st.sampled_from([1, 200, 2000]))
def test_no_thread_makes_it_raise_or_grow(messages: list[Payload], target: int) -> None:
    result = compress_context(messages, target, reserve=0, client=short)
    assert result.token_count <= result.original_token_count


@pytest.mark.parametrize("odd", [[], {}, 7, None, True, "?"])
def test_odd_shapes_are_left_alone(odd: Any) -> None:
    for message in (
        {"role": odd, "content": [{"type": odd, "text": words(300)}], "type": odd},
        {"role": "user", "content": odd, "tool_calls": odd, "function_call": odd},
        {"role": "assistant", "tool_calls": [{"function": odd, "id": odd}, odd]},
        {"type": "document", "source": {"type": odd}},
        {"role": "tool", "tool_call_id": odd, "content": [odd]},
    ):
        compress_context([message, {"role": "user", "content": words(300)}, message], 1, reserve=0)
        assert shorten(message, 5000, COUNTER, Rule(thinking=True)) is message
