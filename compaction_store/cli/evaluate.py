"""The command `evaluate`, which evaluates recorded compactions, and other strategies, summarizers and budgets."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import typer

import compaction_store
from compaction_store.cli import choices, options, values
from compaction_store.cli.bundles import REFUSED, Bundle, argument, misuse, option
from compaction_store.cli.options import ReadOptions, Reserve, TenantOptions, Trigger
from compaction_store.cli.output import Column, Output, ProgressBar, RedCell, figures, note, number, private
from compaction_store.errors import InvalidInput
from compaction_store.module_data import ModuleData
from compaction_store.probes import PROBE_TYPES

if TYPE_CHECKING:
    from compaction_store import Reader
    from compaction_store.evaluation import Evaluation, Judge, Judged, Policy, PolicyResult, Rate
    from compaction_store.evaluation.evaluator import Settings, ThreadRuns
    from compaction_store.evaluation.money import Basis, MoneySum
    from compaction_store.language.names import NameReader
    from compaction_store.probes import ProbeType

_SUMMARIZERS = ["state"]
_TARGETS = ["0.5"]
_KINDS = ", ".join(kind for kind in PROBE_TYPES if kind != "used_name")


def evaluate_threads(
    threads: list[str] | None = argument("[THREADS]...", default=None),
    sample: int | None = option("--sample N", default=None, min=1),
    *,
    wanted: ReplayOptions,
    fail_under: list[str] | None = option("--fail-under TYPE=SHARE", default=None),
    fail_over: list[str] | None = option("--fail-over TYPE=SHARE", default=None),
    out_file: Path | None = option("--out FILE", default=None),
    record: str | None = option("--record REASON", default=None),
    processes: int | None = option("--processes N", default=None, min=1),
    call: ReadOptions,
) -> None:
    from compaction_store.evaluation.evaluator import summed

    under, over = _limits(fail_under, "--fail-under"), _limits(fail_over, "--fail-over")
    if sample is not None and threads:
        raise misuse("must not be given together with names of threads", "--sample")
    out = call.output()
    setup = wanted.made()
    with ExitStack() as stack:
        store = stack.enter_context(call.store() if record is not None else call.reader())
        names = _chosen(store, threads, sample, wanted.seed)
        progress = stack.enter_context(ProgressBar("evaluate", "threads", len(names)))
        runs = replayed(store, call.url, call.tenant, names, wanted, setup, processes)
        found = summed(progress.over(runs), setup.policies, setup.settings)
        if record is not None:
            assert isinstance(store, compaction_store.Store)  # noqa: S101 — opened for writing above
            # An event of each replayed thread has the policies, and the figures of this thread.
            for thread, document in found.documents():
                store.audit.record_evaluation(thread, document, reason=record)
            note(f"recorded in {values.count(found.threads, 'thread')}")
    show(out, found)
    if out_file is not None:
        write_file(out_file, page("Evaluation of compactions", found))
    failures = found.failures(under, over)
    for failure in failures:
        note(failure)
    if failures:
        raise typer.Exit(REFUSED)


def _chosen(store: Reader, names: list[str] | None, sample: int | None, seed: int) -> list[str]:
    chosen = names or [thread.thread_id for thread in store.threads() if thread.erased_pos is None]
    if sample is not None and sample < len(chosen):
        return sorted(random.Random(seed).sample(chosen, sample))  # noqa: S311 — a sample, not a secret
    return chosen


def _limits(given: list[str] | None, option: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given or []:
        kind, _, share = text.partition("=")
        value = choices.value(share)
        if kind not in PROBE_TYPES or type(value) not in (int, float) or not 0 <= value <= 1:
            raise misuse(f"must be TYPE=SHARE with a type of {_KINDS} and a share from 0 to 1, not {text!r}", option)
        found[kind] = value
    return found


# ---- output


def show(out: Output, found: Evaluation) -> None:
    from compaction_store.evaluation.results import OPEN_LOOP

    if out.as_json:
        out.json(found.as_dict())
        return
    skipped = "".join(f", {count:,} left out because {reason}" for reason, count in found.skipped.items())
    out.text(f"{values.count(found.threads, 'thread')}{skipped}", "bold")
    kinds = [kind for kind in PROBE_TYPES if any(kind in result.rates for result in found.policies)]
    if not kinds:
        out.text("no compaction was made")
    for kind in kinds:
        out.text()
        out.text(f"{kind}: {PROBE_TYPES[kind]}", "bold")
        rows = [
            (
                result.policy,
                *probe_cells(rate),
                "" if (cliff := result.cliff(kind)) is None else f"in round {cliff}",
            )
            for result in found.policies
            if (rate := result.rates.get(kind)) is not None
        ]
        columns = [Column("policy", fold=True), *figures("asked", "kept", "share", "95 %")]
        out.grid([*columns, Column("spread", right=True, optional=True), Column("cliff", optional=True)], rows)
    out.text()
    rows = [(each.policy, *cost_cells(each), f"{each.seconds:.1f}") for each in found.policies]
    out.grid([Column("policy", fold=True), *figures(*COSTS, "seconds")], rows)
    if any(result.judged for result in found.policies):
        _show_judge(out, found)
    if any(result.money for result in found.policies):
        show_money(out, found)
    if any(result.unreadable for result in found.policies):
        out.text("sealed: summaries that only the provider can read; of their losses, only repeated calls are counted")
    if any(result.replicates > 1 for result in found.policies):
        out.text(
            "all figures cover all replicates together; spread: the smallest and the largest share of one replicate"
        )
    out.text(OPEN_LOOP)


def _show_judge(out: Output, found: Evaluation) -> None:
    out.text()
    judged = [(result.policy, result.judged) for result in found.policies if result.judged is not None]
    _, first = judged[0]
    out.text(f"judge: {first.model or 'a callable'}, asked {first.replicates} times about each summary", "bold")
    rows = [(policy, *judge_cells(one)) for policy, one in judged]
    heads = figures("summaries", "good", "share", "95 %", "split", "undecided", "failed")
    out.grid([Column("policy", fold=True), *heads, Column("people", fold=True, optional=True)], rows)
    out.text(
        "a model's opinion; no other figure includes it. people: its agreement with verdicts that reviewers recorded"
    )


def show_money(out: Output, found: Evaluation) -> None:
    from compaction_store.evaluation.results import best_policy

    out.text()
    currency = next(result.money[0].currency for result in found.policies if result.money)
    out.text(f"Money in {currency}", "bold")
    rows = []
    for result, basis, total, cells in money_sums(found):
        net = f"{total.net:,.4f}"
        counts = map(number, (total.losing, total.needed, total.unknown))
        rows.append((result.policy, basis, *cells, RedCell(net) if total.net < 0 else net, *counts))
    heads = figures("calls", "saved", "billed anew", "summarizers", "net", "losing", "needed", "unknown")
    out.grid([Column("policy", fold=True), "basis", *heads], rows)
    out.text(
        "measured: from the usage that calls reported; modelled: from the sizes of views. They are never added up."
        " needed: compactions without which the next call would not have fitted the window. No comparison has them"
    )
    for result in found.policies:
        if result.advice is not None:
            out.text(f"{result.policy}: {result.advice}", "red")
    if (said := best_policy(found)) is not None:
        out.text(said)


def write_file(file: Path, text: str) -> None:
    try:
        private(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise misuse(f"cannot write {file}: {error.strerror}", "--out") from None
    note(f"written to {file}")


# ---- the replays of threads, many threads in several processes


# With fewer threads than this, starting processes would take longer than replaying the threads in this process.
_LEAST_THREADS = 40
# The number of threads that a process gets at a time.
_AT_A_TIME = 4


class Setup(NamedTuple):
    """The policies by name, and the settings of the replay."""

    policies: dict[str, Policy | None]
    settings: Settings


class ReplayOptions(Bundle):
    """The options of the command line, from which every process makes the same policies."""

    seed: Annotated[int, option("--seed N", min=0)] = 0
    strategy: Annotated[list[str] | None, option("--strategy NAME[:OPTIONS]")] = None
    summarizer: Annotated[list[str], option("--summarizer NAME[:OPTIONS]", show_default="state")] = _SUMMARIZERS
    window: Annotated[list[int] | None, option("--window TOKENS", min=1)] = None
    reserve: Reserve = 0
    trigger: Trigger = "0.8"
    target: Annotated[list[str], option("--target TOKENS|SHARE")] = _TARGETS
    replicates: Annotated[int, option("--replicates N", min=1)] = 1
    plant: Annotated[int, option("--plant N", min=0)] = 0
    judge: Annotated[str | None, option("--judge NAME:OPTIONS")] = None
    judge_replicates: Annotated[int, option("--judge-replicates N", min=1)] = 3
    prices: Annotated[Path | None, option("--prices FILE")] = None
    model: Annotated[str | None, option("--model NAME")] = None
    keep_runs: ClassVar[bool] = False

    def made(self) -> Setup:
        """Returns the policies and the settings. Raises an error if an option is wrong."""
        if (self.prices is None) != (self.model is None):
            raise misuse("must be given together", "--prices and --model")
        try:
            return self._setup()
        except InvalidInput as error:
            raise misuse(str(error), "--prices" if self.prices is not None else "--strategy") from None

    def _setup(self) -> Setup:
        from compaction_store import tokens
        from compaction_store.evaluation import RECORDED, Prices
        from compaction_store.evaluation.evaluator import Settings, check_policies

        window = self.window[0] if self.window and len(set(self.window)) == 1 else None
        prices = None if self.prices is None else Prices.read(self.prices)
        settings = Settings(
            tokens.o200k_base(), self.seed, prices, self.model, window, self.replicates, self.plant, self._judge(),
            self.keep_runs,
        )  # fmt: skip
        own = () if self.plant else (RECORDED,)
        return Setup(check_policies([*own, *self._policies()], settings), settings)

    def _policies(self) -> Iterator[Policy]:
        """Yields a policy for each combination of options.

        The name of a policy gives the strategy, and the other options that differ between policies.
        """
        from compaction_store.evaluation import Policy

        specs, windows = self.strategy or (), self.window or ()
        if specs and not windows:
            raise misuse("is required with --strategy", "--window")
        if self.plant and not specs:
            raise misuse(
                "is required with --plant: the planted facts are not in the threads' own compactions", "--strategy"
            )
        for spec, summarizer, window, target in product(specs, self.summarizer, windows, self.target):
            budget = options.budget(window, self.reserve, self.trigger, target)
            assert budget is not None  # noqa: S101 — there is a window
            parts = [
                spec, *([summarizer] * (len(self.summarizer) > 1)), *([f"{window:,}"] * (len(windows) > 1)),
                *([f"to {target}"] * (len(self.target) > 1)),
            ]  # fmt: skip
            yield Policy(" · ".join(parts), (choices.strategy([spec], [summarizer]),), budget)

    def _judge(self) -> Judge | None:
        from compaction_store.evaluation import Judge

        if self.judge is None:
            return None
        made = choices.summarize([self.judge], "--judge")
        if not hasattr(made, "answer"):
            raise misuse(f"must be anthropic:model=NAME or openai:model=NAME, not {self.judge!r}", "--judge")
        return Judge(made.answer, model=made.model, replicates=self.judge_replicates)


def replayed(
    store: Reader,
    url: str | None,
    tenant: str,
    names: Sequence[str],
    wanted: ReplayOptions,
    setup: Setup,
    processes: int | None = None,
) -> Iterator[ThreadRuns]:
    """Yields the result of each thread, in the order of `names`. `setup` must have been made from `wanted`."""
    from compaction_store.language.names import NameReader

    # If there are few threads, each may be long, so a process gets one at a time.
    most = _AT_A_TIME if len(names) >= _LEAST_THREADS else 1
    parts = [tuple(names[at : at + most]) for at in range(0, len(names), most)]
    count = process_count(processes, len(parts))
    # A judge counts its calls and tokens, so it must run in one process.
    if count == 1 or wanted.judge is not None or (processes is None and len(names) < _LEAST_THREADS):
        yield from map(partial(_of_thread, store, setup, NameReader()), names)
        return
    for found in in_processes(count, _in_process, parts, _worker, url, tenant, wanted):
        yield from found


def _of_thread(store: Reader, setup: Setup, reader: NameReader, name: str) -> ThreadRuns:
    from compaction_store.evaluation import read_thread
    from compaction_store.evaluation.evaluator import replay_thread

    thread = read_thread(store, name, labels=setup.settings.judge is not None, names=reader)
    return replay_thread(thread, setup.policies, setup.settings)


# ---- in another process


def _worker(url: str | None, tenant: str, wanted: ReplayOptions) -> Callable[[str], ThreadRuns]:
    from compaction_store.language.names import NameReader

    store = opened_in_process(TenantOptions(url=url, tenant=tenant).reader())
    return partial(_of_thread, store, wanted.made(), NameReader())


def _in_process(replay: Callable[[str], ThreadRuns], names: tuple[str, ...]) -> list[ThreadRuns]:
    return [replay(name) for name in names]


# ---- several processes


_Part = TypeVar("_Part")
_Found = TypeVar("_Found")
_Opened = TypeVar("_Opened")
_made: Callable[[], Any]


def process_count(wanted: int | None, parts: int) -> int:
    """Returns how many processes to use: as many as wanted, or one for each core, but no more than there are parts."""
    return max(1, min(wanted or os.cpu_count() or 1, parts))


def in_processes(
    number: int, work: Callable[[Any, _Part], _Found], parts: Sequence[_Part], make: Callable[..., Any], *given: Any
) -> Iterator[_Found]:
    """Yields the result of `work` for each part. Its first argument is what `make(*given)` returned in the process."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin, initargs=(make, *given))
    try:
        yield from pool.map(partial(_work, work), parts)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(make: Callable[..., Any], *given: Any) -> None:
    global _made  # noqa: PLW0603 — how a pool hands something to its processes
    _made = cache(partial(make, *given))


def _work(work: Callable[[Any, _Part], _Found], part: _Part) -> _Found:
    return work(_made(), part)


def opened_in_process(manager: AbstractContextManager[_Opened]) -> _Opened:
    """Enters a context manager in a process of the pool, and leaves it when the process ends."""
    stack = ExitStack()
    entered = stack.enter_context(manager)
    atexit.register(stack.close)
    return entered


# ---- the page of an evaluation


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
    parts += [
        "<h2>Cost</h2>",
        *table(("policy", *COSTS), [(escape(one.policy), *cost_cells(one)) for one in found.policies]),
    ]
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
    about = (
        "Measured: from the usage that calls reported. Modelled: from the sizes of views. They are never added up."
        " Needed: compactions without which the next call would not have fitted the window. No comparison has them."
    )
    said = [(result.policy, result.advice) for result in found.policies]
    lines = [f'<p class="loss">{escape(f"{policy}: {text}")}</p>' for policy, text in said if text is not None]
    best = best_policy(found)
    return [
        *table(heads, rows), *lines, *([] if best is None else [f"<p>{escape(best)}</p>"]),
        f'<p class="note">{about}</p>',
    ]  # fmt: skip


def _red(text: str, *, is_red: bool) -> str:
    return f'<span class="loss">{text}</span>' if is_red else text
