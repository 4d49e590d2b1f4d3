"""Reads the data of most kinds of pages in advance, so that the first requests take no longer than later ones."""

from __future__ import annotations

import asyncio

from compaction_store.errors import CompactionStoreError
from compaction_store.store import AsyncReader
from compaction_store.web import gathering

_LONGEST = 10.0


async def warm_up(reader: AsyncReader, *, connections: int) -> None:
    """Opens connections, and has statements compiled and planned on them.

    Does nothing if the tenant has no threads. An error here is not raised, because a page that meets it shows it.
    """
    try:
        listed = await gathering.threads(reader, "", None)
        if listed["threads"].rows:
            name = listed["threads"].rows[0].thread_id
            await asyncio.gather(*(_read(reader, name) for _ in range(connections)))
    except CompactionStoreError:
        pass


async def _read(reader: AsyncReader, thread_id: str) -> None:
    found = await gathering.thread(reader, thread_id, None, 0)
    last_pos, last_seq, last_number = (getattr(found["thread"], f"last_{what}") for what in ("pos", "seq", "number"))
    await gathering.view(reader, thread_id, None, last_pos, 0, only_changes=False)
    await gathering.message(reader, thread_id, last_seq, 1, content=False)
    await gathering.course(reader, found["thread"])
    await gathering.records(reader, None, {}, None, seconds=_LONGEST)
    await gathering.erasures(reader, None, None, None)
    if last_number:
        await gathering.record(reader, thread_id, last_number, 0, content=False)
