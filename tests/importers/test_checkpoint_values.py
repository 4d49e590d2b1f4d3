"""Decoding MessagePack to plain data: every form is decoded, and other bytes raise only one kind of error."""

from __future__ import annotations

import sqlite3
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_store.errors import MissingExtra
from compaction_store.importers import langgraph, open_source
from compaction_store.importers.langgraph import Object, Undecodable, array_header, decode, find, split

VALUES: dict[bytes, Any] = {
    b"\x00": 0, b"\x7f": 127, b"\xff": -1, b"\xe0": -32, b"\xc0": None, b"\xc2": False, b"\xc3": True,
    b"\xcc\xff": 255, b"\xcd\x01\x00": 256, b"\xce\x00\x01\x00\x00": 65536, b"\xcf" + b"\xff" * 8: 2**64 - 1,
    b"\xd0\x80": -128, b"\xd1\x80\x00": -(2**15), b"\xd2\x80\x00\x00\x00": -(2**31),
    b"\xd3\x80" + b"\x00" * 7: -(2**63), b"\xcb" + struct.pack(">d", 1.1): 1.1, b"\xca" + struct.pack(">f", 0.5): 0.5,
    b"\xa0": "", b"\xa3\xe4\xbc\x9a": "会", b"\xd9\x01\x00": "\0", b"\xda\x00\x01a": "a", b"\xdb\x00\x00\x00\x01b": "b",
    b"\xc4\x02\x00\xff": "AP8=", b"\xc5\x00\x01a": "YQ==", b"\xc6\x00\x00\x00\x01a": "YQ==",
    b"\x90": [], b"\x92\x01\xa1x": [1, "x"], b"\xdc\x00\x01\xc0": [None], b"\xdd\x00\x00\x00\x01\xc0": [None],
    b"\x80": {}, b"\x82\xa1a\x01\x02\x03": {"a": 1, "2": 3}, b"\xde\x00\x01\xa1a\xc0": {"a": None},
    b"\xdf\x00\x00\x00\x01\xa1a\xc0": {"a": None},
    # A UUID, a set, a path, a moment; a model; an array of numbers.
    b"\xc7\x06\x00\x93\xa1m\xa1n\x05": 5, b"\xc8\x00\x08\x00\x93\xa1m\xa1n\x92\x01\x02": [1, 2],
    b"\xc9\x00\x00\x00\x09\x03\x94\xa1m\xa1n\xa1t\xa1f": "t",
    b"\xc7\x09\x05\x93\xa1m\xa1N\x81\xa1f\x01": Object("N", {"f": 1}),
    b"\xd8\x06\x94\xa3<i8\x91\x02\xa1C\xc4\x06abcdef"[:18]: ["<i8", [2], "C", "YWJjZGVm"],
}  # fmt: skip


@pytest.mark.parametrize(("data", "value"), [(d, v) for d, v in VALUES.items() if not d.startswith(b"\xd8")])
def test_every_form(data: bytes, value: Any) -> None:
    assert decode(data) == value
    for cut in range(len(data)):
        with pytest.raises(Undecodable):
            decode(data[:cut])
    with pytest.raises(Undecodable):
        decode(data + b"\x00")


def test_an_array_is_read_element_by_element() -> None:
    for header in (b"\x93", b"\xdc\x00\x03", b"\xdd\x00\x00\x00\x03"):
        data = header + b"\x01\xa1x\x91\xc0"
        assert array_header(data) == (3, len(header))
        assert list(split(data, len(header))) == [b"\x01", b"\xa1x", b"\x91\xc0"]
    for other in (b"", b"\x81\x01\x01", b"\xa1x", b"\xc0"):
        assert array_header(other) is None


def test_a_value_is_found_by_its_names_whatever_is_known_of_it() -> None:
    state = b"\x94\x01\xa1x\x91\xc0\x02"
    data = b"\x82\x05\xc0\xa1a\x82\xa1z\x01\xa1b" + state
    for known in ((b"", 0), (b"\x01", 1), (b"\x01\xa1x\x91\xc0\x02", 4), (b"\x02", 1), (b"\x01", 5)):
        assert find(data, "a", "b", known=known[0], known_count=known[1]) == state
    assert (find(data, "b"), find(data, "a", "c"), find(data, "a", "z")) == (None, None, b"\x01")
    for damaged in (data[:-1], data.replace(b"\xa1b", b"\xc1b"), state):
        with pytest.raises(Undecodable):
            find(damaged, "a", "b")


def test_an_array_that_claims_more_than_it_has_takes_no_memory() -> None:
    claims = b"\xdd\x0f\xff\xff\xff" * 500 + bytes(2**20)
    tracemalloc.start()
    try:
        for data in (claims, b"\xc9" + len(claims).to_bytes(4, "big") + b"\x05" + claims):
            with pytest.raises(Undecodable):
                decode(data)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(claims)
    finally:
        tracemalloc.stop()


def test_without_the_library_an_import_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(langgraph, "msgpack", None)
    with closing(sqlite3.connect(tmp_path / "checkpoints.sqlite")) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT)")
    with pytest.raises(MissingExtra, match="LangGraph's checkpoints needs the extra 'importers'"):
        open_source(tmp_path / "checkpoints.sqlite")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x91" * 100_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff\x00",
        b"\xdb\xff\xff\xff\xffSECRET",
        b"\xa1\xff",
        b"\xc7\x01\x05\xc0",
        b"\xc7\x06\x09\x93\xa1m\xa1n\x05",
        b"\xc7\x03\x05\x92\xc0\xc0",
        b"\xc7\x04\x05\x93\xc0\xc0\xc0\xc0",
    ],
)
def test_what_is_damaged_is_refused_without_a_word_of_it(data: bytes) -> None:
    with pytest.raises(Undecodable) as caught:
        decode(data)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
        list(split(data, 0))
    except Undecodable:
        return


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30,
))  # fmt: skip
def test_plain_values_come_back(value: Any) -> None:
    assert decode(_packed(value)) == value


def _packed(value: Any) -> bytes:
    """Packs a value in its longest form."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return b"\xcf" + value.to_bytes(8, "big") if value >= 0 else b"\xd3" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
    if isinstance(value, list):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(_packed, value))
    pairs = b"".join(_packed(name) + _packed(found) for name, found in value.items())
    return b"\xdf" + len(value).to_bytes(4, "big") + pairs


def _object(kind: str, **fields: Any) -> Object:
    return Object("AnyMessage", {"type": kind, "content": "x", "additional_kwargs": {}, "name": None, **fields})


CALL = {"name": "f", "args": {"a": 1}, "id": "c1", "type": "tool_call"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_object("human", id="1"), {"role": "user", "content": "x", "id": "1"}),
        (_object("HumanMessageChunk"), {"role": "user", "content": "x"}),
        (_object("system"), {"role": "system", "content": "x"}),
        (_object("chat", role="judge"), {"role": "judge", "content": "x"}),
        (
            _object("ai", tool_calls=[CALL], usage_metadata={"input_tokens": 1}, response_metadata={"m": b"x".hex()}),
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
                "langchain": {"usage_metadata": {"input_tokens": 1}, "response_metadata": {"m": "78"}},
            },
        ),
        (
            _object("tool", tool_call_id="c1", artifact=Object("A", {"deep": [Object("B", {"c": 1})]})),
            {"role": "tool", "content": "x", "tool_call_id": "c1", "langchain": {"artifact": {"deep": [{"c": 1}]}}},
        ),
        ({"role": "user", "content": "plain"}, {"role": "user", "content": "plain"}),
        (["human", "pair"], {"role": "user", "content": "pair"}),
        ("text", {"role": "user", "content": "text"}),
        (_object("remove"), None),
        (Object("Other", {"a": 1}), None),
        ({"a": 1}, None),
        (5, None),
        ([], None),
        (_object("ai", type=5), None),
    ],
)
def test_langchains_messages_are_chat_messages(value: Any, message: Any) -> None:
    assert langgraph.chat_message(value) == message
