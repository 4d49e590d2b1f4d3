"""Times appends with a subject beside appends without one, and the newest threads of a subject among a million.

Run `python -m benchmarks.subjects [URL]`. The threads are inserted with one statement as the owner, and read and
appended to with an application's login. Both kinds of appends take turns, so that other work on the machine meets both.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import psycopg

import compaction_store as cs
from benchmarks import databases
from compaction_store import migrate
from compaction_store.postgres.queries.across_threads import ListFilter, _of_threads

THREADS = 1_000_000
# Every hundredth thread is of one of 10 large subjects, each of 1,000 threads. The others have 10 threads each. Every
# tenth thread has a large view.
LARGE = [f"large-{number}" for number in range(10)]
_MESSAGE = {"role": "user", "content": "Where is the parcel with the two lamps that I ordered on Monday? " * 4}
FILL = """
WITH made AS (
    SELECT n, at, compaction_store.new_thread_uid(at) AS uid
    FROM (
        SELECT n, now() - make_interval(secs => %(n)s - n) * 60 AS at FROM generate_series(1, %(n)s) AS n
    ) AS of (n, at)
),
named AS (
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)
    SELECT uid, 'default', 'chat/' || n, decode('00', 'hex'), decode('00', 'hex'), at FROM made
)
INSERT INTO compaction_store.heads (thread_uid, tenant, subject, head, view_tokens, last_at, active_at)
SELECT uid, 'default', CASE n %% 100 WHEN 0 THEN 'large-' || n / 100 %% 10 ELSE 'customer-' || n / 10 END,
    decode('00', 'hex'), CASE n %% 10 WHEN 7 THEN 50000 ELSE 0 END, at, at
FROM made
"""


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def said(name: str, seconds: list[float]) -> None:
    found = sorted(seconds)
    print(f"{name}: median {statistics.median(found) * 1e3:.2f} ms, p95 {found[len(found) * 95 // 100] * 1e3:.2f} ms")


def appends(store: cs.Store, rounds: int) -> None:
    """Prints the ratio of pairs of appends: the first of a thread, and later ones that name the subject again."""
    for what in ("the first append of a thread", "a later append"):
        pairs = []
        for number in range(rounds):
            found = {}
            for subject in random.sample((None, "customer-17"), 2):
                name = f"{what}/{subject}" + (f"/{number}" if what.startswith("the") else "")
                found[subject] = timed(partial(store.append, name, _MESSAGE, subject=subject))
            pairs.append((found[None], found["customer-17"]))
        ratios = sorted(with_ / without for without, with_ in pairs[20:])
        quarter = len(ratios) // 4
        said(f"{what}, without a subject", [without for without, _ in pairs[20:]])
        said(f"{what}, with a subject", [with_ for _, with_ in pairs[20:]])
        print(f"  ratio {statistics.median(ratios):.3f}, quartiles {ratios[quarter]:.3f} to {ratios[-quarter]:.3f}")


def newest(store: cs.Store, url: str, rounds: int) -> None:
    for kind, subjects in (("1,000", LARGE), ("10", [f"customer-{n}" for n in range(1, 100_000)])):
        picked = random.choices(subjects, k=rounds)
        lists = [store.threads(subject=subject, order="recent", limit=50) for subject in picked]
        said(f"newest 50 of a subject with {kind} threads", [timed(partial(list, found)) for found in lists])
    with psycopg.connect(url) as connection:
        connection.execute("SET compaction_store.tenant = 'default'")
        wanted = ListFilter(subject=LARGE[3])
        query, values = _of_threads("recent", wanted.conditions), wanted.values("default", 50)
        times = []
        for _ in range(rounds):
            plan = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS) " + query.encode(), values).fetchall()
            times.append(float(plan[-1][0].split()[2]) / 1e3)
        print("\n".join(line for (line,) in plan))
        said("on the server, by EXPLAIN ANALYZE", times)


def main() -> None:
    with databases.server(sys.argv[1] if len(sys.argv) > 1 else None) as server, databases.beside(server) as url:
        migrate.upgrade(url)
        login = databases.application(url)
        with cs.Store.open(login) as store:
            appends(store, 1020)
        with psycopg.connect(url, autocommit=True) as connection:
            print(f"{THREADS:,} threads in {timed(lambda: connection.execute(FILL, {'n': THREADS})):.0f} s")
            connection.execute("VACUUM (ANALYZE) compaction_store.threads, compaction_store.heads")
        with cs.Store.open(login) as store:
            newest(store, login, 300)


if __name__ == "__main__":
    main()
