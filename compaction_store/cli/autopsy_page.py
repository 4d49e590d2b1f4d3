"""Writes the report of the command `autopsy` as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from compaction_store.cli import evaluation_page, values
from compaction_store.cli.losses import Loss, counts, repeated_tokens, sentence

if TYPE_CHECKING:
    from compaction_store.evaluation import Evaluation, Replayed

_TITLE = "Autopsy of compactions"
# The maximum numbers of losses and of compactions on the page. A browser could not open a page with all losses of a
# year of sessions.
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
    folds = [(run, fold) for run in sessions for fold in run.folds]
    spans = [
        (
            escape(run.thread_id), f"{fold.record:,}", values.span(fold.start_seq, fold.end_seq),
            f"{fold.tokens_before:,}", f"{fold.tokens_after:,}" if fold.tokens_after else "unknown",
        )
        for run, fold in folds[:_MOST]
    ]  # fmt: skip
    if spans:
        body += ["<h2>Compactions</h2>"]
        body += evaluation_page.table(("session", "record", "seqs", "tokens before", "tokens after"), spans)
    if len(folds) > _MOST:
        body.append(f"<p>And {len(folds) - _MOST:,} more.</p>")
    if losses:
        body += ["<h2>Losses</h2>", "<ul>"]
        body += [f"<li>{escape(loss.session)}: {escape(sentence(loss.probe))}</li>" for loss in losses[:_MOST]]
        body.append("</ul>")
        if len(losses) > _MOST:
            body.append(f"<p>And {len(losses) - _MOST:,} more.</p>")
    return evaluation_page.page(_TITLE, found, body)
