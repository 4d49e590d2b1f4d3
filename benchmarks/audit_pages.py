"""Measures every audit page of a thread, as the auditor's login: `python -m benchmarks.audit_pages URL THREAD`.

The pages are requested inside this process, so the figures include no network. The processor time is the sum for this
process and its only server session; the server must be on this machine. On an idle machine, it is about the time to the
first byte, because the statements of a page run one after another. `first` is the time of the first request of a page,
because the pages keep a chart until the thread changes.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

import compaction_store as cs
from compaction_store import web
from compaction_store.postgres.driver.cursor import fetch

_SETTINGS = {"default_transaction_read_only": "on", "statement_timeout": "20s"}
_ROUNDS = 10


def _addresses(thread: cs.models.Thread) -> list[tuple[str, dict[str, Any]]]:
    name, last, middle = thread.thread_id, thread.last_seq, max(1, thread.last_pos // 2)
    of_thread = {"id": name}
    return [
        ("/", {}),
        ("/threads", {}),
        *((route, of_thread) for route in ("/thread", "/view", "/records", "/erasures", "/chart.svg")),
        ("/view", {**of_thread, "at": middle}),
        ("/view", {**of_thread, "at": middle, "beside": thread.last_pos}),
        *(("/record", {**of_thread, "number": number}) for number in {1, thread.last_number} if number),
        *(("/message", {**of_thread, "seq": seq}) for seq in (1, last)),
        ("/reply", {**of_thread, "seq": last}),
        ("/records", {**of_thread, "covering": 1}),
        ("/records", {}),
        ("/records", {"outcome": "failed"}),
        ("/erasures", {}),
        ("/sample", {"seed": 1, "until": "2100-01-01T00:00:00+00:00"}),
        ("/integrity", {}),
        ("/search", {**of_thread, "q": "a text that is nowhere"}),
    ]


def _server_ms(pid: int) -> float:
    """Returns the processor time that a session has used so far, in milliseconds, as Linux counts it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


async def _measure(url: str, name: str) -> None:
    role = "compaction_store_auditor"
    async with cs.AsyncReader.open(url, role=role, settings=_SETTINGS, pool_size=1) as reader:
        access = web.OneTimeToken()
        transport = httpx.ASGITransport(app=web.audit_app(reader, access=access))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await client.get("/", params={"token": access.token})
            for route, parameters in _addresses(await reader.thread(name, hidden=True)):
                begun = time.perf_counter()
                answer = await client.get(route, params=parameters)
                first = (time.perf_counter() - begun) * 1000
                # The first request for a thread has its chart drawn, on another session if this one is busy.
                await asyncio.sleep(0.3)
                pid = await reader._db.call(lambda connection: fetch(connection, "SELECT pg_backend_pid()")[0][0])  # noqa: SLF001
                before, server, taken = time.process_time(), _server_ms(pid), []
                for _ in range(_ROUNDS):
                    begun = time.perf_counter()
                    answer = await client.get(route, params=parameters)
                    taken.append((time.perf_counter() - begun) * 1000)
                pages = (time.process_time() - before) * 1000 / _ROUNDS
                server = (_server_ms(pid) - server) / _ROUNDS
                print(
                    f"{pages + server:7.1f} ms processor ({pages:.1f} pages, {server:.1f} server), "
                    f"{statistics.median(taken):7.1f} ms median, {first:7.1f} first: "
                    f"{answer.status_code} {len(answer.content):7,} B "
                    f"{route} {parameters}"
                )


if __name__ == "__main__":
    asyncio.run(_measure(*sys.argv[1:3]))
