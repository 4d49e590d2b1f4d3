"""Loading through cut connections, dead servers and killed processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.load_sources import CHUNK, messages, sound, stored

import compaction_store as cs
from compaction_store.messages import load_chunk
from compaction_store.models import Loaded
from compaction_store.store import loads


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a hundred messages."""
    monkeypatch.setattr(loads, "CHUNK_MESSAGES", CHUNK)


@pytest.fixture
def killer(superuser: psycopg.Connection[Any]) -> Callable[[int, int], None]:
    """Makes the server end a connection in the middle of a chunk, when a seq is inserted, a number of times."""

    def arm(seq: int, times: int) -> None:
        superuser.execute("CREATE SEQUENCE public.kills")
        superuser.execute(
            "CREATE FUNCTION public.kill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
            f" IF NEW.seq = {seq} AND nextval('public.kills') <= {times} THEN"
            " PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF;"
            " RETURN NEW; END $$"
        )
        superuser.execute(
            "CREATE TRIGGER kill BEFORE INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.kill()"
        )

    return arm


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seq", [1, 101, 150, 200, 250])
def test_a_connection_cut_inside_a_chunk_is_made_again_and_the_chunk_repeated(
    store: Any, killer: Callable[[int, int], None], seq: int
) -> None:
    killer(seq, 2)
    assert store.load.messages("t", iter(messages(250))) == Loaded(1, 250, 250, 250)
    assert stored(store) == messages(250)
    sound(store, 250)


@pytest.mark.usefixtures("small")
def test_a_server_that_stays_away_ends_the_load_with_its_key(
    faces: Any, url: str, killer: Callable[[int, int], None], superuser: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(load_chunk, "SLOWEST_BYTES_A_SECOND", 2**60)
    store = faces.open(url, deadline=0.5)
    killer(150, 10_000)
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.load.messages("t", iter(messages(250)))
    key = caught.value.key
    assert key
    assert "100 messages of the load are stored" in "".join(caught.value.__notes__)
    assert repr(key) in "".join(caught.value.__notes__)
    superuser.execute("DROP TRIGGER kill ON compaction_store.messages")
    assert store.load.messages("t", iter(messages(250)), key=key) == Loaded(1, 250, 250, 150)
    sound(store, 250)


def test_a_chunk_has_more_time_than_a_call_by_its_bytes(
    faces: Any, url: str, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    superuser.execute(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$"
    )
    superuser.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.slow()"
    )
    store = faces.open(url, deadline=0.5)
    for rate, arrives in ((2**60, False), (100, True)):
        monkeypatch.setattr(load_chunk, "SLOWEST_BYTES_A_SECOND", rate)
        if arrives:
            assert store.load.messages("t", messages(100), key="k").added == 100
        else:
            with pytest.raises(cs.DatabaseUnavailable):
                store.load.messages("t", messages(100), key="k")
    sound(store, 100)


_KILLED = """
import os, signal, sys
from compaction_store import Store
from compaction_store.store import loads
loads.CHUNK_MESSAGES = 100
def messages():
    for i in range(400):
        if i == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"role": "assistant" if i % 2 else "user", "content": f"message {i}"}
Store.open(sys.argv[1]).load.messages("t", messages(), key="k")
"""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stop", [150, 200])
def test_a_killed_process_is_gone_on_from_by_the_next(store: Any, url: str, stop: int) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, url, str(stop)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.load.messages("t", messages(400), key="k").added == 400 - stop // CHUNK * CHUNK
    assert stored(store) == messages(400)
    sound(store, 400)


_MILLION = """
import resource, sys
from compaction_store import Store
def messages():
    for i in range(1_000_000):
        yield {"role": "assistant" if i % 2 else "user", "content": f"message {i} " + "x" * 200}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
store = Store.open(sys.argv[1])
first = []
def watched():
    for i, message in enumerate(messages()):
        if i == 50_000:
            first.append(peak())
        yield message
assert store.load.messages("t", watched(), key="k").added == 1_000_000
loaded = peak()
for message, expected in zip(store.replay("t"), messages(), strict=True):
    assert message.payload == expected
replayed = peak()
assert store.load.messages("t", messages(), key="k").added == 0
print(first[0], loaded, replayed, peak())
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_a_load_of_a_million_messages_or_its_replay(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _MILLION, url], check=True, capture_output=True, text=True)
    print(done.stdout)  # noqa: T201 — megabytes at the peak: early on, after the load, the replay and the second load
    early, *later = map(int, done.stdout.split())
    assert max(later) < early + 64
    with cs.Store.open(url) as store:
        sound(store, 1_000_000)
