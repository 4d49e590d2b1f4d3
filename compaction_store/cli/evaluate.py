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
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import typer

import compaction_store
from compaction_store.cli import choices, options, values
from compaction_store.cli.bundles import REFUSED, Bundle, argument, misuse, option
from compaction_store.cli.options import ReadOptions, Reserve, TenantOptions, Trigger
from compaction_store.cli.output import Column, Output, ProgressBar, RedCell, note, private
from compaction_store.errors import InvalidInput
from compaction_store.module_data import ModuleData
from compaction_store.probes import PROBE_TYPES

if TYPE_CHECKING:
    from compaction_store import Reader, Summary
    from compaction_store.evaluation import Evaluation, Examiner, Judge, Judged, Policy, Rate
    from compaction_store.evaluation.evaluator import Settings, ThreadRuns
    from compaction_store.evaluation.judge import Ask
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
        if wanted.dry_run and found.asked is not None:
            calls, read = found.asked["calls"], found.asked["tokens"]
            text = f"--ask would make {values.count(calls, 'call')} with {read:,} tokens"
            out.said({"calls": calls, "input_tokens": read}, text)
            return
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


def show(out: Output, found: Evaluation) -> None:
    if out.as_json:
        out.json(found.as_dict())
        return
    skipped = "".join(f", {count:,} left out because {reason}" for reason, count in found.skipped.items())
    out.text(f"{values.count(found.threads, 'thread')}{skipped}", "bold")
    if not any(result.rates for result in found.policies):
        out.text("no compaction was made")
    for one in tables(found):
        show_figures(out, one)
    for text in notes(found):
        out.text(text)


def show_figures(out: Output, one: EvaluationTable) -> None:
    out.text()
    out.text(f"{one.title}: {one.about}" if one.about else one.title, "bold")
    out.grid([Column(head, right=at > 0, fold=at == 0, optional=True) for at, head in enumerate(one.heads)], one.rows)
    for text in one.notes:
        out.text(text, "red" if isinstance(text, RedCell) else None)


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
    ask: Annotated[str | None, option("--ask NAME:OPTIONS")] = None
    ask_replicates: Annotated[int, option("--ask-replicates N", min=1)] = 2
    ask_limit: Annotated[int, option("--ask-limit N", min=1)] = 4
    dry_run: Annotated[bool, option("--dry-run")] = False
    prices: Annotated[Path | None, option("--prices FILE")] = None
    model: Annotated[str | None, option("--model NAME")] = None
    keep_runs: ClassVar[bool] = False

    def made(self) -> Setup:
        """Returns the policies and the settings. Raises an error if an option is wrong."""
        if (self.prices is None) != (self.model is None):
            raise misuse("must be given together", "--prices and --model")
        if self.dry_run and self.ask is None:
            raise misuse("is required with --dry-run", "--ask")
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
            self.keep_runs, self._examiner(),
        )  # fmt: skip
        return Setup(check_policies([*(() if self.plant else (RECORDED,)), *self._policies()], settings), settings)

    def _policies(self) -> Iterator[Policy]:
        """Yields a policy for each combination of options, named by the strategy and the options that differ."""
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
            # A dry run calls no model.
            writer = "state" if self.dry_run and summarizer.startswith(("anthropic:", "openai:")) else summarizer
            yield Policy(" · ".join(parts), (choices.strategy([spec], [writer]),), budget)

    def _judge(self) -> Judge | None:
        from compaction_store.evaluation import Judge

        if self.judge is None or self.dry_run:
            return None
        return Judge(_model(self.judge, "--judge"), replicates=self.judge_replicates)

    def _examiner(self) -> Examiner | None:
        from compaction_store.evaluation import Examiner

        if self.ask is None:
            return None
        ask = _counted if self.dry_run else _model(self.ask, "--ask")
        return Examiner(ask, replicates=self.ask_replicates, limit=self.ask_limit)


def _model(spec: str, option: str) -> Ask:
    """Returns what asks a model with a prompt and a document."""
    made = choices.summarize([spec], option)
    if not hasattr(made, "answer"):
        raise misuse(f"must be anthropic:model=NAME or openai:model=NAME, not {spec!r}", option)
    return made.answer  # type: ignore[no-any-return]


def _counted(prompt: str, document: str) -> Summary:
    """Answers nothing, with the tokens that a model would read."""
    from compaction_store import Summary, tokens

    return Summary("0", usage={"input_tokens": tokens.count_text(prompt) + tokens.count_text(document)})


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
    # A judge and an examiner count their calls and tokens, so they must run in one process.
    if count == 1 or wanted.judge or wanted.ask or (processes is None and len(names) < _LEAST_THREADS):
        yield from map(partial(_of_thread, store, setup, NameReader()), names)
        return
    for found in in_processes(count, _in_process, parts, _worker, url, tenant, wanted):
        yield from found


def _of_thread(store: Reader, setup: Setup, reader: NameReader, name: str) -> ThreadRuns:
    from compaction_store.evaluation import read_thread
    from compaction_store.evaluation.evaluator import replay_thread

    thread = read_thread(store, name, labels=setup.settings.judge is not None, names=reader)
    return replay_thread(thread, setup.policies, setup.settings)


def _worker(url: str | None, tenant: str, wanted: ReplayOptions) -> Callable[[str], ThreadRuns]:
    from compaction_store.language.names import NameReader

    store = opened_in_process(TenantOptions(url=url, tenant=tenant).reader())
    return partial(_of_thread, store, wanted.made(), NameReader())


def _in_process(replay: Callable[[str], ThreadRuns], names: tuple[str, ...]) -> list[ThreadRuns]:
    return [replay(name) for name in names]


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


# ---- the tables of an evaluation, for the terminal and for a page. They quote no messages


_DATA = ModuleData(__file__)


class EvaluationTable(NamedTuple):
    """A table of an evaluation, with the sentence above it and those below it. A red note is a `RedCell`."""

    title: str
    about: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()


def tables(found: Evaluation) -> Iterator[EvaluationTable]:
    for kind, about in PROBE_TYPES.items():
        if rows := list(_probes(found, kind)):
            yield EvaluationTable(kind, about, _DATA.values["probes"], rows)
    yield EvaluationTable("cost", "", _DATA.values["cost"], [
        (
            each.policy, *(f"{each.outcomes[name]:,}" for name in ("applied", "rejected", "failed")),
            f"{each.calls:,}", f"{each.tokens_per_call:,.0f}", f"{each.over_window:,}", f"{each.summarizer_tokens:,}",
            f"{each.folded_threads:,}", f"{each.unreadable:,}", f"{each.seconds:.1f}",
        )
        for each in found.policies
    ])  # fmt: skip
    if judged := [(each.policy, each.judged) for each in found.policies if each.judged is not None]:
        about = _DATA.text("judge").format(model=judged[0][1].model or "a callable", times=judged[0][1].replicates)
        rows = [(policy, *_verdicts(one)) for policy, one in judged]
        yield EvaluationTable("judge", about, _DATA.values["judged"], rows, [_DATA.text("people")])
    if any(each.money for each in found.policies):
        yield money(found)


def notes(found: Evaluation) -> Iterator[str]:
    """Yields the sentences below the tables."""
    from compaction_store.evaluation.results import OPEN_LOOP

    if found.asked is not None:
        why = ", ".join(f"{count:,} {name}" for name, count in found.asked["errors"].items())
        told = {"model": found.asked["model"] or "a callable", "why": f" ({why})" if why else ""}
        yield _DATA.text("asked").format_map({**found.asked, **told})
    if any(result.unreadable for result in found.policies):
        yield _DATA.text("sealed")
    if any(result.replicates > 1 for result in found.policies):
        yield _DATA.text("replicates")
    yield OPEN_LOOP


def _probes(found: Evaluation, kind: ProbeType) -> Iterator[tuple[str, ...]]:
    base = found.base(kind)
    for result in found.policies:
        if (rate := result.rates.get(kind)) is not None and base is not None:
            spread = "" if rate.spread is None else f"{100 * rate.spread[0]:.1f} to {100 * rate.spread[1]:.1f}"
            less = None if result.policy == base else found.difference(kind, result.policy, base)
            shares = (100 * kept / asked if asked else 0.0 for asked, kept in result.rounds.get(kind, ()))
            yield (
                result.policy, f"{rate.asked:,}", f"{rate.kept:,}", *_share(rate),
                f"{result.lost_in_100_calls(kind):.1f}",
                "" if less is None else f"{100 * less.points:+.1f} ({100 * less.low:.1f} to {100 * less.high:.1f})",
                spread, " ".join(f"{share:.0f}" for share in shares),
                "" if (cliff := result.cliff(kind)) is None else RedCell(f"in round {cliff}"),
            )  # fmt: skip


def _share(found: Rate | Judged) -> tuple[str, str]:
    return f"{100 * found.share:.1f} %", f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def _verdicts(found: Judged) -> Iterator[str]:
    """Yields the numbers of a judge's verdicts, and in how many of them it agrees with people."""
    yield from (f"{found.asked:,}", f"{found.good:,}", *_share(found))
    yield from (f"{count:,}" for count in (found.split, found.undecided, found.failed))
    same = found.agreement
    kappa = "no kappa" if same is None or same.kappa is None else f"kappa {same.kappa:.2f}"
    yield "" if same is None else f"{same.same:,} of {same.labelled:,}, {kappa}"


def money(found: Evaluation) -> EvaluationTable:
    """Returns the costs and savings of each policy on each basis that has any, with advice."""
    from compaction_store.evaluation.money import BASES
    from compaction_store.evaluation.results import best_policy

    rows: list[tuple[str, ...]] = []
    for result, basis in product(found.policies, BASES):
        total = result.money_sum(basis)
        if total.requests or total.folds:
            names = ("requests", "saved", "billed_anew", "summarizers", "net")
            *paid, net = (f"{getattr(total, name):,.4f}" for name in names)
            losing, *others = (f"{count:,}" for count in (total.losing, total.needed, total.unknown))
            rows.append((
                result.policy, basis, *paid, RedCell(net) if total.net < 0 else net,
                RedCell(losing) if total.losing else losing, *others,
            ))  # fmt: skip
    advice = [RedCell(f"{each.policy}: {each.advice}") for each in found.policies if each.advice is not None]
    best = best_policy(found)
    currency = next(result.money[0].currency for result in found.policies if result.money)
    said = [_DATA.text("basis"), *advice, *([] if best is None else [best])]
    return EvaluationTable(f"money in {currency}", "", _DATA.values["money"], rows, said)


def page(title: str, found: Evaluation, body: Iterable[str] = ()) -> str:
    """Returns the page. `body` is HTML to put before the figures."""
    skipped = "".join(f", {count:,} left out because {escape(reason)}" for reason, count in found.skipped.items())
    parts = [f"<p>{found.threads:,} threads{skipped}. Seed {found.seed}.</p>", *body]
    parts += [text for one in tables(found) for text in section(one)]
    parts += [f'<p class="note">{escape(said)}</p>' for said in notes(found)]
    fields = {"title": escape(title), "style": _DATA.text("style"), "body": "\n".join(parts)}
    fields["figures"] = escape(json.dumps(found.as_dict(), indent=1))
    return Template(_DATA.text("page")).substitute(fields)


def section(one: EvaluationTable) -> Iterator[str]:
    """Yields a table as HTML, with its heading. The page of the same threads is the same, so it has no times."""
    kept = [at for at, head in enumerate(one.heads) if head != "seconds"]
    title = one.title.replace("_", " ")
    yield f'<h2>{escape(title[:1].upper() + title[1:])}</h2><p class="note">{escape(one.about)}</p>'
    head = "".join(f'<th scope="col">{escape(one.heads[at])}</th>' for at in kept)
    yield f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>'
    for row in one.rows:
        yield f"<tr>{''.join(f'<td>{_cell(row[at])}</td>' for at in kept)}</tr>"
    yield "</tbody></table></div>"
    for said in one.notes:
        yield f'<p class="{"loss" if isinstance(said, RedCell) else "note"}">{escape(said)}</p>'


def _cell(text: str) -> str:
    return f'<span class="loss">{escape(text)}</span>' if isinstance(text, RedCell) else escape(text)
