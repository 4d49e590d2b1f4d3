"""Runs LangGraph's own conformance tests of checkpointers against StoreSaver, around two of its checkpointers.

Checkpoints and threads are in one database of the embedded Postgres. Every capability that the
inner checkpointer has must pass whole.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import DetectedCapabilities
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from compaction_store import Store, embedded
from compaction_store.adapters.langgraph import StoreSaver


def main() -> int:
    url = embedded.url()

    @asynccontextmanager
    async def inner(name: str) -> AsyncIterator[Any]:
        if name == "InMemorySaver":
            yield InMemorySaver()
            return
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            yield saver

    async def check(name: str) -> bool:
        @checkpointer_test(name=f"StoreSaver around {name}")  # type: ignore[untyped-decorator]
        async def ours() -> AsyncIterator[Any]:
            # A tenant for each capability: the tests use the same names of threads again.
            with Store.open(url, tenant=str(uuid.uuid4())) as store:
                async with inner(name) as saver:
                    wrapped = StoreSaver(saver, store)
                    assert DetectedCapabilities.from_instance(wrapped) == DetectedCapabilities.from_instance(saver)
                    yield wrapped

        report = await validate(ours)
        report.print_report()
        has = {capability: result for capability, result in report.results.items() if result.detected}
        print(sum(result.tests_passed for result in has.values()), "tests passed")  # noqa: T201
        return report.passed_all_base() and all(result.passed for result in has.values())

    passed = [asyncio.run(check(name)) for name in ("InMemorySaver", "AsyncPostgresSaver")]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
