"""Ways to give a password without the list of processes: a file with the URL, PGPASSFILE, a service file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from reliability.rigs.ground import Postgres

import compaction_store as cs
from cli.program import Forks, Run
from compaction_store import migrate

PASSWORD = "v3ry-s3cret:\\ of a test"
_QUOTED = "v3ry-s3cret%3A%5C%20of%20a%20test"

pytestmark = pytest.mark.skipif(not Postgres.possible(), reason="needs the wheel's binaries")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that asks its login for a password."""
    with Postgres() as server:
        migrate.upgrade(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SET password_encryption = 'scram-sha-256'")
            connection.execute(
                psycopg.sql.SQL("CREATE ROLE app LOGIN PASSWORD {} IN ROLE compaction_store_app").format(PASSWORD)
            )
            (server.data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def bare(guarded: Postgres) -> str:
    """The URL of the login without its password."""
    return guarded.url.replace("postgres@", "app@", 1)


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Run:
    return Run(forks, tmp_path, None)


def _works(run: Run, url: str, **more: Any) -> None:
    run("append", "t", "--json", "--url", url, stdin='{"role":"user","content":"hello"}', **more)
    assert len(run("threads", "--json", "--url", url, **more).stdout.splitlines()) == 1


def test_the_server_asks_for_the_password(run: Run, bare: str) -> None:
    assert "password" in run("threads", "--url", bare, code=3).stderr


def test_a_url_is_read_from_a_file(run: Run, bare: str, tmp_path: Path) -> None:
    secret = tmp_path / "address of the database"
    secret.write_text(bare.replace("app@", f"app:{_QUOTED}@", 1) + "\n")
    _works(run, f"@{secret}")
    assert run("threads", "--json", COMPACTION_STORE_URL=f"@{secret}").stdout
    with cs.Store.open(f"@{secret}") as store:
        assert [thread.thread_id for thread in store.threads()] == ["t"]


def test_a_command_that_runs_long_shows_no_password(run: Run, bare: str, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(bare.replace("app@", f"app:{_QUOTED}@", 1))
    with run.in_background("worker", "--window", "1000", "--strategy", "sliding-window", "--url", f"@{secret}") as (
        program, _,
    ):  # fmt: skip
        shown = Path(f"/proc/{program.pid}/cmdline").read_bytes() + Path(f"/proc/{program.pid}/environ").read_bytes()
        assert _QUOTED.encode() not in shown
        assert PASSWORD.encode() not in shown


def test_a_password_file_and_a_service_file_work(run: Run, guarded: Postgres, bare: str, tmp_path: Path) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:app:" + PASSWORD.replace("\\", "\\\\").replace(":", "\\:") + "\n")
    passwords.chmod(0o600)
    _works(run, bare, PGPASSFILE=str(passwords))
    separator = "&" if "?" in bare else "?"
    _works(run, f"{bare}{separator}passfile={passwords}")
    services = tmp_path / "services"
    services.write_text(f"[audit]\nhost={guarded.data}\nport=5432\nuser=app\ndbname=postgres\npassfile={passwords}\n")
    _works(run, "postgresql://?service=audit", PGSERVICEFILE=str(services))
    _works(run, bare, PGPASSWORD=PASSWORD)


@pytest.mark.parametrize(("text", "said"), [
    (None, "No such file"), ("", "has 0"), ("postgresql://a\npostgresql://b\n", "has 2"),
    (b"\xff\xfe", "not text"), ("hunter2", "url must"),
])  # fmt: skip
def test_a_file_without_a_url_is_refused_and_not_quoted(
    run: Run, tmp_path: Path, text: Any, said: str
) -> None:  # fmt: skip
    secret = tmp_path / "url"
    if text is not None:
        secret.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run("threads", "--url", f"@{secret}", code=2)
    assert said in done.stderr
    assert "hunter2" not in done.stderr
    with pytest.raises(cs.InvalidInput):
        cs.Store.open(f"@{secret}")
