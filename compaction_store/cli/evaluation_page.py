"""An evaluation as one HTML file, which needs nothing else: no script, no other file, and no words of any message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from compaction_store.evaluation import Evaluation, PolicyResult
from compaction_store.evaluation.results import OPEN_LOOP
from compaction_store.probes import PROBE_TYPES, ProbeType

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin: 2rem 0 .3rem; font-size: 1.15rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8886 }
th:first-child, td:first-child { text-align: left }
.note { opacity: .75 }
.loss { color: #c02020 }
svg { width: 9rem; height: 1rem; vertical-align: middle }
.table { overflow-x: auto }
@media print { body { margin: 0; max-width: none } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_BAR = 100


def page(title: str, found: Evaluation, body: Iterable[str] = ()) -> str:
    """Returns the file; `body` is HTML that comes before the figures."""
    skipped = "".join(f", {count:,} left out because {escape(reason)}" for reason, count in found.skipped.items())
    parts = [
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">', f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>", "</head>", "<body>", f"<h1>{escape(title)}</h1>",
        f"<p>{found.threads:,} threads{skipped}. Seed {found.seed}.</p>", *body,
    ]  # fmt: skip
    for kind in PROBE_TYPES:
        if any(kind in result.rates for result in found.policies):
            parts += _probes(kind, found.policies)
    parts += ["<h2>Cost</h2>", *_costs(found.policies)]
    if any(result.money for result in found.policies):
        parts += ["<h2>Money</h2>", *_money(found.policies)]
    parts += [
        f'<p class="note">{escape(OPEN_LOOP)}</p>', "<details><summary>The figures as JSON</summary>",
        f"<pre>{escape(json.dumps(found.as_dict(), indent=1))}</pre>", "</details>", "</body>", "</html>", "",
    ]  # fmt: skip
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a table; the cells are HTML."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return [
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>',
        *(f"<tr>{line}</tr>" for line in lines), "</tbody></table></div>",
    ]  # fmt: skip


def _probes(kind: ProbeType, results: Sequence[PolicyResult]) -> list[str]:
    rows = []
    for result in results:
        rate = result.rates.get(kind)
        if rate is None:
            continue
        cliff = result.cliff(kind)
        rows.append((
            escape(result.policy), f"{rate.asked:,}", f"{rate.kept:,}", f"{100 * rate.share:.1f} %",
            f"{100 * rate.low:.1f} to {100 * rate.high:.1f}", _bars(result.rounds.get(kind, ())),
            "" if cliff is None else f'<span class="loss">in round {cliff}</span>',
        ))  # fmt: skip
    heads = ("policy", "asked", "kept", "share", "95 %", "by round", "cliff")
    question = f'<p class="note">{escape(PROBE_TYPES[kind])}</p>'
    return [f"<h2>{kind.replace('_', ' ')}</h2>", question, *table(heads, rows)]


def _bars(rounds: Sequence[tuple[int, int]]) -> str:
    """Draws the share that was kept in each round."""
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
    heads = (
        "policy",
        "folds",
        "rejected",
        "failed",
        "calls",
        "tokens a call",
        "over the window",
        "summarizers' tokens",
    )
    return table(heads, [
        (
            escape(result.policy), *(f"{result.outcomes[name]:,}" for name in ("applied", "rejected", "failed")),
            f"{result.calls:,}", f"{result.tokens_per_call:,.0f}", f"{result.over_window:,}",
            f"{result.summarizer_tokens:,}",
        )
        for result in results
    ])  # fmt: skip


def _money(results: Sequence[PolicyResult]) -> list[str]:
    rows = []
    for result in results:
        found = result.as_dict()["money"]
        amounts = []
        for name in ("calls", "saved", "billed_anew", "summarizers", "net"):
            amount = found[name]
            text = "unknown" if amount is None else f"{amount:,.4f}"
            is_loss = name == "net" and amount is not None and amount < 0
            amounts.append(f'<span class="loss">{text}</span>' if is_loss else text)
        losing = f"{found['losing']:,}"
        rows.append((
            escape(result.policy), *amounts, f'<span class="loss">{losing}</span>' if found["losing"] else losing,
            f"{found['beyond_window']:,}",
        ))  # fmt: skip
    currency = escape(results[0].money[0].currency)
    heads = ("policy", f"calls, {currency}", "saved", "billed anew", "summarizers", "net", "losing", "needed")
    note = "Modelled from the sizes of views. Needed: calls that would not have fitted the window without compaction."
    return [*table(heads, rows), f'<p class="note">{note}</p>']
