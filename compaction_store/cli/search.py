"""The command `search`."""

from __future__ import annotations

from typing import Annotated

from compaction_store.cli import values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.options import ListOptions, TenantsOptions
from compaction_store.cli.output import Column, number
from compaction_store.cli.progress import ProgressBar


def search(
    text: Annotated[str, argument("TEXT", "The text to find.")],
    thread: str | None = option("--thread THREAD", default=None),
    after: str = option("--after THREAD", default="", show_default=False),
    excerpts: bool = option("--text", default=False),
    *,
    db: TenantsOptions,
    printed: ListOptions,
) -> None:
    db.only_one(thread, "--thread")
    db.only_one(after, "--after")
    out = printed.output()
    columns: list[str | Column] = [
        *([Column("tenant", fold=True)] * db.all_tenants), Column("thread", fold=True), "where",
        Column("at", right=True),
    ]  # fmt: skip
    with db.reader() as store, ProgressBar("search", "matches") as progress:
        listed = (
            ([name] * db.all_tenants, place)
            for name, its in db.readers(store)
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
            none=f"no matches in {db.where}",
        )
