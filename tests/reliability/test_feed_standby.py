"""A standby serves the feed, and a failover that loses an entry of the feed is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faces import Faces

from compaction_store.errors import FeedInterrupted
from reliability.rigs import standby
from reliability.rigs.ground import Postgres, superuser

HI = {"role": "user", "content": "hi"}


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary and its asynchronous standby, which may be killed."""
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with Postgres() as primary:
        other = primary.standby()
        try:
            other.start()
            yield primary, other
        finally:
            other.remove()


def test_a_standby_serves_it_and_a_failover_that_loses_its_last_entry_is_said(
    pair: tuple[Postgres, Postgres], faces: Faces
) -> None:
    primary, other = pair
    url = primary.database()
    store = faces.open(url)
    store.append("t", [HI] * 5)
    store.custody.hold("t", reason="claim")
    store.append("u", HI)
    other.catch_up(primary)
    # A standby learns from time to time which transactions run. A checkpoint tells it.
    with superuser(primary.url) as connection:
        connection.execute("CHECKPOINT")
    other.catch_up(primary)
    copy = faces.open(other.at(standby.database(url)))
    entries = list(store.audit.feed(messages=True))
    assert len(entries) == 7
    assert list(copy.audit.feed(messages=True)) == entries
    assert list(copy.audit.feed(messages=True, after=entries[2].cursor)) == entries[3:]

    other.kill()
    store.append("t", HI)
    [lost] = store.audit.feed(messages=True, after=entries[-1].cursor)
    primary.kill()
    other.start()
    with pytest.raises(FeedInterrupted, match="the standby has not received it yet"):
        list(copy.audit.feed(after=lost.cursor))
    other.promote()
    promoted = faces.open(other.at(standby.database(url)))
    promoted.append("u", HI)
    with pytest.raises(FeedInterrupted, match="lost in a failover"):
        list(promoted.audit.feed(after=lost.cursor))
    [new] = promoted.audit.feed(messages=True, after=entries[-1].cursor)
    assert (new.thread_id, new.pos) == ("u", 2)
