"""What a refusal of the server, or of the URL, tells its reader, and that no error has a part of a password."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.errors import InvalidInput, LoginRefused, PermissionDenied

HI = {"role": "user", "content": "hi"}


def _slow(superuser: psycopg.Connection[Any], name: str, statement: str) -> None:
    """Lets a function of the schema begin with another statement."""
    [[definition]] = superuser.execute(
        "SELECT pg_get_functiondef(%s::regproc)", (f"compaction_store.{name}",)
    ).fetchall()
    superuser.execute(definition.replace("BEGIN", f"BEGIN {statement};", 1).encode())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("53100", "the server's disk is full"), ("53200", "out of memory"),
        ("58030", "could not read or write its files"),
        ("XX001", "files are damaged"), ("22012", "Postgres refused the statement"),
    ],
)  # fmt: skip
def test_a_usual_sqlstate_is_said_in_words(
    store: Face, superuser: psycopg.Connection[Any], state: str, words: str
) -> None:
    store.append("t", HI)
    _slow(superuser, "view", f"RAISE EXCEPTION 'SECRET' USING ERRCODE = '{state}'")
    with pytest.raises(cs.DatabaseError, match=f"{words}: SQLSTATE {state}") as caught:
        store.view("t")
    assert caught.value.sqlstate == state
    assert "SECRET" not in str(caught.value)


def test_a_limit_of_the_login_is_not_called_the_deadline(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, settings={"statement_timeout": "100ms"})
    store.append("t", HI)
    _slow(superuser, "view", "PERFORM pg_sleep(60)")
    with pytest.raises(cs.DatabaseUnavailable, match="statement_timeout of the login"):
        store.view("t")
    patient = faces.open(url, deadline=0.5)
    with pytest.raises(cs.DatabaseUnavailable, match="did not answer by the deadline"):
        patient.view("t")


@pytest.mark.parametrize("part", ["database", "login"])
def test_a_url_that_the_server_refuses_is_not_an_outage(faces: Faces, url: str, part: str) -> None:
    address = sa.make_url(url)
    address = address.set(database="nowhere") if part == "database" else address.set(username="nobody_here")
    with pytest.raises(LoginRefused, match=r"does not exist|authentication failed"):
        faces.open(address.render_as_string(hide_password=False))


@contextmanager
def _refusing(text: str) -> Iterator[str]:
    """A server that refuses every login in the protocol of Postgres."""
    fields = b"SFATAL\0VFATAL\0C28P01\0M" + text.encode() + b"\0\0"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(8).endswith(b"\x04\xd2\x16/"):
                        connection.sendall(b"N")
                    connection.recv(4096)
                    connection.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

        threading.Thread(target=serve, daemon=True).start()
        yield f"postgresql://app:SECRET@127.0.0.1:{listener.getsockname()[1]}/db"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "text",
    [
        'password authentication failed for user "app"', 'role "app" does not exist', 'database "db" does not exist',
        'no pg_hba.conf entry for host "10.0.0.1", user "app"', 'role "app" is not permitted to log in',
    ],
)  # fmt: skip
def test_a_wrong_password_or_login_is_an_error_of_its_own(faces: Faces, text: str) -> None:
    with _refusing(text) as url, pytest.raises(LoginRefused) as caught:
        faces.open(url)
    assert text in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert not isinstance(caught.value, cs.DatabaseUnavailable)


def test_a_server_that_starts_up_is_away(faces: Faces) -> None:
    with _refusing("the database system is starting up") as url, pytest.raises(cs.DatabaseUnavailable):
        faces.open(url)


@pytest.mark.parametrize(
    "user", ["app:S@CRET", "app:@SCRET", "a@b:SCRET", "app:S/CR@ET", "app:SC?R@ET", "app:SC#R@ET", "app:S@C@R@ET"]
)
@pytest.mark.parametrize("host", ["127.0.0.1:9/db", "127.0.0.1", "a:1,b:2/db", "localhost/db?application_name=x@y"])
def test_a_password_that_is_not_percent_encoded_is_refused_and_no_part_of_it_is_said(
    faces: Faces, user: str, host: str
) -> None:
    with pytest.raises(InvalidInput, match="percent-encoded: write @ as %40") as caught:
        faces.open(f"postgresql://{user}@{host}")
    assert not {"S@CRET", "SCRET", "CR@ET", "R@ET", "ET", "CRET"} & set(str(caught.value).split())
    assert "CR" not in str(caught.value)


@pytest.mark.parametrize("host", ["u@127.0.0.1:9/db?application_name=a@b", "127.0.0.1:9/db?application_name=a@b"])
def test_an_at_sign_in_a_parameter_must_be_encoded_too(faces: Faces, host: str) -> None:
    """Otherwise the host would be b."""
    with pytest.raises(InvalidInput, match="percent-encoded"):
        faces.open(f"postgresql://{host}")
    with pytest.raises(cs.DatabaseUnavailable, match=r"127\.0\.0\.1:9"):
        faces.open(f"postgresql://{host.replace('a@b', 'a%40b')}", connect_timeout=1)


def test_a_login_without_a_role_is_told_the_command(faces: Faces, url: str, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("REVOKE ALL ON FUNCTION compaction_store.view FROM compaction_store_app")
    store = faces.open(url, role="compaction_store_app")
    store.append("t", HI)
    with pytest.raises(PermissionDenied, match="compaction-store grant LOGIN application"):
        store.view("t")


_WITHOUT_FILES = """
import resource, sys
import compaction_store as cs
with cs.Store.open(sys.argv[1], deadline=0.5) as store:
    store.append("t", {"role": "user", "content": "hi"})
    store._db.engine.dispose()
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    kept = []
    try:
        while True:
            kept.append(open("/dev/null"))
    except OSError:
        pass
    try:
        store.view("t")
    except cs.DatabaseUnavailable as error:
        said = str(error)
    kept.clear()
print(said)
"""


def test_a_process_without_file_descriptors_does_not_blame_the_server(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_FILES, url], capture_output=True, text=True, check=True)
    assert "EMFILE" in done.stdout
    assert "cannot open a connection" in done.stdout


def test_arguments_say_what_else_they_may_be(faces: Faces, url: str, store: Face) -> None:
    store.append("t", HI)
    for wrong in ("2026-01-01", 0, True, 1.5):
        with pytest.raises(InvalidInput, match=r"a pos >= 1, a datetime with a time zone, or a compaction"):
            store.view("t", at=wrong)
    for call, more in ((store.view, []), (store.fork, ["u"]), (store.audit.outline, [])):
        with pytest.raises(cs.PositionNotFound, match="no pos 20: the last pos is 1"):
            call("t", *more, at=20)
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    if store.runner is None:
        with pytest.raises(InvalidInput, match="must not both be given"):
            faces.open(url, engine=engine)
    engine.dispose()


def test_who_may_read_all_tenants_is_said_with_the_error(superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("SET ROLE compaction_store_auditor")
    superuser.execute("SET compaction_store.all_tenants = on")
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute("SELECT * FROM compaction_store.audit_messages")
    assert "BYPASSRLS" in (caught.value.diag.message_hint or "")
