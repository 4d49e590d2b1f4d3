"""Addresses in libpq's form: several servers, or a socket's folder. Also servers that refuse."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store import migrate
from compaction_store.postgres.calling import engines
from reliability.rigs import standby
from reliability.rigs.ground import Postgres
from reliability.rigs.proxy import Proxy

HI = {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql://u:p@h1:5432,h2:5433/db", "h1,h2", "5432,5433"),
        ("postgresql://u:p@h1,h2/db?target_session_attrs=read-write", "h1,h2", None),
        ("postgresql://u:p@h1:6543,h2/db", "h1,h2", "6543,"),
        ("postgres://u:p@h1,h2,h3/db", "h1,h2,h3", None),
        ("postgresql://u:p@[::1]:5432,[fe80::1]:5433/db", "::1,fe80::1", "5432,5433"),
        ("postgresql://u:p@%2Fvar%2Frun%2Fpostgresql/db", "/var/run/postgresql", None),
        ("postgresql://u:p@%2fvar%2frun:5433/db?sslmode=disable", "/var/run", "5433"),
    ],
)
def test_an_address_is_read_as_libpq_reads_it(url: str, host: str, port: str | None) -> None:
    read = engines.driver_url(url)
    assert (read.username, read.password, read.database) == ("u", "p", "db")
    assert (read.query["host"], read.query.get("port")) == (host, port)
    given = dict(read.get_dialect()().create_connect_args(read)[1])
    assert (given["host"], given.get("port", "").strip(",")) == (host, (port or "").strip(","))


@pytest.mark.parametrize("url", ["postgresql://u@h1:5432/db", "postgresql://u:p%40%2Fq@h1/db?host=h2,h3"])
def test_an_address_of_one_server_is_left_alone(url: str) -> None:
    assert engines.driver_url(url) == sa.make_url(url).set(drivername="postgresql+psycopg")


@pytest.mark.parametrize(
    "url", ["postgresql://u@h1:x,h2/db", "postgresql://u@[h1,h2/db", "mysql://u@h1,h2/db", "h1,h2"]
)
def test_what_is_no_address_is_refused(faces: Faces, url: str) -> None:
    with pytest.raises(cs.InvalidInput):
        faces.open(url)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with an asynchronous standby."""
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with Postgres() as primary:
        other = primary.standby()
        try:
            other.start()
            yield primary, other
        finally:
            other.remove()


def _encoded(server: Postgres) -> str:
    return str(server.data).replace("/", "%2F")


def test_the_server_that_takes_writes_is_found_among_several(pair: tuple[Postgres, Postgres], faces: Faces) -> None:
    primary, other = pair
    name = standby.database(primary.database())
    other.catch_up(primary)
    hosts = f"{_encoded(other)}:5432,{_encoded(primary)}:5432"
    url = f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"
    store = faces.open(url)
    assert store.append("t", HI)[0].seq == 1
    assert migrate.current(url) is not None
    alone = faces.open(f"postgresql://postgres@{_encoded(primary)}/{name}")
    assert alone.append("t", HI)[0].seq == 2


def test_the_other_server_is_found_when_one_is_gone(url: str, faces: Faces) -> None:
    chance = random.Random(1)
    one = Proxy(url, chance)
    with Proxy(url, chance) as other:
        rest = one.url.partition(f":{one.port}/")[2]
        user = one.url.partition("127.0.0.1")[0]
        store = faces.open(f"{user}127.0.0.1:{one.port},127.0.0.1:{other.port}/{rest}")
        assert store.append("t", HI)[0].seq == 1
        one.close()
        assert store.append("t", HI)[0].seq == 2
        assert other.seen["requests"]
        store.close()


# ---- servers that refuse


@pytest.mark.parametrize("write", ["append", "append many", "compact", "redact", "metadata", "load"])
def test_a_read_only_server_leaves_nothing_unknown(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], write: str
) -> None:
    writes = {
        "append": lambda s: s.append("t", HI), "append many": lambda s: s.append("t", [HI, HI]),
        "compact": lambda s: s.compact("t", lambda ctx: ctx.remove(1, 1)),
        "redact": lambda s: s.custody.redact("t", 1, reason="asked"),
        "metadata": lambda s: s.set_metadata("t", {"a": 1}),
        "load": lambda s: s.load.messages("t", [HI], tokens=1),
    }  # fmt: skip
    faces.open(url).append("t", [HI] * 3)
    name = superuser.info.dbname
    superuser.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    store = faces.open(url, deadline=0.5)
    with pytest.raises(cs.DatabaseUnavailable) as caught:
        writes[write](store)
    # The last error of the server, or none if the deadline passed while a connection was made.
    assert caught.value.sqlstate in {"25006", None}
    if caught.value.sqlstate:
        assert "accepts no writes (thread 't'): it is a standby, or read-only" in str(caught.value)
    assert [m.seq for m in store.replay("t")] == [1, 2, 3]


@pytest.mark.parametrize("write", ["append", "load"])
def test_a_timeout_of_the_servers_for_transactions_is_waited_out(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], write: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if superuser.info.server_version < 170_000:
        pytest.skip("transaction_timeout came with Postgres 17")
    faces.open(url).append("t", HI)
    superuser.execute(f"ALTER DATABASE {superuser.info.dbname} SET transaction_timeout = '150ms'".encode())
    store = faces.open(url)
    with psycopg.connect(url, options="-c transaction_timeout=0") as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        writing = pool.submit(
            lambda: store.append("t", HI) if write == "append" else store.load.messages("t", [HI], tokens=1)
        )
        time.sleep(0.6)
        assert not writing.done()
        holder.rollback()
        writing.result(30)
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        with pytest.raises(cs.DatabaseUnavailable):
            faces.open(url, deadline=0.5).append("t", HI)
        holder.rollback()
    assert [m.seq for m in store.replay("t")] == [1, 2]
    assert capfd.readouterr().err == ""


def test_a_session_that_was_idle_too_long_is_replaced(
    store: Face, url: str, faces: Faces, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(f"ALTER DATABASE {superuser.info.dbname} SET idle_session_timeout = '50ms'".encode())
    idle = faces.open(url, deadline=5)
    for seq in range(1, 4):
        assert idle.append("t", HI)[0].seq == seq
        time.sleep(0.15)
    assert store.thread("t").last_seq == 3
