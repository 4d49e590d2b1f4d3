"""Shows the money that each compaction of a thread saved on later calls, and the money that it cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction_store.cli.output import Column, Loss, Output, figures, number
from compaction_store.cli.wrong_call import misuse
from compaction_store.errors import InvalidInput

if TYPE_CHECKING:
    from compaction_store import Reader
    from compaction_store.evaluation.money import Money


def read(store: Reader, thread: str, prices: Path, model: str | None, window: int | None) -> Money:
    """Estimates what a thread's compactions cost and saved, from the prices in a file."""
    from compaction_store import tokens
    from compaction_store.evaluation import RECORDED, Prices, evaluate, read_thread

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
    """Returns the costs and savings as a dict for `json.dumps`."""
    from compaction_store.evaluation.money import BASES, advice, total

    return {
        "currency": money.currency, "calls": {"measured": money.measured, "modelled": money.modelled},
        **{basis: {**(found := total([money], basis)).as_dict(), "net": found.net} for basis in BASES},
        "wasted": money.wasted, "beyond_window": money.beyond_window, "advice": advice(money.folds),
        "records": [
            {
                "record": fold.record, "basis": fold.basis, "calls": fold.calls, "saved": fold.saved,
                "billed_anew": fold.billed_anew, "summarizer": fold.summarizer,
                "net": None if fold.needed else fold.net, "needed": fold.needed,
            }
            for fold in money.folds
        ],
    }  # fmt: skip


def show(out: Output, money: Money) -> None:
    """Prints what each record cost and saved, and advice."""
    from compaction_store.evaluation.money import BASES, advice, total

    out.text()
    out.text(f"Money of the compactions in {money.currency}", "bold")
    rows = []
    for fold in money.folds:
        net = "needed" if fold.needed else "unknown" if fold.net is None else f"{fold.net:,.4f}"
        rows.append((
            str(fold.record), fold.basis, number(fold.calls), f"{fold.saved:,.4f}", f"{fold.billed_anew:,.4f}",
            "unknown" if fold.summarizer is None else f"{fold.summarizer:,.4f}",
            Loss(net) if fold.is_loss else net,
        ))  # fmt: skip
    heads = figures("calls", "saved", "billed anew", "summarizer", "net")
    out.grid([Column("number", right=True), "basis", *heads], rows)
    for basis in BASES:
        found = total([money], basis)
        if found.requests or found.folds:
            text = f"{basis}: calls {found.requests:,.4f}, net of {found.compared:,} compactions {found.net:,.4f}"
            out.text(text, "bold red" if found.net < 0 else None)
    if money.wasted != 0:
        out.text(f"summaries that were not used: {'unknown' if money.wasted is None else f'{money.wasted:,.4f}'}")
    if (said := advice(money.folds)) is not None:
        which = ", ".join(str(fold.record) for fold in money.losing[:10])
        out.text(f"{said} (records {which})", "red")
    out.text("measured: from the usage that calls reported; modelled: from the sizes of views")
