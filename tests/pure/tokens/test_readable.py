"""The texts of a message that are counted, in every format, and the cost of images, files and encrypted text."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_store import tokens
from compaction_store.tokens import media, o200k

COUNTER = tokens.o200k_base()
ONE = {"type": "text", "text": "one"}
TWO = {"type": "text", "text": "two"}


def whole(text: str) -> int:
    """Returns the encoder's own count of a text, in one piece."""
    return len(o200k.load().encode_ordinary(text))


def counted(message: dict[str, Any]) -> int:
    return COUNTER.messages([message])


def texts(*given: str) -> int:
    """Returns the tokens of a message with exactly these texts."""
    return 3 + sum(map(whole, given))


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + os.urandom(width) for _ in range(min(height, 50))))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(width: int, height: int, *, thumbnail: int = 60_000, padding: int = 0) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", thumbnail + 2) + os.urandom(thumbnail)
    size = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + exif * 3 + b"\xff\x01" + b"\xff" * padding + size + b"\xff\xda" + os.urandom(5000)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + os.urandom(500)


def webp(kind: bytes, size: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", 1000) + size
    return b"RIFF" + struct.pack("<I", 1000) + body + os.urandom(500)


IMAGES = {
    "png": png(1000, 750),
    "jpeg": jpeg(1000, 750),
    "jpeg with padding": jpeg(1000, 750, thumbnail=7, padding=3),
    "gif": gif(1000, 750),
    "webp lossy": webp(b"VP8 ", bytes(6) + struct.pack("<HH", 1000 | 0x4000, 750)),
    "webp lossless": webp(b"VP8L", b"\x2f" + struct.pack("<I", 999 | 749 << 14) + bytes(5)),
    "webp extended": webp(b"VP8X", bytes(4) + (999).to_bytes(3, "little") + (749).to_bytes(3, "little")),
}


# Texts that are counted


def test_the_fields_of_the_frame_cost_nothing_and_a_name_one_token_more() -> None:
    frame = {
        "id": "msg_1", "type": "message", "model": "claude", "stop_reason": "end_turn", "usage": {"input_tokens": 3},
        "status": "completed", "annotations": [], "metadata": {"a": "b"},
    }  # fmt: skip
    message = {"role": "assistant", "content": "Hello there."}
    assert counted(message | frame) == counted(message) == texts("Hello there.")
    assert counted(message | {"name": "Ada"}) == texts("Hello there.", "Ada") + 1


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ({"type": "text", "text": "one two"}, ["one two"]),
        (
            {"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}, "citations": [{"cited_text": "x"}]},
            ["one"],
        ),
        ({"type": "input_text", "text": "one two"}, ["one two"]),
        (
            {"type": "output_text", "text": "one two", "annotations": [{"url": "https://x"}], "logprobs": []},
            ["one two"],
        ),
        ({"type": "refusal", "refusal": "I can not."}, ["I can not."]),
        ({"type": "tool_use", "id": "t1", "name": "look", "input": {}}, ["t1", "look", "{}"]),
        (
            {"type": "server_tool_use", "id": "t1", "name": "web_search", "input": {"query": "é"}},
            ["t1", "web_search", '{"query":"é"}'],
        ),
        (
            {"type": "mcp_tool_use", "id": "t1", "name": "look", "server_name": "s", "input": [1]},
            ["t1", "look", "s", "[1]"],
        ),
        ({"type": "tool_result", "tool_use_id": "t1", "content": [ONE, TWO]}, ["t1", "one", "two"]),
        ({"type": "tool_result", "tool_use_id": "t1", "is_error": True}, ["t1"]),
        ({"type": "mcp_tool_result", "tool_use_id": "t1", "content": [ONE]}, ["t1", "one"]),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "web_search_result", "url": "https://a", "title": "A"}],
            },
            ["t1", "https://a", "A"],
        ),
        (
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "t1",
                "content": {
                    "type": "web_fetch_result",
                    "url": "https://a",
                    "content": {
                        "type": "document",
                        "title": "T",
                        "source": {"type": "text", "media_type": "text/plain", "data": "page"},
                    },
                },
            },
            ["t1", "https://a", "T", "page"],
        ),
        (
            {
                "type": "bash_code_execution_tool_result",
                "tool_use_id": "t1",
                "content": {
                    "type": "bash_code_execution_result",
                    "stdout": "out",
                    "stderr": "err",
                    "return_code": 0,
                    "content": [],
                },
            },
            ["t1", "out", "err"],
        ),
        (
            {
                "type": "tool_search_tool_result",
                "tool_use_id": "t1",
                "content": {"type": "tool_search_tool_search_result", "tool_references": []},
            },
            ["t1", '{"type":"tool_search_tool_search_result","tool_references":[]}'],
        ),
        ({"type": "search_result", "source": "https://a", "title": "T", "content": [ONE]}, ["https://a", "T", "one"]),
        (
            {"type": "document", "title": "T", "context": "C", "source": {"type": "content", "content": [ONE]}},
            ["T", "C", "one"],
        ),
        ({"type": "document", "source": {"type": "content", "content": "one"}}, ["one"]),
        ({"type": "thinking", "thinking": "Let me see.", "signature": ""}, ["Let me see."]),
        ({"type": "compaction", "content": "Earlier: hello."}, ["Earlier: hello."]),
    ],
)
def test_blocks_count_what_is_read_of_them(block: dict[str, Any], read: list[str]) -> None:
    assert counted(user(block)) == texts(*read)
    assert counted(user({"type": "tool_result", "tool_use_id": "t", "content": [block]})) == texts("t", *read)


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}, ["one"]),
        ({"type": "message", "content": "one"}, ["one"]),
        (
            {
                "type": "function_call",
                "id": "fc",
                "call_id": "c1",
                "name": "f",
                "arguments": '{"a":1}',
                "status": "completed",
            },
            ["c1", "f", '{"a":1}'],
        ),
        ({"type": "function_call_output", "call_id": "c1", "output": "done"}, ["c1", "done"]),
        (
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
            ["c1", "done"],
        ),
        ({"type": "function_call_output"}, []),
        ({"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "raw"}, ["c1", "f", "raw"]),
        ({"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}, ["c1", "done"]),
        (
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "content": [{"type": "reasoning_text", "text": "So."}],
            },
            ["Hm.", "So."],
        ),
        (
            {"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}", "output": "done"},
            ["s", "f", "{}", "done"],
        ),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "f"}]}, ["s", '[{"name":"f"}]']),
        (
            {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}, "status": "completed"},
            ['{"type":"search","query":"q"}'],
        ),
        ({"type": "file_search_call", "queries": ["one", "two"], "results": None}, ["one", "two"]),
        ({"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]}, ["1+1", "2"]),
    ],
)
def test_items_of_a_response_count_what_is_read_of_them(item: dict[str, Any], read: list[str]) -> None:
    assert counted(item) == texts(*read)


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"role": "user", "content": [ONE, "two", None]}, ["one", "two"]),
        ({"role": "assistant", "content": "", "refusal": "No."}, ["No."]),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, ["f", "{}"]),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            ["c", "custom", "f", "x"],
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
            ["c", "f", '{"a":1}'],
        ),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm", "reasoning": "hm"}, ["x", "hm"]),
        ({"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "spoken"}}, ["spoken"]),
        ({"role": "assistant"}, []),
        ({}, []),
    ],
)
def test_messages_of_a_chat_count_what_is_read_of_them(message: dict[str, Any], read: list[str]) -> None:
    assert counted(message) == texts(*read)


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"b": 1, "a": [2.0, None, True]}, '{"b":1,"a":[2.0,null,true]}'),
        ({"role": "user", "parts": [{"text": "héllo"}]}, '{"role":"user","parts":[{"text":"héllo"}]}'),
        ({"type": "later_invention", "what": "x"}, '{"type":"later_invention","what":"x"}'),
        (
            {"role": "user", "content": [{"type": "later_invention", "what": {"y": "z"}}]},
            '{"type":"later_invention","what":{"y":"z"}}',
        ),
        ({"role": "user", "content": {"what": 5}}, '{"what":5}'),
        ({"role": "user", "content": [{"type": ["odd"], "a": 1}]}, '{"type":["odd"],"a":1}'),
        ({"role": "user", "content": 12.5}, "12.5"),
    ],
)
def test_unknown_shapes_count_as_compact_json(message: dict[str, Any], read: str) -> None:
    assert counted(message) == texts(read)


_NAMES = st.sampled_from(
    ["type", "content", "role", "text", "source", "data", "image_url", "url", "input", "audio", "file", "tool_calls",
     "function", "media_type", "thinking", "signature", "name", "output", "summary", "title", "format"]
)  # fmt: skip
_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES | st.text(), inner, max_size=4),
    max_leaves=20,
)
_KINDS = st.sampled_from(
    ["text", "image", "image_url", "input_audio", "file", "document", "tool_use", "tool_result", "thinking",
     "redacted_thinking", "function_call", "reasoning", "image_generation_call", "message", "x_call_output"]
)  # fmt: skip


@given(st.dictionaries(_NAMES, _JSON_VALUES, max_size=5), st.none() | _KINDS)
def test_no_shape_of_json_breaks_the_count(message: dict[str, Any], kind: str | None) -> None:
    block = message if kind is None else message | {"type": kind}
    assert counted(block) >= 3
    assert counted({"role": "user", "content": [block]}) >= 3


def test_a_message_as_deep_as_one_may_be_is_counted() -> None:
    message: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(98):
        message = {"type": "tool_result", "content": [message]}
    assert counted({"role": "user", "content": [message]}) == texts("x")


# Images, files, sealed text


@pytest.mark.parametrize("kind", sorted(IMAGES))
def test_images_count_by_their_size_in_every_format(kind: str) -> None:
    data = b64(IMAGES[kind])
    for block in (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "high"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{data}"},
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "image", "image": data},
        {"type": "image", "source": {"type": "base64", "data": base64.encodebytes(IMAGES[kind]).decode()}},
        {"type": "image", "source": {"type": "base64", "data": data.replace("+", "-").replace("/", "_")}},
    ):  # fmt: skip
        assert counted(user(block)) == 3 + 1000
        assert counted(user({"type": "tool_result", "tool_use_id": "t", "content": [block]})) == texts("t") + 1000
    assert counted({"type": "image_generation_call", "result": data}) == 3 + 1000


@pytest.mark.parametrize(
    ("width", "height", "count"), [(1, 1, 85), (252, 252, 85), (300, 300, 120), (1092, 1092, 1590), (9000, 9000, 1600)]
)
def test_an_image_counts_no_less_and_no_more_than_is_stated(width: int, height: int, count: int) -> None:
    assert counted(user({"type": "image", "source": {"type": "base64", "data": b64(png(width, height))}})) == 3 + count


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "bm8gaW1hZ2U=" * 10_000}},
        {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo"}},
        {"type": "image", "source": {"type": "base64", "data": b64(png(0, 5))}},
        {"type": "image", "source": {"type": "base64", "data": b64(b"\xff\xd8" + b"\xff" * 5000)}},
        {"type": "image", "source": {"type": "base64", "data": b64(b"\xff\xd8" + b"\xff\xe1\0\0" * 5000)}},
        {"type": "image", "source": {"type": "base64", "data": "é" * 100}},
        {"type": "image", "source": {"type": "base64", "data": None}},
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_image", "image_url": None, "file_id": "file_1"},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document"},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}},
    ],
)
def test_what_shows_no_size_has_one_flat_figure(block: dict[str, Any]) -> None:
    assert counted(user(block)) == 3 + media.UNSEEN == 1603


def test_an_image_of_low_detail_has_its_own_figure() -> None:
    url = f"data:image/png;base64,{b64(png(2000, 2000))}"
    assert counted(user({"type": "image_url", "image_url": {"url": url, "detail": "low"}})) == 3 + 85
    assert counted(user({"type": "input_image", "image_url": url, "detail": "low"})) == 3 + 85


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": b64(bytes(400_000))},
            },
            10_000,
        ),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64," + b64(bytes(400_000))}}, 10_000),
        ({"type": "input_file", "file_data": "data:text/csv;charset=utf-8;base64," + b64(bytes(3000))}, 750),
        ({"type": "input_audio", "input_audio": {"data": b64(bytes(60_000)), "format": "wav"}}, 60),
        ({"type": "audio", "data": b64(bytes(60_000)), "mimeType": "audio/mpeg"}, 60),
        ({"type": "redacted_thinking", "data": b64(bytes(3000))}, 750),
        ({"type": "reasoning", "summary": [], "encrypted_content": b64(bytes(3000))}, 750),
        ({"type": "web_search_result", "encrypted_content": b64(bytes(3000))}, 750),
        ({"type": "compaction", "encrypted_content": b64(bytes(3000))}, 750),
        ({"type": "thinking", "thinking": "", "signature": b64(bytes(3000))}, 750),
    ],
)
def test_files_sounds_and_sealed_text_count_by_their_bytes(block: dict[str, Any], count: int) -> None:
    assert counted(user(block)) == 3 + count


def test_sealed_thinking_counts_for_what_its_text_does_not_show() -> None:
    shown = "word " * 400
    longer = {"type": "thinking", "thinking": shown, "signature": b64(bytes(3000))}
    assert counted(user(longer)) == texts(shown) + (3000 - len(shown)) // 4
    shorter = {"type": "thinking", "thinking": shown, "signature": b64(bytes(300))}
    assert counted(user(shorter)) == texts(shown)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: {"later": x},
        lambda x: {"type": "later", "a": [x]},
        lambda x: {"type": "y_result", "content": {"b": x}},
    ],
)
@pytest.mark.parametrize(
    ("value", "count"),
    [
        ({"inline_data": {"mime_type": "image/png", "data": b64(IMAGES["png"])}}, 1000),
        ({"inlineData": {"mimeType": "audio/wav", "data": b64(bytes(90_000))}}, 90),
        ({"image": {"format": "png", "source": {"bytes": b64(IMAGES["jpeg"])}}}, 1000),
        ({"type": "image", "source": {"type": "base64", "data": b64(IMAGES["gif"])}}, 1000),
        ("data:image/webp;base64," + b64(IMAGES["webp lossy"]), 1000),
        (b64(IMAGES["webp lossless"]), 1000),
        (b64(b"RIFF\0\0\0\0WAVE" + bytes(90_000)), 91),
        (b64(b"%PDF-1.7" + bytes(400_000)), 10_001),
        ({"encrypted_content": b64(bytes(3000))}, 750),
    ],
)
def test_base64_in_unknown_shapes_is_never_counted_as_text(wrap: Callable[[Any], Any], value: Any, count: int) -> None:
    around = counted(user(wrap(value))) - count
    assert 3 < around < 60


def test_base64_that_stands_in_a_text_is_text() -> None:
    text = "data:image/png;base64," + b64(IMAGES["gif"])
    assert counted({"role": "user", "content": text}) == texts(text)


def test_a_text_that_only_begins_like_a_data_url_is_looked_at_once() -> None:
    for text in ("data:" + "a" * 5_000_000, "data:" + ";" * 5_000_000, "data:" + "a;" * 2_500_000):
        assert media.found_in(text) is None
