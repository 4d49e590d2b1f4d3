"""The command `stats`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction_store.audit import charts
from compaction_store.audit._sync.threads import copied, course, own
from compaction_store.audit.charts import Course
from compaction_store.audit.facts import Costs
from compaction_store.audit.safe_text import named
from compaction_store.cli import values
from compaction_store.cli.bundles import argument, misuse, option
from compaction_store.cli.options import ListOptions, TenantOptions
from compaction_store.cli.output import Column, Output, ProgressBar, RedCell, figures, note, number
from compaction_store.errors import InvalidInput
from compaction_store.models.compactions import status_in_words
from compaction_store.models.vocabulary import NO_ATTEMPTS, OUTCOMES

if TYPE_CHECKING:
    from compaction_store import Compaction, Reader
    from compaction_store import Thread as ThreadValue
    from compaction_store.evaluation.money import Money

_HEIGHT = 8
_WIDEST = 100
_COSTS: list[str | Column] = [
    "week", Column("summarizer", fold=True), Column("model", fold=True, optional=True),
    Column("actor", fold=True, optional=True), *figures("calls", "failed", "tokens in", "tokens out"),
]  # fmt: skip


def stats(
    thread: str | None = argument("[THREAD]", default=None),
    svg: Path | None = option("--svg FILE", default=None),
    prices: Path | None = option("--prices FILE", default=None),
    model: str | None = option("--model NAME", default=None),
    window: int | None = option("--window TOKENS", default=None, min=1),
    *,
    db: TenantOptions,
    printed: ListOptions,
) -> None:
    if svg is not None and thread is None:
        raise misuse("needs a thread", "--svg")
    if (prices is None) != (model is None):
        raise misuse("must be given together", "--prices and --model")
    if window is not None and prices is None:
        raise misuse("needs --prices and --model", "--window")
    if prices is not None and thread is None:
        raise misuse("needs a thread", "--prices")
    out = printed.output()
    with db.reader() as store:
        if thread is None:
            _of_all(store, out, db.tenant)
        else:
            _of_one(store, out, thread, svg, None if prices is None else _money(store, thread, prices, model, window))


def _of_one(store: Reader, out: Output, thread: str, svg: Path | None, paid: Money | None) -> None:
    records = list(store.compactions(thread))
    cost = Costs()
    copies, _ = copied(store, [thread])
    for record in own(records, copies):
        cost.add(record)
    now = store.thread(thread, hidden=True)
    line = course(store, now, ranges=max(1, now.last_pos))
    applied = [record for record in records if record.outcome == "applied" and record.revokes is None]
    if svg is not None:
        # Write the chart first, because the command ends early if the reader of the table closes the pipe.
        try:
            svg.write_text(charts.svg(line, named(f"Tokens of the view of thread {thread}")), encoding="utf-8")
        except OSError as error:
            raise misuse(f"cannot write {svg}: {error.strerror}", "--svg") from None
        note(f"written to {svg}")
    if out.csv is not None:
        out.rows([], ((values.compaction(record), ()) for record in applied), f"no compactions of thread {thread!r}")
    elif out.as_json:
        out.json({
            "thread_id": thread, "messages": now.last_seq, "view_tokens": now.view_tokens,
            "unknown_pos": now.unknown_pos, "highest_view_tokens": line.top,
            "groups": _groups(records), "costs": cost.listed(), "not_counted": cost.not_counted,
            "compactions": [values.compaction(record) for record in applied],
            "course": [[point.pos, point.tokens] for point in line.points],
            **({} if paid is None else {"money": _money_dict(paid)}),
        })  # fmt: skip
    else:
        _show_one(out, now, line, records, applied)
        _show_costs(out, cost)
        if paid is not None:
            _show_money(out, paid)


def _show_one(
    out: Output, thread: ThreadValue, line: Course, records: list[Compaction], applied: list[Compaction]
) -> None:
    out.text(f"{named(thread.thread_id)}: tokens of the view", "bold")
    for row in charts.drawn(line, width=min(_WIDEST, out.console.width), height=_HEIGHT):
        out.text(row)
    if thread.unknown_pos is not None:
        out.wrapped(
            f"unknown from pos {thread.unknown_pos:,} on: the entry there changes views, and this release does not know"
            " its kind"
        )
    if not records:
        return
    out.text()
    rows = [
        (
            str(record.number), record.kind, values.span(record.start_seq, record.end_seq),
            number(record.tokens_before), number(record.tokens_after),
            _share(record.tokens_before or 0, record.tokens_after or 0), status_in_words(record),
        )
        for record in applied
    ]  # fmt: skip
    out.grid([*figures("number"), "kind", *figures("seqs", "before", "after", "share"), "status"], rows)
    _show_groups(out, _groups(records))


def _of_all(store: Reader, out: Output, tenant: str) -> None:
    threads = messages = tokens = unknown = 0
    with ProgressBar("stats", "threads") as progress:
        for thread in progress.over(store.threads(hidden=True)):
            threads += 1
            messages += thread.last_seq
            tokens += thread.view_tokens or 0
            unknown += thread.view_tokens is None
    with ProgressBar("stats", "records") as progress:
        cost = Costs()
        copies, _ = copied(store, None, most=None)
        groups = _groups(cost.over(own(progress.over(store.compactions()), copies)))
    if not threads and not out.as_json:
        out.text(f"no threads of tenant {tenant!r}")
        return
    if out.csv is not None:
        out.rows([], ((group, ()) for group in cost.listed()), f"no calls of summarizers in tenant {tenant!r}")
        return
    if out.as_json:
        out.json({
            "threads": threads, "messages": messages, "view_tokens": tokens, "unknown_views": unknown,
            "groups": groups, "costs": cost.listed(), "not_counted": cost.not_counted,
        })  # fmt: skip
        return
    counts = (values.count(threads, "thread"), values.count(messages, "message"), values.count(tokens, "token"))
    out.text(f"{', '.join(counts)} in {'its view' if threads == 1 else 'their views'}", "bold")
    if unknown:
        views = values.count(unknown, "view")
        out.wrapped(f"without {views} that cannot be made: a newer release wrote an entry that changes views")
    _show_groups(out, groups)
    _show_costs(out, cost)


def _groups(records: Iterable[Compaction]) -> list[dict[str, Any]]:
    """Returns the sums for each strategy and model."""
    sums = dict.fromkeys((*OUTCOMES, "tokens_before", "tokens_after"), 0)
    found: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(sums.copy)
    for record in records:
        if record.kind not in NO_ATTEMPTS:
            group = found[record.callback or "", record.model or ""]
            group[record.outcome] += 1
            if record.outcome == "applied" and record.tokens_after is not None:
                group["tokens_before"] += record.tokens_before or 0
                group["tokens_after"] += record.tokens_after
    return [
        {"callback": callback or None, "model": model or None} | group
        for (callback, model), group in sorted(found.items())
    ]


def _show_groups(out: Output, groups: list[dict[str, Any]]) -> None:
    rows = [
        (
            group["callback"] or "", group["model"] or "", *(number(group[name]) for name in OUTCOMES),
            number(group["tokens_before"]), number(group["tokens_after"]),
            _share(group["tokens_before"], group["tokens_after"]),
        )
        for group in groups
    ]  # fmt: skip
    names = (Column("callback", fold=True), Column("model", fold=True, optional=True))
    out.grid((*names, *figures(*OUTCOMES, "before", "after", "share")), rows)


def _share(before: int, after: int) -> str:
    return f"{100 * after / before:.0f} %" if before else ""


def _show_costs(out: Output, cost: Costs) -> None:
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
        out.grid(_COSTS, rows)
    for text in cost.left_out():
        out.wrapped(f"not counted: {text}")


def _money(store: Reader, thread: str, prices: Path, model: str | None, window: int | None) -> Money:
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


def _money_dict(money: Money) -> dict[str, Any]:
    from compaction_store.evaluation.money import BASES, advice, total

    return {
        "currency": money.currency, "calls": {"measured": money.measured, "modelled": money.modelled},
        **{basis: {**(found := total([money], basis)).as_dict(), "net": found.net} for basis in BASES},
        "wasted": money.wasted, "beyond_window": money.beyond_window, "advice": advice(money.folds),
        "records": [fold.as_dict() | {"net": None if fold.needed else fold.net} for fold in money.folds],
    }  # fmt: skip


def _show_money(out: Output, money: Money) -> None:
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
            RedCell(net) if fold.is_loss else net,
        ))  # fmt: skip
    out.grid([*figures("number"), "basis", *figures("calls", "saved", "billed anew", "summarizer", "net")], rows)
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
