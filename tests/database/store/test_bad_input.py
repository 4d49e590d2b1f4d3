"""Bad input is refused before anything is sent, by a typed error without content; all else comes back unchanged.

The marker is content: neither the text of an error nor its attributes may have it.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import psycopg
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compaction_store as cs
from compaction_store.errors import (
    BatchTooLarge,
    InvalidKey,
    InvalidMessage,
    InvalidMeta,
    InvalidThreadId,
    MessageTooDeep,
    MessageTooLarge,
)

MARKER = "marker-4711"
MIB = 1024 * 1024


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, its causes and its contexts."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or found in seen:
            continue
        seen.append(found)
        waiting += [found.__cause__, found.__context__]
        yield found


def refused(store: Any, kind: type[cs.CompactionStoreError], call: Callable[[], object]) -> cs.CompactionStoreError:
    """Checks that the call raises exactly this error, that it shows no content, and that nothing was stored."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    for error in chain(caught.value):
        assert MARKER not in f"{error} {error!r} {error.args!r} {vars(error)!r} {getattr(error, 'object', '')!r}"
    assert list(store.threads()) == []
    return caught.value


def nested(depth: int, kind: type = dict) -> dict[str, Any]:
    """Returns an object with this many levels, including itself."""
    value: Any = MARKER
    for _ in range(depth - 1):
        value = [value] if kind is list else {"a": value}
    return {"content": value}


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


class Holder(pydantic.BaseModel):
    number: float


MANY_DIGITS = 10**4999
CIRCULAR: dict[str, Any] = {"content": MARKER}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    "message",
    [
        {"content": MARKER, "n": math.nan},
        {"content": MARKER, "n": [math.inf]},
        {"content": MARKER, "n": {"n": -math.inf}},
        {"content": MARKER, "a\ud800": math.nan},
        {"content": MARKER, "model": Holder(number=math.nan)},
        {"content": MARKER, 1: 2},
        {"content": MARKER, "a": [{None: MARKER}]},
        {"content": MARKER, "a": {True: MARKER}},
        {"content": MARKER, "a": {(MARKER,): 1}},
        {"content": MARKER, b"a": 1},
        {"content": MARKER, "n": MANY_DIGITS},
        {"content": MARKER, "n": [-MANY_DIGITS]},
        {"content": MARKER, "n": 10**4300},
        {"content": MARKER.encode()},
        {"content": {MARKER}},
        {"content": MARKER, "n": Decimal(1)},
        {"content": MARKER, "n": object()},
        {"content": MARKER, "n": 1j},
        {"content": MARKER, "n": Holder},
    ],
    ids=lambda message: "-".join(f"{type(v).__name__}" for v in message.values()),
)
def test_what_json_cannot_say_is_refused(store: Any, message: Any) -> None:
    refused(store, InvalidMessage, lambda: store.append("t", message))
    refused(store, InvalidMessage, lambda: store.append("t", [{"content": "good"}, message], raw=True))


@pytest.mark.parametrize("message", [MARKER, MARKER.encode(), None, 7, 1.5, True, [1, 2], [MARKER], [[{}]], [None], ()])
def test_what_is_no_object_is_refused(store: Any, message: Any) -> None:
    refused(store, InvalidMessage, lambda: store.append("t", message))


def test_an_append_of_nothing_is_refused(store: Any) -> None:
    refused(store, InvalidMessage, lambda: store.append("t", []))
    refused(store, InvalidMessage, lambda: store.append("t", iter(())))


@pytest.mark.parametrize("kind", [dict, list])
def test_two_hundred_levels_are_stored_and_one_more_is_refused(store: Any, kind: type) -> None:
    for depth in (201, 1000, 10_000):
        refused(store, MessageTooDeep, partial(store.append, "t", nested(depth, kind)))
    deepest = nested(200, kind)
    assert store.append("t", deepest, raw=True)[0].payload == deepest
    assert store.message("t", 1).payload == store.view("t").messages[0] == deepest


def test_an_object_that_contains_itself_is_refused(store: Any) -> None:
    refused(store, MessageTooDeep, lambda: store.append("t", CIRCULAR))


def test_sixteen_mebibytes_are_stored_and_one_byte_more_is_refused(store: Any) -> None:
    room = 16 * MIB - len('{"content":""}')
    error = refused(store, MessageTooLarge, lambda: store.append("t", {"content": MARKER.ljust(room + 1)}, raw=True))
    assert "16,777,217" in str(error)
    refused(store, MessageTooLarge, lambda: store.append("t", {"content": "é" * (room // 2 + 1)}, raw=True))
    refused(store, MessageTooLarge, lambda: store.append("t", {"content": "\ud800" * (room // 6 + 1)}, raw=True))
    written = store.append("t", {"content": "x" * room}, raw=True)[0]
    assert written.text is not None
    assert len(written.text) == 16 * MIB
    assert store.message("t", 1) == written


def test_a_thousand_messages_are_one_append_and_one_more_is_refused(store: Any) -> None:
    refused(store, BatchTooLarge, lambda: store.append("t", [{"content": MARKER}] * 1001, raw=True))
    assert len(store.append("t", [{}] * 1000, raw=True)) == 1000


def test_an_endless_generator_is_refused(store: Any) -> None:
    refused(store, BatchTooLarge, lambda: store.append("t", iter(lambda: {"content": MARKER}, None), raw=True))


def test_more_than_sixty_four_mebibytes_at_once_are_refused(store: Any) -> None:
    refused(store, BatchTooLarge, lambda: store.append("t", [{"content": MARKER.ljust(13 * MIB)}] * 5, raw=True))


BAD_NAMES = ["", "x" * 256, "é" * 128, "a\0b", "\ud800", None, 7, b"t", ["t"]]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:12])
def test_a_thread_id_that_is_none_is_refused_everywhere(store: Any, name: Any) -> None:
    calls = [
        lambda: store.append(name, {"content": MARKER}, raw=True),
        lambda: list(store.replay(name)),
        lambda: store.view(name),
        lambda: store.message(name, 1),
        lambda: store.thread(name),
        lambda: store.set_metadata(name, {"m": MARKER}),
    ]
    if name is not None:
        # Without a name, all threads are verified.
        calls.append(lambda: store.audit.verify(name))
    for call in calls:
        refused(store, InvalidThreadId, call)


@pytest.mark.parametrize("name", [n for n in BAD_NAMES if n is not None], ids=lambda name: repr(name)[:12])
def test_a_key_that_is_none_is_refused(store: Any, name: Any) -> None:
    refused(store, InvalidKey, lambda: store.append("t", {"content": MARKER}, key=name, raw=True))


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, " ", "'; --", "%s %b", "a\nb", "~", "../t", "\U0001f600"])
def test_any_other_text_is_a_thread_id_and_a_key(store: Any, name: str) -> None:
    first = store.append(name, {"content": MARKER}, key=name, raw=True)
    assert store.append(name, {"content": MARKER}, key=name, raw=True) == first
    assert store.thread(name).thread_id == name
    assert [t.thread_id for t in store.threads()] == [name]
    assert not store.audit.verify(name).findings


@pytest.mark.parametrize(
    "meta",
    [
        MARKER, MARKER.encode(), 7, [MARKER], {"m": MARKER.ljust(8192)}, {"m": math.nan, "n": MARKER}, {1: MARKER},
        {"m": MANY_DIGITS}, {"m": {MARKER}}, nested(201), nested(10_000),
    ],
    ids=lambda meta: type(meta).__name__,
)  # fmt: skip
def test_meta_that_is_none_is_refused(store: Any, meta: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        store.append("t", {"content": MARKER}, meta=meta, raw=True)
    refused(store, InvalidMeta, lambda: store.append("t", {"content": MARKER}, meta=[meta], raw=True))
    refused(store, InvalidMeta, lambda: store.append("t", [{}, {}], meta=[{}, meta], raw=True))


def test_eight_kibibytes_of_meta_are_stored(store: Any) -> None:
    meta = {"m": "x" * (8192 - len('{"m":""}'))}
    assert store.append("t", {}, meta=meta, raw=True)[0].meta == store.message("t", 1).meta == meta
    store.set_metadata("t", meta)
    assert store.thread("t").metadata == meta


@pytest.mark.parametrize("metadata", [None, MARKER, [MARKER], 7, {1: MARKER}, {"m": MARKER * 800}, {"m": math.inf}])
def test_metadata_that_is_none_is_refused(store: Any, metadata: Any) -> None:
    store.append("t", {}, raw=True)
    with pytest.raises(cs.InvalidInput) as caught:
        store.set_metadata("t", metadata)
    assert all(MARKER not in f"{error!r}" for error in chain(caught.value))
    assert store.thread("t").metadata == {}


def test_conflicts_show_no_content(store: Any) -> None:
    store.append("t", {"content": "first"}, key="k", raw=True)
    for options in ({"key": "k"}, {"expected_seq": 9}):
        with pytest.raises(cs.Conflict) as caught:
            store.append("t", {"content": MARKER}, **options, raw=True)
        assert all(MARKER not in f"{error!r} {vars(error)!r}" for error in chain(caught.value))


@pytest.mark.one_server("a node reports no constraint")
def test_a_refusal_by_the_server_shows_no_content(store: Any, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(
        "ALTER TABLE compaction_store.messages ADD CONSTRAINT no_marker CHECK (payload::text NOT LIKE '%marker%')"
    )
    for messages in ({"content": MARKER}, [{"content": MARKER}, {}]):
        error = refused(store, cs.DatabaseError, partial(store.append, "t", messages, raw=True))
        assert isinstance(error, cs.DatabaseError)
        assert error.sqlstate == "23514"
        assert "no_marker" in str(error)


@pytest.mark.parametrize(
    "address",
    ["nonsense", "", "://", "mysql://localhost/x", "sqlite://", "host=localhost dbname=x", "postgresql://h:port/x"],
)
def test_what_is_no_database_url_is_refused(faces: Any, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("COMPACTION_STORE_URL", address or "nonsense")
    with pytest.raises(cs.InvalidInput, match="postgresql://" if address else "not empty"):
        faces.open(address)


def test_a_password_is_in_no_error(faces: Any) -> None:
    for address in ("postgresql://u:secret-4711@h:port/x", "postgresql://u:secret-4711@127.0.0.1:1/x"):
        with pytest.raises(cs.CompactionStoreError) as caught:
            faces.open(address, connect_timeout=2)
        assert all("secret-4711" not in f"{error} {error!r}" for error in chain(caught.value))


AWKWARD = [
    {"a": "\0"},
    {"\0": {"\0": "a\0b"}},
    {"a": "\ud800"},
    {"a": "x\udfff"},
    {"a": "\udc00\ud83d"},
    {"a": "\0\ud800"},
    {"a": "\ud800\0"},
    {"\ud800": "\udc00 é \U0001f600"},
    {"n": [2**53 + 1, 2**63, 2**64, 2**70, -(2**70), 10**4299, -(10**4299)]},
    {"n": [1, 1.0, 0, 0.0, -0.0, -1, 1e16, 1e22, 1.5e300, 5e-324, 1.7976931348623157e308, 0.1, 1e-7, 100000.0]},
    {"z": 1, "a": 2, "10": 3, "9": 4, "": 5},
    {"é": "é", "e\u0301": "e\u0301", "ﬁ": "fi", "\u212b": "\u00c5"},
    {"a": "\u2028\u2029\x7f\x1f\x01\ufeff\ufffe\uffff\\/\"'<>&"},
    {"a": "\\u0000", "b": "\\\\ud800"},
    {"a": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0010ffff"},
    {"a": True, "b": False, "c": None, "d": [], "e": {}, "f": ""},
    {"role": None}, {"role": 7}, {"role": ""}, {"role": "a b"}, {"role": "\0"}, {"role": "x" * 1000},
    {"content": "1e400", "b": "NaN"},
    {"__proto__": 1, "$ref": "#", "constructor": {}},
    {},
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Returns whether values are equal as JSON text: the order of keys, 1 and 1.0, and 0.0 and -0.0 differ."""
    return json.dumps(a) == json.dumps(b)


@pytest.mark.parametrize("message", AWKWARD, ids=range(len(AWKWARD)))
def test_awkward_json_comes_back_as_it_was(store: Any, message: dict[str, Any]) -> None:
    meta = message if len(json.dumps(message)) < 4000 else None
    written = [*store.append("t", message, meta=meta, key="k", raw=True)]
    written += store.append("t", [message, message], raw=True)
    stored = list(store.replay("t"))
    assert stored == written
    for found in stored:
        assert same(found.payload, message)
        assert same(json.loads(found.text or ""), message)
        assert found.text == written[0].text
    assert same(store.view("t").messages, [message] * 3)
    assert store.message("t", 1) == stored[0]
    assert store.append("t", message, meta=meta, key="k", raw=True) == written[:1]
    assert not store.audit.verify("t").findings


def test_the_text_is_compact_utf_8(store: Any) -> None:
    texts = [m.text for m in store.append("t", [{"b": 1.0, "a": [-0.0, 2**70, "é"]}, {"é": "\ud800"}], raw=True)]
    assert texts == ['{"b":1.0,"a":[-0.0,1180591620717411303424,"é"]}', '{"\\u00e9":"\\ud800"}']
    assert [m.text for m in store.replay("t")] == texts


def test_two_halves_of_a_character_that_would_come_back_as_one_are_refused(store: Any) -> None:
    for message in ({"a": "\ud83d\ude00"}, {"\ud83d\ude00": 1}):
        with pytest.raises(InvalidMessage, match="surrogate"):
            store.append("t", message)
    assert store.append("t", {"a": "\ude00\ud83d"}, raw=True)[0].payload == {"a": "\ude00\ud83d"}


def test_two_keys_that_json_spells_alike_are_never_stored_as_one(store: Any) -> None:
    refused(store, InvalidMessage, lambda: store.append("t", {"\ud83d\ude00": 1, "\U0001f600": 2}, raw=True))


def test_subclasses_and_other_mappings_are_stored_as_what_they_are_underneath(store: Any) -> None:
    message = OrderedDict(
        role=Colour.RED, n=Number.TWO, t=(1, 2), d=UserDict(a=1), m=MappingProxyType({"x": Colour.RED})
    )
    stored = {"role": "red", "n": 2, "t": [1, 2], "d": {"a": 1}, "m": {"x": "red"}}
    written = store.append("t", [message, MappingProxyType(message), UserDict(message)], raw=True)
    assert [m.payload for m in written] == [stored] * 3
    assert store.append("t", UserDict(message), raw=True)[0].payload == stored
    assert [m.payload for m in store.replay("t")] == [stored] * 4


def joined(text: str) -> str:
    """Returns a text as JSON reads it: a surrogate pair is one character."""
    return str(json.loads(json.dumps(text)))


TEXT = st.text(st.characters(exclude_categories=()), max_size=20).map(joined)
NUMBERS = st.integers() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(st.dictionaries(TEXT, JSON, max_size=6), min_size=1, max_size=4))
def test_any_json_object_comes_back_as_it_was(store: Any, messages: list[dict[str, Any]]) -> None:
    written = store.append("t", messages if len(messages) > 1 else messages[0], raw=True)
    stored = list(store.replay("t", last=len(messages)))
    assert stored == written
    assert same([m.payload for m in stored], messages)
    assert same([json.loads(m.text or "") for m in stored], messages)
