"""A pytest plugin: the whole functional suite with every store behind pgbouncer, or behind a proxy that cuts.

`pytest -p rigs.through --through pooler` or `--through cuts`. Statements that the tests send themselves go to the
server directly, and so do migrations.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store.results import awaitable_context
from reliability.rigs.cuts import PLAN
from reliability.rigs.pooler import pooler
from reliability.rigs.proxy import Proxy

_OPENING = 50
# Tests that cannot pass this way. A pooler has its own connections. If connections are cut, a refusal after a cut is an
# unknown outcome, an import may mistake another's thread for its own first attempt, short deadlines are too short, and
# calls change connections.
_WITHOUT: dict[str | None, frozenset[str]] = {
    None: frozenset(),
    "pooler": frozenset({
        "test_a_database_that_is_not_there_is_said_in_one_line", "test_a_rule_that_discards_inserts_makes_append_raise",
        "test_calls_of_functions_are_prepared_on_a_direct_connection_and_nothing_else",
        "test_a_statement_that_another_client_prepared_costs_no_call",
    }),
    "cuts": frozenset({
        "test_a_rule_that_discards_inserts_makes_append_raise",
        "test_a_trigger_that_discards_inserts_makes_append_raise",
        "test_an_auditor_and_a_loader_read_the_events_and_erase_nothing", "test_two_imports_at_once_make_one_thread",
        "test_a_call_waits_for_a_connection_of_the_server_until_the_deadline",
        "test_a_chunk_has_more_time_than_a_call_by_its_bytes",
        "test_rows_that_do_not_continue_the_chain_leave_nothing",
        "test_eight_writers_append_while_a_callback_runs", "test_a_run_may_be_cancelled_wherever_it_waits",
        "test_messages_are_made_ready_while_the_database_checks",
        "test_an_append_that_cannot_have_the_lock_gives_up_by_the_deadline",
        "test_a_commit_that_fails_after_the_statement_is_a_failure_like_any_other",
        "test_a_refusal_by_the_server_shows_no_content",
    }),
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--through", choices=["pooler", "cuts"], default=None)
    parser.addoption("--through-seed", type=int, default=random.SystemRandom().randrange(2**32))


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    without = _WITHOUT[config.getoption("--through")]
    left_out = [item for item in items if item.originalname in without]
    items[:] = [item for item in items if item.originalname not in without]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Puts the proxy between the server and every store that is opened by URL, for the whole session."""
    through = request.config.getoption("--through")
    if through is None:
        yield
        return
    # Start the server only if it is needed, because a container or an embedded one takes time.
    server = request.getfixturevalue("server")
    with contextlib.ExitStack() as stack:
        if through == "pooler":
            there = stack.enter_context(pooler(server.url))
        else:
            seed = request.config.getoption("--through-seed")
            sys.stdout.write(f"\nthrough cuts: seed {seed}\n")
            proxy = stack.enter_context(Proxy(server.url, random.Random(seed), PLAN))
            stack.callback(lambda: sys.stdout.write(f"\nthrough cuts: {dict(proxy.seen)}\n"))
            there = proxy.url
        target, server_url = sa.make_url(there), sa.make_url(server.url)
        # The pooler uses one login for all clients, so tests of other logins connect directly.
        login = server_url.username if through == "pooler" else None
        with _detoured(lambda url: _by_way_of(url, target, server_url, login)):
            yield


def _by_way_of(url: str, there: sa.URL, server: sa.URL, login: str | None) -> str:
    """Returns the URL through the proxy. URLs of other servers, and other values, are returned as they are."""
    try:
        given = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return url
    if login not in {None, given.username}:
        return url
    if (given.host, given.port, given.query.get("host")) != (server.host, server.port, server.query.get("host")):
        return url
    through = given.set(host=there.host, port=there.port, query=there.query)
    return through.render_as_string(hide_password=False)


@contextlib.contextmanager
def _detoured(way: Callable[[str], str]) -> Iterator[None]:
    """A store does not retry its first connection. If connections are cut, the caller must retry."""
    faces: list[Any] = [cs.Reader, cs.AsyncReader]
    doors: list[Callable[..., Any]] = [face.open.__func__ for face in faces]

    def opened(cls: Any, url: str | None = None, **options: Any) -> Any:
        there = url and way(url)
        for _ in range(_OPENING if there != url else 0):
            with _forgiven():
                return doors[0](cls, there, **options)
        return doors[0](cls, there, **options)

    async def opened_async(cls: Any, url: str | None = None, **options: Any) -> Any:
        there = url and way(url)
        for _ in range(_OPENING if there != url else 0):
            with _forgiven():
                return await doors[1](cls, there, **options)
        return await doors[1](cls, there, **options)

    ways: list[Callable[..., Any]] = [wraps(doors[0])(opened), awaitable_context(wraps(doors[1])(opened_async))]
    _put(faces, ways)
    try:
        yield
    finally:
        _put(faces, doors)


@contextlib.contextmanager
def _forgiven() -> Iterator[None]:
    """Allows a lost connection to be made again."""
    try:
        yield
    except cs.DatabaseUnavailable as error:
        if error.sqlstate is not None:
            raise


def _put(faces: list[Any], doors: list[Callable[..., Any]]) -> None:
    for face, door in zip(faces, doors, strict=True):
        face.open = classmethod(door)
