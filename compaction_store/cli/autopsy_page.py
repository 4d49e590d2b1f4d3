"""Writes the report of the command `autopsy` as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from compaction_store.cli import evaluation_page
from compaction_store.cli.losses import Loss, counts, repeated_tokens, sentence

if TYPE_CHECKING:
    from compaction_store.evaluation import Evaluation, Replayed

_TITLE = "Autopsy of compactions"
# The maximum number of losses on the page. A browser could not open a page with all losses of a year of sessions.
_MOST = 1000


def page(found: Evaluation, sessions: Sequence[Replayed], losses: Sequence[Loss]) -> str:
    """Returns the HTML. Without `losses`, it quotes no transcript."""
    from compaction_store.probes import PROBE_TYPES

    kinds = [kind for kind in PROBE_TYPES if any(kind in counts(run) for run in sessions)]
    rows = []
    for run in sessions:
        by = counts(run)
        cells = [f"{by[kind][1]:,} of {by[kind][0]:,}" if kind in by else "" for kind in kinds]
        sizes = " → ".join(f"{fold.tokens_after:,}" for fold in run.folds[:8] if fold.tokens_after)
        rows.append((escape(run.thread_id), f"{len(run.folds):,}", *cells, f"{repeated_tokens(run):,}", sizes))
    heads = (
        "session", "compactions", *(f"{kind.replace('_', ' ')}, failed" for kind in kinds), "tokens repeated",
        "sizes of summaries",
    )  # fmt: skip
    body = [f"<p>{len(sessions):,} sessions have compactions.</p>", "<h2>Sessions</h2>"]
    body += evaluation_page.table(heads, rows)
    if losses:
        body += ["<h2>Losses</h2>", "<ul>"]
        body += [f"<li>{escape(loss.session)}: {escape(sentence(loss.probe))}</li>" for loss in losses[:_MOST]]
        body.append("</ul>")
        if len(losses) > _MOST:
            body.append(f"<p>And {len(losses) - _MOST:,} more.</p>")
    return evaluation_page.page(_TITLE, found, body)
