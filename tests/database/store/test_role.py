"""A store has the rights of the role that it is opened with."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from reliability.rigs import pooler
from sqlalchemy import create_engine
from support import cluster
from support.faces import Faces

from compaction_store import InvalidInput, Store
from compaction_store.errors import LoginRefused, PermissionDenied, UnsupportedDatabase

MESSAGE = {"role": "user", "content": "Hello."}


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_a_store_takes_the_role_that_it_is_opened_with(faces: Faces, url: str) -> None:
    faces.open(url).append("t", MESSAGE)
    auditor = faces.open(url, role="compaction_store_auditor")
    assert [thread.thread_id for thread in auditor.threads()] == ["t"]
    assert not auditor.audit.verify("t").findings
    with pytest.raises(PermissionDenied):
        auditor.append("t", MESSAGE)


def test_a_role_that_there_is_not_is_refused_at_once(faces: Faces, url: str) -> None:
    with pytest.raises(LoginRefused, match="role"):
        faces.open(url, role="no such role")


def test_a_role_that_the_login_may_not_take_is_named_with_a_remedy(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    name = f"cs_plain_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_app".encode())
    try:
        login = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        with pytest.raises(PermissionDenied, match='may not take the role "compaction_store_auditor": grant it'):
            faces.open(login, role="compaction_store_auditor")
    finally:
        superuser.execute(f"DROP ROLE {name}".encode())


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.parametrize("drops", ["", "options"])
@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"role": "compaction_store_auditor"}, "role"),
        ({"settings": {"default_transaction_read_only": "on", "my.own": "1"}}, "default_transaction_read_only, my.own"),
    ],
)  # fmt: skip
def test_a_pooler_that_passes_on_no_settings_is_refused(
    faces: Faces, url: str, drops: str, given: dict[str, Any], lost: str
) -> None:
    """Otherwise the store would have all rights of its login."""
    if pooler.program() is None:
        pytest.skip("pgbouncer is not installed")
    faces.open(url, **given)
    with pooler.pooler(url, drops=drops) as through:
        faces.open(through).append("t", MESSAGE)
        why = f"the server did not get {lost}: a pooler" if drops else "cannot connect to .* with settings: a pooler"
        with pytest.raises(UnsupportedDatabase, match=why):
            faces.open(through, **given)


@pytest.fixture
def cluster_url(url: str, superuser: psycopg.Connection[Any]) -> str:
    """A cluster, or a database that looks like one when a store is opened."""
    if cluster.given() is None:
        superuser.execute("SET allow_system_table_mods = on")
        superuser.execute("CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass)")
        superuser.execute("CREATE TABLE compaction_store.names (name_uid uuid)")
    return url


def test_on_a_cluster_a_role_without_login_is_refused_at_once(faces: Faces, cluster_url: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="compaction_store_auditor may not log in"):
        faces.open(cluster_url, role="compaction_store_auditor")


def test_on_a_cluster_another_encoding_is_refused_at_once(cluster_url: str) -> None:
    address = cluster_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(address, connect_args={"client_encoding": "latin1"})
    with pytest.raises(UnsupportedDatabase, match="must be UTF8, not LATIN1"):
        Store.open(engine=engine)
    engine.dispose()


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_the_role_joins_the_options_of_the_url(faces: Faces, url: str) -> None:
    mark = "&" if "?" in url else "?"
    faces.open(f"{url}{mark}options=-c%20statement_timeout%3D9s", role="compaction_store_app").append("t", MESSAGE)


def test_a_role_and_an_engine_are_not_given_together(url: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(InvalidInput, match="role and settings must be left out with an engine"):
        Store.open(engine=engine, role="compaction_store_app")
