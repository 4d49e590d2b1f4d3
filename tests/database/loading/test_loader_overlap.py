"""The next chunk is prepared while the database stores the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pydantic
import pytest
from support.load_sources import message, sound

import compaction_store as cs
from compaction_store.errors import (
    InvalidMessage,
)
from compaction_store.messages import encoding as payload
from compaction_store.models import Observed, ToLoad
from compaction_store.postgres import queries


class Model(pydantic.BaseModel):
    role: str
    n: int


def mixed(bad: int | None) -> list[Any]:
    """Returns messages of every kind that a load accepts, and perhaps one that it refuses."""
    items: list[Any] = []
    for number in range(1, 451):
        message: Any = {"role": "user", "content": f"message {number}", "n": number}
        if number == bad:
            message = {"role": "user", "n": float("nan")}
        elif number % 7 == 0:
            message = ToLoad(message, meta={"n": number}, tokens=number)
        elif number % 50 == 3:
            message = ToLoad(message)
        elif number % 90 == 8:
            message = Model(role="user", n=number)
        elif number % 60 == 9:
            message = {"role": "assistant", "content": [{"type": "compaction", "content": f"until {number}"}]}
        items.append(message)
        if number in {99, 100, 101, 250}:
            items.append(Observed("told", summary_text=str(number)))
    return items


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bad", [None, 101, 222, 450])
@pytest.mark.parametrize("tokens", [None, 5])
def test_a_list_is_loaded_as_an_iterator_is(faces: Any, url: str, bad: int | None, tokens: int | None) -> None:
    """The loader reads ahead in a list."""
    store = faces.open(url)
    told = []
    for thread, source in (("list", mixed(bad)), ("tuple", tuple(mixed(bad))), ("iterator", iter(mixed(bad)))):
        try:
            loaded: Any = store.load.messages(thread, source, key="k", tokens=tokens, raw=True)
        except InvalidMessage as error:
            loaded = str(error).replace(thread, "the thread"), error.__notes__
        stored = [(m.seq, m.payload, m.meta, m.tokens) for m in store.replay(thread)]
        records = [(r.start_seq, r.end_seq, r.summary_text, r.pos) for r in store.compactions(thread)]
        told.append((loaded, stored, records))
        assert store.audit.verify(thread).findings == ()
    assert told[0] == told[1] == told[2]
    if bad is None:
        assert told[0][0].count == 450
        assert told[0][0].observed == len(told[0][2]) > 8
    else:
        assert told[0][0][0].startswith(f"message {bad} of the load, of which {len(told[0][1])} are stored")


@pytest.mark.one_server("it replaces the query of one server")
@pytest.mark.usefixtures("small")
def test_messages_are_made_ready_while_the_database_checks(
    store: Any, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the check takes long, exactly one chunk is ready when it ends."""
    slow_check(superuser)
    ready: list[int] = []
    encode = payload.encode
    load, made = queries.load, []

    def encoded(message: Any) -> payload.Encoded:
        ready.append(message["n"])
        return encode(message)

    def watched(*arguments: Any) -> Any:
        before = len(ready)
        placed = load(*arguments)
        made.append((before, len(ready)))
        return placed

    monkeypatch.setattr(payload, "encode", encoded)
    monkeypatch.setattr(queries, "load", watched)
    items = [{"role": "user", "content": "x", "n": number} for number in range(350)]
    assert store.load.messages("t", items, tokens=1, raw=True).count == 350
    assert made == [(100, 200), (200, 300), (300, 350), (350, 350)]
    assert ready == list(range(350))


def slow_check(superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("ALTER FUNCTION compaction_store.load RENAME TO loaded")
    superuser.execute("""
        CREATE FUNCTION compaction_store.load(
            uuid, text, text, text[], bytea, text[], integer[], text[], text[], text, bigint, text, text,
            OUT first_seq bigint, OUT size integer, OUT replayed boolean, OUT written_uid uuid
        ) LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_sleep(0.3);
            SELECT * INTO first_seq, size, replayed, written_uid
            FROM compaction_store.loaded($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);
        END $$
    """)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_what_interrupts_a_load_while_the_database_checks_ends_it(
    store: Any, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """After a signal, or an error that its handler raises, a second load stores every message once."""
    slow_check(superuser)
    encode = payload.encode

    def encoded(message: Any) -> payload.Encoded:
        if message["n"] == 150:
            raise error
        return encode(message)

    items = [{"role": "user", "content": "x", "n": number} for number in range(350)]
    with monkeypatch.context() as patch:
        patch.setattr(payload, "encode", encoded)
        with pytest.raises(error):
            store.load.messages("t", items, tokens=1, key="k", raw=True)
    assert store.load.messages("t", items, tokens=1, key="k", raw=True).count == 350
    assert [m.payload for m in store.replay("t")] == items
    sound(store, 350)


@pytest.mark.usefixtures("small")
def test_a_load_is_cancelled_while_the_database_checks(
    url: str, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_check(superuser)
    items = [{"role": "user", "content": "x", "n": number} for number in range(350)]
    encode = payload.encode

    def slowly(message: Any) -> payload.Encoded:
        time.sleep(0.001)
        return encode(message)

    async def main() -> None:
        async with cs.AsyncStore.open(url, pool_size=1) as store:
            monkeypatch.setattr(payload, "encode", slowly)
            for wait in (0.15, 0.2, 0.25, 0.3):
                task = asyncio.create_task(store.load.messages(f"t {wait}", items, tokens=1, key="k"))
                await asyncio.sleep(wait)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()
            monkeypatch.setattr(payload, "encode", encode)
            for wait in (0.15, 0.2, 0.25, 0.3):
                assert (await store.load.messages(f"t {wait}", items, tokens=1, key="k", raw=True)).count == 350
                assert [m.payload async for m in store.replay(f"t {wait}")] == items

    asyncio.run(main())


def in_a_transaction(superuser: psycopg.Connection[Any]) -> int:
    """Returns how many clients have a transaction open. The server's own VACUUM and ANALYZE may run at any time."""
    [(clients,)] = superuser.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND xact_start IS NOT NULL AND backend_type = 'client backend'"
    ).fetchall()
    return int(clients)


@pytest.mark.usefixtures("small")
def test_nothing_of_a_callers_own_runs_while_the_database_checks(
    store: Any, superuser: psycopg.Connection[Any]
) -> None:
    """The caller's objects may do anything, and the thread is locked during the check."""
    seen = set()

    def look() -> None:
        seen.add(in_a_transaction(superuser))

    class Own:
        def to_param(self) -> dict[str, Any]:
            look()
            return {"role": "user"}

    class OwnDict(dict[str, Any]):
        def items(self) -> Any:
            look()
            return super().items()

    class OwnList(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for item in super().__iter__():
                look()
                yield item

    one = {"role": "user"}
    kinds: list[Any] = [
        one, Own(), ToLoad(Own()), {"role": "user", "content": [Own()]}, ToLoad(one, meta=OwnDict(n=1)),
        {"role": "user", "content": [OwnDict(n=1)]}, (OwnDict(one)),
    ]  # fmt: skip
    assert store.load.messages("t", kinds * 50, tokens=1, raw=True).count == 350
    assert store.load.messages("u", OwnList([one] * 350), tokens=1, raw=True).count == 350
    # The one that looks.
    assert seen == {1}


@pytest.mark.usefixtures("small")
def test_a_callers_own_counter_and_iterator_run_while_no_transaction_is_open(
    store: Any, url: str, faces: Any, superuser: psycopg.Connection[Any]
) -> None:
    seen = set()

    def look(_message: Any = None) -> int:
        seen.add(in_a_transaction(superuser))
        return 1

    def source() -> Iterator[Any]:
        for number in range(250):
            look()
            yield {"role": "user", "content": "x", "n": number}

    counting = faces.open(url, counter=look)
    assert counting.load.messages("t", [{"n": number} for number in range(250)], raw=True).count == 250
    assert store.load.messages("u", source(), tokens=1, raw=True).count == 250
    # The one that looks.
    assert seen == {1}


def test_a_long_text_is_counted_as_append_counts_it(store: Any) -> None:
    long = [message(0), {"role": "user", "content": "a long text " * 10_000}]
    store.load.messages("loaded", long)
    assert [m.tokens for m in store.replay("loaded")] == [m.tokens for m in store.append("appended", long)]


@pytest.mark.parametrize(
    ("value", "simple"),
    [
        ({"role": "user", "content": [{"text": "é", "n": [1, 2.5, True, None]}, ("a",)]}, True),
        (None, True),
        ({1: "a"}, False),
        ({"a": {1: "a"}}, False),
        ({"a": b"bytes"}, False),
        ({"a": [object()]}, False),
        ({"a": Model(role="user", n=1)}, False),
        ({"a": type("S", (str,), {})("a")}, False),
        ({"a": type("I", (int,), {})(1)}, False),
        ({"a": "x" * 100_000}, False),
        ({"x" * 100_000: "a"}, False),
        ({"a": [0] * 100_000}, False),
        ({"a": 10**100_000}, False),
    ],
)  # fmt: skip
def test_what_is_simple_runs_no_code_and_takes_no_time(value: Any, simple: bool) -> None:
    assert payload.is_simple(value) is simple
