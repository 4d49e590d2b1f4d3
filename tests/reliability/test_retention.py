"""A retention policy compared with a model, however it is stopped: nothing younger, held or retained ever goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import aged_threads
from support.aged_threads import HALF_A_YEAR
from support.embedded_servers import wait_until
from support.faces import Face

from compaction_store.arguments import LOG
from compaction_store.models import Expiry

_names = count(1)
_NOW = datetime.now(UTC)


class Kept(NamedTuple):
    """The model of a thread: whether it is old, held, and retained."""

    is_old: bool
    is_held: bool = False
    is_retained: bool = False

    @property
    def reason(self) -> str | None:
        return "held" if self.is_held else "retained" if self.is_retained else None

    @property
    def goes(self) -> bool:
        return self.is_old and self.reason is None


def _fork(store: Face, name: str) -> None:
    store.fork(name, f"{name}-fork-{next(_names)}")


STEPS: dict[str, tuple[Callable[[Face, str], Any], Callable[[Kept], Kept]]] = {
    "append": (
        lambda store, name: store.append(name, {"role": "user", "content": "hello"}),
        lambda m: m._replace(is_old=False),
    ),
    "hold": (lambda store, name: store.custody.hold(name, reason="r"), lambda m: m._replace(is_held=True)),
    "release": (lambda store, name: store.custody.release(name, reason="r"), lambda m: m._replace(is_held=False)),
    "retain": (
        lambda store, name: store.custody.retain(name, _NOW + timedelta(days=9), reason="r"),
        lambda m: m._replace(is_retained=True),
    ),
    "shorten": (
        lambda store, name: store.custody.retain(name, _NOW - timedelta(days=9), reason="r"),
        lambda m: m._replace(is_retained=False),
    ),
    "fork": (_fork, lambda m: m),
    "clear": (lambda store, name: store.clear(name, hide=True), lambda m: m),
    "redact": (
        lambda store, name: store.custody.redact(name, 1, reason="r", override="o", forks=False), lambda m: m,
    ),
    "metadata": (lambda store, name: store.set_metadata(name, {"a": 1}), lambda m: m),
}  # fmt: skip
THREADS = st.lists(
    st.tuples(
        st.sampled_from([1, 100, 179, 181, 400]), st.lists(st.sampled_from(sorted(STEPS)), max_size=4)
    ),
    min_size=1, max_size=7,
)  # fmt: skip
STOPS = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["dropped", "connections ended"])), max_size=3)


def _end_connections(superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


@pytest.mark.superuser_store("the forks of hidden threads are refused")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(threads=THREADS, stops=STOPS)
def test_however_it_is_stopped_a_run_ends_as_the_model_says(
    store: Face, superuser: psycopg.Connection[Any], threads: list[tuple[int, list[str]]], stops: list[tuple[int, str]]
) -> None:
    prefix = f"run {next(_names)}/"
    model: dict[str, Kept] = {}
    for i, (days, steps) in enumerate(threads):
        name = f"{prefix}{i}"
        aged_threads.add(store, name, days)
        model[name] = Kept(days > 180)
        for place, step in enumerate(steps):
            if "clear" in steps[:place] and step != "append":
                continue
            call, change = STEPS[step]
            call(store, name)
            model[name] = change(model[name])
    young = {n for n in aged_threads.names(store) if n.startswith(prefix)} - model.keys()

    def apply(**more: Any) -> Any:
        return store.custody.apply_retention(older_than=HALF_A_YEAR, prefix=prefix, **more)

    would: list[Expiry] = list(apply(dry_run=True))
    assert {e.thread_id: e.kept for e in would} == {n: m.reason for n, m in model.items() if m.is_old}
    done: list[Expiry] = []
    for at, how in stops:
        run = apply()
        done += islice(run, at)
        if how == "connections ended":
            _end_connections(superuser)
            done += run
        del run
    done += apply()
    assert [e.thread_id for e in done if e.kept is None] == [e.thread_id for e in would if e.kept is None]
    assert {n for n in aged_threads.names(store) if n.startswith(prefix)} == young | {
        n for n, m in model.items() if not m.goes
    }
    for name in young:
        assert [m.redacted for m in store.replay(name)][1:] == [False] * (store.thread(name).last_seq - 1)
    assert [e.kept for e in apply(dry_run=True)] == [e.kept for e in would if e.kept is not None]
    states: dict[str, list[str]] = {}
    for event in store.audit.events(LOG, kind="policy"):
        states.setdefault(event.body["run"], []).append(event.body["state"])
    assert all(found in (["begun", "ended"], ["begun", "interrupted"]) for found in states.values())


_PROGRAM = """
import sys
from datetime import timedelta
from compaction_store import Store
with Store.open(sys.argv[1]) as store:
    for expiry in store.custody.apply_retention(older_than=timedelta(days=180)):
        print(expiry.thread_id, flush=True)
"""


def _backends(superuser: psycopg.Connection[Any]) -> set[int]:
    """Returns the processes of the server that work for connections to this database."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    return {pid for (pid,) in superuser.execute(query)}


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_run_whose_process_is_killed_is_finished_by_the_next(
    store: Face, superuser: psycopg.Connection[Any], url: str, after: int
) -> None:
    for i in range(30):
        aged_threads.add(store, f"t{i:02}", 200, messages=1)
    aged_threads.add(store, "young", 100)
    others = _backends(superuser)
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    # The server may still commit what the process had sent.
    wait_until(lambda: _backends(superuser) <= others)
    list(store.custody.apply_retention(older_than=HALF_A_YEAR))
    assert {name for name in aged_threads.names(store) if not name.startswith("erased:")} == {"young"}
    found = list(store.audit.events(LOG, kind="policy"))
    assert [event.body["state"] for event in found] == ["begun", "interrupted", "begun", "ended"]
    erased = [event.body["erased"] for event in found[1::2]]
    assert sum(part["threads"] for part in erased) == 30
    by_run = {event.body["run"]: set(event.body["erased"]["thread_uids"]) for event in found[1::2]}
    for event in store.audit.events(kind="redaction"):
        assert event.thread_id.removeprefix("erased:") in by_run[event.body["run"]]
