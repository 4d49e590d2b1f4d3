"""The program: its verbs in the order in which they are needed, and how each of them ends.

What the store refuses and what a caller got wrong is one line on stderr and an exit code; only a mistake of this
package shows where it was made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from compaction_store import __version__
from compaction_store.cli import (
    attesting,
    auditing,
    bundling,
    compacting,
    demo,
    deploying,
    documentation,
    erasing,
    exits,
    finding,
    importing,
    output,
    reading,
    stats,
    verifying,
    visible,
    worker,
    writing,
)
from compaction_store.cli.options import misuse
from compaction_store.errors import CompactionStoreError, OutcomeUnknown


class Verb(NamedTuple):
    name: str
    short: str
    example: str
    function: Callable[..., None]


# What the verbs are for, in the order in which they are needed.
PANELS: dict[str, tuple[Verb, ...]] = {
    "Store": (
        Verb("demo", "Show what the store does, on a thread of its own.", "demo", demo.demo),
        Verb("threads", "List the threads and where each stands.", "threads --limit 20", reading.threads),
        Verb(
            "append", "Append messages from a file or a pipe.", "append t-1 --key turn-7 < messages.jsonl",
            writing.append,
        ),
        Verb("view", "Show what the model should see, now or then.", "view t-1 --at 2026-05-01T12:30", reading.view),
        Verb("replay", "Show the messages as they were appended.", "replay t-1 --payloads > t-1.jsonl", reading.replay),
        Verb(
            "compact", "Compact threads, or show the plan.",
            "compact t-1 --strategy sliding-window:retain=10 --window 200000 --dry-run", compacting.compact,
        ),
        Verb(
            "worker", "Compact what is due, for as long as it runs.",
            "worker --window 200000 --summarizer anthropic:model=NAME --summarizer extractive", worker.worker,
        ),
        Verb("revoke", "Undo a compaction.", "revoke t-1 3 --reason 'the order number was lost'", compacting.revoke),
        Verb(
            "import", "Store threads from bundles and other programs.", "import ~/.claude/projects --skip-bad",
            importing.import_,
        ),
        Verb("export", "Write threads as bundles that prove themselves.", "export --all --to ./store", bundling.export),
    ),
    "Audit": (
        Verb(
            "compactions", "List compaction records by any filter.", "compactions --since 7d --actor nightly",
            auditing.compactions,
        ),
        Verb("show", "Show one record beside its originals.", "show t-1 3", auditing.show),
        Verb("explain", "Tell what happened to one message.", "explain t-1 42", auditing.explain),
        Verb("events", "List erasures, holds and retentions.", "events t-1", auditing.events),
        Verb("stats", "Show tokens over time, and what summaries cost.", "stats t-1 --svg t-1.svg", stats.stats),
        Verb("verify", "Check that threads and bundles are as they were written.", "verify --all", verifying.verify),
        Verb(
            "checkpoint", "Sign where every thread stands.",
            "checkpoint /media/audit/log.jsonl --key /media/key/audit.key", attesting.checkpoint,
        ),
    ),
    "Erase": (
        Verb("search", "Find a text in messages and records.", "search 'elm street'", finding.search),
        Verb(
            "redact", "Erase messages and what repeats them.",
            "redact t-1 7 12-20 --reason 'asked for by the customer'", erasing.redact,
        ),
        Verb("erase", "Erase a whole thread.", "erase t-1 --reason 'the contract has ended' --yes", erasing.erase),
        Verb("hold", "Forbid erasing from a thread.", "hold t-1 --reason 'a lawsuit'", erasing.hold),
        Verb("release", "End a hold.", "release t-1 --reason 'the lawsuit is settled'", erasing.release),
        Verb(
            "retain", "Forbid erasing before a date.", "retain t-1 --until 2031-01-01 --reason 'tax law'",
            erasing.retain,
        ),
    ),
    "Operate": (
        Verb(
            "migrate", "Bring a database's schema up to date.", "migrate --url postgresql://owner@host/database",
            deploying.migrate_,
        ),
        Verb("doctor", "Find out what is wrong, and the remedy.", "doctor --url postgresql://app@host/database",
             deploying.doctor),
        Verb("grant", "Give a login one of the schema's roles.", "grant app_login application", deploying.grant),
        Verb("tenants", "List the tenants.", "tenants --url postgresql://postgres@host/database", finding.tenants),
        Verb("url", "Print the URL of the database.", "url --wait", finding.url_),
        Verb(
            "distribute", "Spread the tables over a Citus cluster.",
            "distribute --shards 32 --url postgresql://postgres@coordinator/database", deploying.distribute,
        ),
        Verb("docs", "Print a page of the documentation, or list the pages.", "docs erasure", documentation.docs),
    ),
}  # fmt: skip
VERBS = tuple(chain.from_iterable(PANELS.values()))


# Whatever is wrong with how the program was called; typer has no public name for it.
_Misuse: type[Exception] = typer.BadParameter.__base__ or Exception
_OF_VERBS = frozenset({"--url", "--tenant", "--json", "--table"})


class Program(TyperGroup):
    """Turns whatever ends a verb into an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] in _OF_VERBS:
            raise misuse("stands after the verb", args[0].partition("=")[0])
        with _shown_misuse():
            return super().parse_args(ctx, args)

    def main(self, *arguments: Any, **more: Any) -> Any:
        """Tells a wrong call in one line, as every other error."""
        stands_alone = more.get("standalone_mode", True)
        try:
            code = super().main(*arguments, **more | {"standalone_mode": False})
        except typer.Abort:
            output.note("compaction-store: aborted")
            code = exits.REFUSED
        except _ClickException as error:
            code = error.exit_code
            if isinstance(error, _NoArguments):
                error.show()
            else:
                output.note(f"compaction-store: {_in_one_line(error)}")
        if stands_alone:
            sys.exit(code)
        return code

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 — as click calls it
        width = max(len(verb.name) for verb in VERBS)
        for panel, verbs in PANELS.items():
            with formatter.section(panel):
                # As wide as the widest of all panels, so that the columns stand in line.
                formatter.write_dl([(verb.name.ljust(width), verb.short) for verb in verbs])

    def invoke(self, ctx: Any) -> Any:
        try:
            with _shown_misuse():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except CompactionStoreError as error:
            _tell(error)
            raise typer.Exit(exits.of(error)) from None
        except BrokenPipeError:
            output.broken_pipe()
        except OSError as error:
            output.note(f"compaction-store: {error.strerror or type(error).__name__}")
            output.unwritten()
        except SystemExit as error:
            output.note("compaction-store: a callback or a summarizer ended the program")
            raise typer.Exit(exits.REFUSED) from error
        except KeyboardInterrupt:
            raise typer.Exit(exits.INTERRUPTED) from None
        return result


@contextmanager
def _shown_misuse() -> Iterator[None]:
    """An argument may be the name of a file that somebody else made."""
    try:
        yield
    except _Misuse as error:
        error.message = visible.shown(error.message)  # type: ignore[attr-defined]
        raise


# Typer brings its own copy of click, or uses the one that is installed.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_NoArguments: Any = getattr(sys.modules[_ClickException.__module__], "NoArgsIsHelpError", ())


def _in_one_line(error: Any) -> str:
    text = " ".join(error.format_message().split()).replace("Value error, ", "").removesuffix(".")
    verb = getattr(getattr(error, "ctx", None), "command_path", "compaction-store")
    return f"{text}; see {verb} --help"


def _tell(error: CompactionStoreError) -> None:
    output.note(f"compaction-store: {error}")
    for more in getattr(error, "__notes__", ()):
        output.note(f"  {more}")
    for found in getattr(error, "findings", ()):
        output.note(f"  {found}")
    if isinstance(error, OutcomeUnknown) and error.key is not None:
        output.note(f"  the key is {error.key}")


program = typer.Typer(
    cls=Program,
    # Plain text, for every terminal and for the documentation; and no values in a traceback, which may be messages.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=exits.EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for _verb in VERBS:
    _epilog = f"\b\nExample:\n  compaction-store {_verb.example}"
    program.command(_verb.name, short_help=_verb.short, epilog=_epilog)(_verb.function)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"compaction-store {__version__}")
        raise typer.Exit


@program.callback()
def compaction_store(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A persistent conversation store on Postgres, with auditable compaction records.

    Verbs use the database of --url, else of $COMPACTION_STORE_URL, else an embedded Postgres. The content of messages
    is shown by view, replay, show and export, and by other verbs only with --text.
    """
