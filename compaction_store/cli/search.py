"""The command `search`."""

from __future__ import annotations

from typing import Annotated

from compaction_store.cli import values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.options import TenantsListOptions
from compaction_store.cli.output import Column, number
from compaction_store.cli.progress import ProgressBar


def search(
    text: Annotated[str, argument("TEXT", "The text to find.")],
    thread: str | None = option("--thread THREAD", default=None),
    after: str = option("--after THREAD", default="", show_default=False),
    excerpts: bool = option("--text", default=False),
    *,
    call: TenantsListOptions,
) -> None:
    call.only_one(thread, "--thread")
    call.only_one(after, "--after")
    out = call.output()
    columns: list[str | Column] = [
        *([Column("tenant", fold=True)] * call.all_tenants), Column("thread", fold=True), "where",
        Column("at", right=True),
    ]  # fmt: skip
    with call.reader() as store, ProgressBar("search", "matches") as progress:
        listed = (
            ([name] * call.all_tenants, place)
            for name, its in call.readers(store)
            for place in its.audit.search(text, thread_id=thread, after=after)
        )
        found = progress.over(listed)
        out.rows(
            [*columns, Column("excerpt", fold=True)] if excerpts else columns,
            (
                (
                    values.of_tenant(of) | place.as_dict() | ({} if excerpts else {"excerpt": None}),
                    [
                        *of,
                        place.thread_id,
                        place.kind,
                        number(place.seq or place.number),
                        *([place.excerpt] * excerpts),
                    ],
                )
                for of, place in found
            ),
            none=f"no matches in {call.where}",
        )
