"""A writer that gets a seq it had before gets an error: the thread has lost messages."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from support.faces import Face, Faces
from support.rewound_database import forked

import compaction_store as cs
from compaction_store.store.threads import KnownThread, KnownThreads

HI = {"role": "user", "content": "hi"}
LATER = {"role": "user", "content": "later"}


@pytest.mark.parametrize("messages", [LATER, [LATER, LATER]], ids=["one", "many"])
def test_a_writer_learns_that_its_thread_lacks_its_messages(store: Face, url: str, messages: Any) -> None:
    store.append("t", [HI] * 3)
    with forked(url) as fork:
        assert [m.seq for m in store.append("t", [HI] * 6)] == [4, 5, 6, 7, 8, 9]
        fork.restore()
        with pytest.raises(cs.ThreadWentBack, match=r"reached seq 9, and this one begins at seq 4.*'t'") as caught:
            store.append("t", messages)
        count = len(messages) if isinstance(messages, list) else 1
        assert caught.value.known_seq == 9
        assert [m.seq for m in caught.value.written] == list(range(4, 4 + count))
        assert "later" not in str(caught.value)
        # It is stored, and reported once.
        assert [m.payload for m in store.replay("t", after=3)] == [LATER] * count
        assert [m.seq for m in store.append("t", HI)] == [4 + count]
        # Other threads are as they were.
        assert store.append("other", HI)[0].seq == 1


def test_a_first_look_at_a_thread_says_nothing(faces: Faces, url: str) -> None:
    faces.open(url).append("t", [HI] * 5)
    assert faces.open(url).append("t", HI)[0].seq == 6


def test_a_retry_by_its_key_is_no_going_back(faces: Faces, url: str) -> None:
    store = faces.open(url)
    store.append("t", HI, key="k")
    store.append("t", [HI] * 3)
    assert store.append("t", HI, key="k")[0].seq == 1
    assert store.append("t", HI)[0].seq == 5


def test_writers_at_once_are_no_thread_that_went_back(url: str) -> None:
    with cs.Store.open(url) as store, ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: store.append("t", HI)[0].seq, range(200)))
    assert sorted(told) == list(range(1, 201))

    async def main() -> None:
        async with cs.AsyncStore.open(url) as tasks:
            stored = await asyncio.gather(*[tasks.append("t", HI) for _ in range(100)])
            assert sorted(each[0].seq for each in stored) == list(range(201, 301))

    asyncio.run(main())


def test_what_is_kept_of_threads_is_bounded() -> None:
    threads = KnownThreads()
    for i in range(10_500):
        threads.put(f"t{i}", None, KnownThread(UUID(int=i), 7))
    assert threads.get("t499") is None
    assert threads.get("t500") == KnownThread(UUID(int=500), 7)
    assert threads.get("t10499") == KnownThread(UUID(int=10_499), 7)


def test_a_thread_that_is_lost_whole_is_reported_and_an_erased_one_is_not(store: Face, url: str) -> None:
    store.append("kept", HI)
    with forked(url) as fork:
        store.append("lost", [HI] * 3)
        fork.restore()
        with pytest.raises(cs.ThreadWentBack, match="reached seq 3, and this one begins at seq 1"):
            store.append("lost", LATER)
        assert [m.payload for m in store.replay("lost")] == [LATER]
    store.append("kept", HI)
    store.custody.erase("kept", reason="asked")
    assert store.append("kept", LATER)[0].seq == 1
