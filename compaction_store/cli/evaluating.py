"""Evaluates recorded compactions, and those that other strategies, summarizers and budgets would have made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from compaction_store import Reader, tokens
from compaction_store.cli import choosing, evaluation_page, exits, options
from compaction_store.cli.options import AsJson, Reserve, Target, Tenant, Trigger, Url
from compaction_store.cli.output import Column, Output, figures, note, number
from compaction_store.cli.progress import Progress
from compaction_store.cli.wrong_call import misuse
from compaction_store.errors import InvalidInput
from compaction_store.evaluation import (
    RECORDED,
    Evaluation,
    Policy,
    PolicyResult,
    Prices,
    Rate,
    RecordedThread,
    evaluate,
    read_thread,
)
from compaction_store.evaluation.results import OPEN_LOOP
from compaction_store.probes import PROBE_TYPES

_KINDS = ", ".join(kind for kind in PROBE_TYPES if kind != "used_name")
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="NAME[:OPTIONS]",
        help="Another strategy to try, such as sliding-window:retain=10. Repeat it to compare several.",
        show_default=False,
    ),
]
Summarizers = Annotated[
    list[str],
    typer.Option(
        "--summarizer",
        metavar="NAME[:OPTIONS]",
        help="A summarizer to try with each strategy. Repeat it to compare several.",
        show_default="extractive",
    ),
]
Windows = Annotated[
    list[int] | None,
    typer.Option(
        "--window",
        metavar="TOKENS",
        min=1,
        help="A context window to try with each strategy. Repeat it to compare several.",
        show_default=False,
    ),
]


def evaluate_threads(
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREADS]...", help="Names of threads. [default: all]", show_default=False),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=1, help="Evaluate N threads, drawn at random.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="The seed of the sample and of the intervals.")
    ] = 0,
    strategy: Strategies = None,
    summarizer: Summarizers = ["extractive"],  # noqa: B006 — never changed
    window: Windows = None,
    reserve: Reserve = 0,
    trigger: Trigger = "0.8",
    target: Target = "0.5",
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices", metavar="FILE", help="Prices of models as JSON, to model costs and savings.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="With --prices: the model whose prices apply.", show_default=False
        ),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-under",
            metavar="TYPE=SHARE",
            help="Exit with 1 if less of this type of probe is kept, such as needed_later=0.9.",
            show_default=False,
        ),
    ] = None,
    fail_over: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-over",
            metavar="TYPE=SHARE",
            help="Exit with 1 if more of this type of probe fails, such as invented=0.",
            show_default=False,
        ),
    ] = None,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a report as one HTML file.", show_default=False),
    ] = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Evaluates compactions by replaying threads in memory; it writes nothing to the database.

    The thread's own compactions are evaluated as `recorded`. With --strategy, each strategy is tried with each
    summarizer and window, and compacts where it would have compacted in use. Every type of probe is reported
    separately, with the number of questions and an interval.
    """
    under, over = _limits(fail_under, "--fail-under"), _limits(fail_over, "--fail-over")
    if (prices is None) != (model is None):
        raise misuse("must be given together", "--prices and --model")
    if sample is not None and threads:
        raise misuse("must not be given with names of threads", "--sample")
    marks = (reserve, trigger, target)
    policies: list[Policy | str] = [RECORDED, *_policies(strategy or [], summarizer, window or [], marks)]
    out = Output(as_json=as_json)
    with options.reader(url, tenant) as store, Progress("evaluate", "threads") as progress:
        try:
            found = evaluate(
                progress.over(_threads(store, threads, sample, seed)), policies, counter=tokens.o200k_base(), seed=seed,
                prices=None if prices is None else Prices.read(prices), model=model,
                window=window[0] if window and len(window) == 1 else None,
            )  # fmt: skip
        except InvalidInput as error:
            raise misuse(str(error), "--prices" if prices is not None else "--strategy") from None
    show(out, found)
    if out_file is not None:
        write_file(out_file, evaluation_page.page("Evaluation of compactions", found))
    failures = found.failures(under, over)
    for failure in failures:
        note(failure)
    if failures:
        raise typer.Exit(exits.REFUSED)


def _policies(
    strategies: list[str], summarizers: list[str], windows: list[int], marks: tuple[int, str, str]
) -> Iterator[Policy]:
    """Yields a policy for every combination, named after the parts that differ."""
    if strategies and not windows:
        raise misuse("must be given with --strategy", "--window")
    for spec, summarizer, window in product(strategies, summarizers, windows):
        budget = options.budget(window, *marks)
        assert budget is not None  # noqa: S101 — there is a window
        parts = [spec, *([summarizer] * (len(summarizers) > 1)), *([f"{window:,}"] * (len(windows) > 1))]
        yield Policy(" · ".join(parts), (choosing.strategy([spec], [summarizer]),), budget)


def _threads(store: Reader, names: list[str] | None, sample: int | None, seed: int) -> Iterator[RecordedThread]:
    chosen = names or [thread.thread_id for thread in store.threads() if thread.erased_pos is None]
    if sample is not None and sample < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, sample))  # noqa: S311 — a sample, not a secret
    for name in chosen:
        yield read_thread(store, name)


def _limits(given: list[str] | None, option: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given or []:
        kind, _, share = text.partition("=")
        value = choosing.value(share)
        if kind not in PROBE_TYPES or type(value) not in (int, float) or not 0 <= value <= 1:
            raise misuse(f"must be TYPE=SHARE with a type of {_KINDS} and a share from 0 to 1, not {text!r}", option)
        found[kind] = value
    return found


# ---- output


def show(out: Output, found: Evaluation) -> None:
    """Prints an evaluation."""
    if out.as_json:
        out.json(found.as_dict())
        return
    skipped = "".join(f", {count:,} left out because {reason}" for reason, count in found.skipped.items())
    out.text(f"{found.threads:,} thread{'' if found.threads == 1 else 's'}{skipped}", "bold")
    kinds = [kind for kind in PROBE_TYPES if any(kind in result.rates for result in found.policies)]
    if not kinds:
        out.text("no compaction was made")
    for kind in kinds:
        out.text()
        out.text(f"{kind}: {PROBE_TYPES[kind]}", "bold")
        rows = [
            (result.policy, *_cells(rate), "" if (cliff := result.cliff(kind)) is None else f"in round {cliff}")
            for result in found.policies
            if (rate := result.rates.get(kind)) is not None
        ]
        out.grid([Column("policy", fold=True), *figures("asked", "kept", "share", "95 %"), "cliff"], rows)
    out.text()
    out.grid(
        [
            Column("policy", fold=True),
            *figures("folds", "rejected", "failed", "calls", "tokens a call", "over window", "summarizers", "seconds"),
        ],
        [_costs(result) for result in found.policies],
    )
    if any(result.money for result in found.policies):
        out.text()
        out.grid(
            [
                Column("policy", fold=True),
                *figures("calls", "saved", "billed anew", "summarizers", "net", "losing", "needed"),
            ],
            [_money(result) for result in found.policies],
        )
        out.text(
            "modelled from the sizes of views; needed: calls that would not have fitted the window without compaction"
        )
    out.text(OPEN_LOOP)


def _cells(rate: Rate) -> tuple[str, ...]:
    return (
        number(rate.asked), number(rate.kept), f"{100 * rate.share:.1f} %",
        f"{100 * rate.low:.1f} to {100 * rate.high:.1f}",
    )  # fmt: skip


def _costs(result: PolicyResult) -> tuple[str, ...]:
    outcomes = result.outcomes
    return (
        result.policy, number(outcomes["applied"]), number(outcomes["rejected"]), number(outcomes["failed"]),
        number(result.calls), number(round(result.tokens_per_call)), number(result.over_window),
        number(result.summarizer_tokens), f"{result.seconds:.1f}",
    )  # fmt: skip


def _money(result: PolicyResult) -> tuple[str, ...]:
    found: dict[str, Any] = result.as_dict()["money"]

    def amount(name: str) -> str:
        return "unknown" if found[name] is None else f"{found[name]:,.4f}"

    return (
        result.policy, amount("calls"), amount("saved"), amount("billed_anew"), amount("summarizers"), amount("net"),
        number(found["losing"]), number(found["beyond_window"]),
    )  # fmt: skip


def write_file(file: Path, text: str) -> None:
    """Writes a report."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise misuse(f"cannot write {file}: {error.strerror}", "--out") from None
    note(f"written to {file}")
