"""Writes an evaluation as one self-contained HTML file without scripts. The figures quote no messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import product
from typing import TYPE_CHECKING

from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from compaction_store.evaluation import Evaluation, Judged, PolicyResult, Rate
    from compaction_store.evaluation.money import Basis, MoneySum
    from compaction_store.probes import ProbeType


_STYLE = ModuleData(__file__).text("style")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_BAR = 100
#: The columns of `cost_cells`.
COSTS = (
    "folds", "rejected", "failed", "calls", "tokens a call", "over window", "summarizers", "threads with folds",
    "sealed",
)  # fmt: skip


def page(title: str, found: Evaluation, body: Iterable[str] = ()) -> str:
    """Returns the page. `body` is HTML to put before the figures."""
    from compaction_store.evaluation.results import OPEN_LOOP
    from compaction_store.probes import PROBE_TYPES

    skipped = "".join(f", {count:,} left out because {escape(reason)}" for reason, count in found.skipped.items())
    parts = [
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">', f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}</style>", "</head>", "<body>", f"<h1>{escape(title)}</h1>",
        f"<p>{found.threads:,} threads{skipped}. Seed {found.seed}.</p>", *body,
    ]  # fmt: skip
    for kind in PROBE_TYPES:
        if any(kind in result.rates for result in found.policies):
            parts += _probes(kind, found.policies)
    parts += ["<h2>Cost</h2>", *_costs(found.policies)]
    if any(result.judged for result in found.policies):
        parts += ["<h2>Judged by a model</h2>", *_judge(found.policies)]
    if any(result.money for result in found.policies):
        parts += ["<h2>Money</h2>", *_money(found)]
    parts += [
        f'<p class="note">{escape(OPEN_LOOP)}</p>', "<details><summary>The figures as JSON</summary>",
        f"<pre>{escape(json.dumps(found.as_dict(), indent=1))}</pre>", "</details>", "</body>", "</html>", "",
    ]  # fmt: skip
    return "\n".join(parts)


# ---- the cells of the tables, which the command prints too


def probe_cells(rate: Rate) -> tuple[str, ...]:
    """Returns the numbers of asked and kept probes, the share, its interval, and the spread of replicates."""
    spread = "" if rate.spread is None else f"{100 * rate.spread[0]:.1f} to {100 * rate.spread[1]:.1f}"
    return f"{rate.asked:,}", f"{rate.kept:,}", *_share(rate), spread


def _share(found: Rate | Judged) -> tuple[str, str]:
    return f"{100 * found.share:.1f} %", f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def cost_cells(result: PolicyResult) -> tuple[str, ...]:
    return (
        *(f"{result.outcomes[name]:,}" for name in ("applied", "rejected", "failed")), f"{result.calls:,}",
        f"{result.tokens_per_call:,.0f}", f"{result.over_window:,}", f"{result.summarizer_tokens:,}",
        f"{result.folded_threads:,}", f"{result.unreadable:,}",
    )  # fmt: skip


def judge_cells(found: Judged) -> tuple[str, ...]:
    """Returns the numbers of a judge's verdicts, and in how many of them it agrees with people."""
    people = ""
    if (same := found.agreement) is not None:
        people = (
            f"{same.same:,} of {same.labelled:,}, {'no kappa' if same.kappa is None else f'kappa {same.kappa:.2f}'}"
        )
    return (
        f"{found.asked:,}", f"{found.good:,}", *_share(found), f"{found.split:,}", f"{found.undecided:,}",
        f"{found.failed:,}", people,
    )  # fmt: skip


def money_sums(found: Evaluation) -> Iterator[tuple[PolicyResult, Basis, MoneySum, list[str]]]:
    """Yields the costs and savings of each policy on each basis that has any, and the first four of them as cells."""
    from compaction_store.evaluation.money import BASES

    for result, basis in product(found.policies, BASES):
        total = result.money_sum(basis)
        if total.requests or total.folds:
            names = ("requests", "saved", "billed_anew", "summarizers")
            yield result, basis, total, [f"{getattr(total, name):,.4f}" for name in names]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns an HTML table. The heads are text, and the cells are HTML."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return [
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>',
        *(f"<tr>{line}</tr>" for line in lines), "</tbody></table></div>",
    ]  # fmt: skip


def _probes(kind: ProbeType, results: Sequence[PolicyResult]) -> list[str]:
    from compaction_store.probes import PROBE_TYPES

    rows = []
    for result in results:
        rate = result.rates.get(kind)
        if rate is None:
            continue
        cliff = result.cliff(kind)
        rows.append((
            escape(result.policy), *probe_cells(rate),
            _bars(result.rounds.get(kind, ())),
            "" if cliff is None else f'<span class="loss">in round {cliff}</span>',
        ))  # fmt: skip
    heads = ("policy", "asked", "kept", "share", "95 %", "of replicates", "by round", "cliff")
    question = f'<p class="note">{escape(PROBE_TYPES[kind])}</p>'
    return [f"<h2>{kind.replace('_', ' ')}</h2>", question, *table(heads, rows)]


def _bars(rounds: Sequence[tuple[int, int]]) -> str:
    """Draws a bar for each round: the share of probes that were kept."""
    if not rounds:
        return ""
    width = _BAR / len(rounds)
    bars = []
    said = []
    for place, (asked, kept) in enumerate(rounds):
        share = kept / asked if asked else 0.0
        said.append(f"{100 * share:.0f} %" if asked else "none")
        bars.append(
            f'<rect x="{place * width:.2f}" y="{10 - 10 * share:.2f}" width="{max(0.4, width - 0.4):.2f}"'
            f' height="{10 * share:.2f}" fill="currentColor"/>'
        )
    label = escape(f"kept by round: {', '.join(said)}")
    return (
        f'<svg viewBox="0 0 {_BAR} 10" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(bars)}</svg>'
    )


def _costs(results: Sequence[PolicyResult]) -> list[str]:
    return table(("policy", *COSTS), [(escape(result.policy), *cost_cells(result)) for result in results])


def _judge(results: Sequence[PolicyResult]) -> list[str]:
    judged = [(result.policy, result.judged) for result in results if result.judged is not None]
    rows = [(escape(policy), *judge_cells(one)) for policy, one in judged]
    first = judged[0][1]
    heads = ("policy", "summaries", "good", "share", "95 %", "split", "undecided", "failed", "agrees with people")
    about = (
        f"{first.model or 'a callable'}, asked {first.replicates} times about each summary;"
        " no other figure includes its verdicts."
    )
    return [*table(heads, rows), f'<p class="note">{escape(about)}</p>']


def _money(found: Evaluation) -> list[str]:
    from compaction_store.evaluation.results import best_policy

    rows = [
        (
            escape(result.policy), basis, *cells, _red(f"{total.net:,.4f}", is_red=total.net < 0),
            _red(f"{total.losing:,}", is_red=total.losing > 0), f"{total.needed:,}", f"{total.unknown:,}",
        )
        for result, basis, total, cells in money_sums(found)
    ]  # fmt: skip
    currency = escape(next(result.money[0].currency for result in found.policies if result.money))
    heads = (
        "policy", "basis", f"calls, {currency}", "saved", "billed anew", "summarizers", "net", "losing", "needed",
        "unknown",
    )  # fmt: skip
    note = (
        "Measured: from the usage that calls reported. Modelled: from the sizes of views. They are never added up."
        " Needed: compactions without which the next call would not have fitted the window. No comparison has them."
    )
    said = [(result.policy, result.advice) for result in found.policies]
    lines = [f'<p class="loss">{escape(f"{policy}: {text}")}</p>' for policy, text in said if text is not None]
    best = best_policy(found)
    return [
        *table(heads, rows), *lines, *([] if best is None else [f"<p>{escape(best)}</p>"]),
        f'<p class="note">{note}</p>',
    ]  # fmt: skip


def _red(text: str, *, is_red: bool) -> str:
    return f'<span class="loss">{text}</span>' if is_red else text
