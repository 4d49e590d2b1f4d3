"""The money of a thread's compactions: for each record, what it saved on later calls and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compaction_store import Reader, tokens
from compaction_store.cli.output import Column, Output, figures, number
from compaction_store.cli.wrong_call import misuse
from compaction_store.errors import InvalidInput
from compaction_store.evaluation import RECORDED, Prices, evaluate, read_thread
from compaction_store.evaluation.money import Money


def read(store: Reader, thread: str, prices: Path, model: str | None, window: int | None) -> Money:
    """Models the money of a thread by the prices in a file."""
    try:
        found = evaluate(
            [read_thread(store, thread)], [RECORDED], counter=tokens.o200k_base(), prices=Prices.read(prices),
            model=model, window=window,
        )  # fmt: skip
    except InvalidInput as error:
        raise misuse(str(error), "--prices") from None
    [result] = found.policies
    if not result.money:
        raise misuse(f"cannot be used for this thread: {', '.join(found.skipped)}", "--prices")
    return result.money[0]


def as_dict(money: Money) -> dict[str, Any]:
    """Returns the money, ready for `json.dumps`."""
    return {
        "currency": money.currency, "calls": money.calls, "summarizers": money.summarizers, "net": money.net,
        "beyond_window": money.beyond_window,
        "records": [
            {
                "record": fold.record, "calls": fold.calls, "saved": fold.saved, "billed_anew": fold.billed_anew,
                "net": None if fold.needed else fold.net, "needed": fold.needed,
            }
            for fold in money.folds
        ],
    }  # fmt: skip


def show(out: Output, money: Money) -> None:
    """Prints the money of each record, and advice."""
    out.text()
    out.text(f"Money of the compactions in {money.currency}, modelled from the sizes of the views", "bold")
    rows = [
        (
            str(fold.record), number(fold.calls), f"{fold.saved:,.4f}", f"{fold.billed_anew:,.4f}",
            "needed" if fold.needed else f"{fold.net:,.4f}",
        )
        for fold in money.folds
    ]  # fmt: skip
    out.grid([Column("number", right=True), *figures("calls", "saved", "billed anew", "net")], rows)
    spent = "unknown" if money.summarizers is None else f"{money.summarizers:,.4f}"
    net = "unknown" if money.net is None else f"{money.net:,.4f}"
    is_loss = money.net is not None and money.net < 0
    out.text(f"calls {money.calls:,.4f}, summarizers {spent}, net {net}", "bold red" if is_loss else None)
    if money.losing:
        which = ", ".join(str(fold.record) for fold in money.losing[:10])
        out.text(
            f"{len(money.losing):,} of {len(money.folds):,} compactions lost money (records {which}):"
            " fewer and larger ones cost less, so try a lower --target",
            "red",
        )
