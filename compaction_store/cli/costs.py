"""Prints the cost of summarizers as a table."""

from __future__ import annotations

from compaction_store.cli.output import Column, Output, figures, number
from compaction_store.display.costing import Costs

_COLUMNS: list[str | Column] = [
    "week", Column("summarizer", fold=True), Column("model", fold=True, optional=True),
    Column("actor", fold=True, optional=True), *figures("calls", "failed", "tokens in", "tokens out"),
]  # fmt: skip


def show(out: Output, cost: Costs) -> None:
    """Prints the calls of summarizers, and what is not counted among them."""
    rows = [
        (
            one["week"], one["summarizer"] or "", one["model"] or "", one["actor"] or "", number(one["calls"]),
            number(one["failed"]), number(one["tokens_in"]), number(one["tokens_out"]),
        )
        for one in cost.listed()
    ]  # fmt: skip
    if rows:
        out.text()
        out.text("Calls of summarizers", "bold")
        out.grid(_COLUMNS, rows)
    for text in cost.left_out():
        out.wrapped(f"not counted: {text}")
