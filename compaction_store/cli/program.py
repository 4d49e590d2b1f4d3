"""The program: its commands, which are called verbs here, and the conversion of errors to exit codes.

A refusal by the store, or a wrong call, prints its text on stderr and sets an exit code. Only a bug shows a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from compaction_store import __version__
from compaction_store.audit.safe_text import shown
from compaction_store.cli import exits
from compaction_store.cli.bundles import expanded, option
from compaction_store.cli.exits import misuse
from compaction_store.errors import CompactionStoreError, OutcomeUnknown


class Verb(NamedTuple):
    """A command. `place` names the module and the function that implement it, as in "view.threads".

    The module is imported when the command is called.
    """

    name: str
    short: str
    example: str
    place: str

    @property
    def function(self) -> Callable[..., None]:
        module, _, name = self.place.partition(".")
        found: Callable[..., None] = getattr(import_module(f"compaction_store.cli.{module}"), name)
        return found


# The commands by purpose, in the order in which users need them.
PANELS: dict[str, tuple[Verb, ...]] = {
    "Store": (
        Verb("demo", "Demonstrate the store on a new thread.", "demo", "demo.demo"),
        Verb("threads", "List the threads.", "threads --limit 20", "view.threads"),
        Verb(
            "append", "Append messages from a file or a pipe.", "append t-1 --key turn-7 < messages.jsonl",
            "append.append",
        ),
        Verb("view", "Show a thread's view, now or at a past time.", "view t-1 --at 2026-05-01T12:30", "view.view"),
        Verb("replay", "Show messages as they were appended.", "replay t-1 --payloads > t-1.jsonl", "view.replay"),
        Verb(
            "compact", "Compact threads, or show the plan.",
            "compact t-1 --strategy sliding-window:retain=10 --window 200000 --dry-run", "compact.compact",
        ),
        Verb(
            "worker", "Compact threads that are due, until stopped.",
            "worker --window 200000 --summarizer anthropic:model=NAME --summarizer extractive", "worker.worker",
        ),
        Verb(
            "revoke", "Revoke a compaction.", "revoke t-1 3 --reason 'the order number was lost'", "compact.revoke",
        ),
        Verb("adopt", "Adopt a compaction that a provider made.", "adopt t-1 2", "compact.adopt"),
        Verb("fork", "Copy a thread, or its beginning, as a new one.", "fork t-1 t-1-again --at 41", "rewind.fork"),
        Verb(
            "repair", "Summarize a compaction's span again.",
            "repair t-1 3 --summarizer anthropic:model=NAME --reason 'the order number was lost'", "rewind.repair",
        ),
        Verb(
            "rewind", "End a view at an earlier message.", "rewind t-1 41 --reason 'asked again'",
            "rewind.rewind",
        ),
        Verb("clear", "Empty a thread's view.", "clear t-1 --hide", "rewind.clear"),
        Verb("turn", "Run a command in a turn on a thread.", "turn t-1 --wait 10 -- ./answer t-1", "append.turn"),
        Verb(
            "import", "Import threads from bundles and other programs.", "import ~/.claude/projects --skip-bad",
            "import_threads.import_",
        ),
        Verb("export", "Export threads as verifiable bundles.", "export --all --to ./store", "export.export"),
    ),
    "Audit": (
        Verb(
            "compactions", "List compaction records, with filters.", "compactions --since 7d --actor nightly",
            "compactions.compactions",
        ),
        Verb("show", "Show a record beside the messages it replaces.", "show t-1 3", "show.show"),
        Verb("tree", "Show the records that a record was made from.", "tree t-1 3", "show.tree"),
        Verb("explain", "Show what happened to a message.", "explain t-1 42", "compactions.explain"),
        Verb("events", "List erasures, refusals, holds and forks.", "events --since 7d", "compactions.events"),
        Verb(
            "autopsy", "Show what Claude Code's or Codex's compactions lost.",
            "autopsy ~/.claude/projects --out autopsy.html", "autopsy.autopsy",
        ),
        Verb(
            "evaluate", "Compare what strategies would lose and cost.",
            "evaluate --strategy sliding-window:retain=10 --window 200000 --out report.html",
            "evaluate.evaluate_threads",
        ),
        Verb(
            "report", "Write an audit report: one file that opens offline.", "report t-1 --to t-1.html",
            "report.report",
        ),
        Verb("serve", "Serve pages for an auditor.", "serve --tenant default", "serve.serve"),
        Verb("stats", "Show tokens over time, and the cost of summaries.", "stats t-1 --svg t-1.svg", "stats.stats"),
        Verb("verify", "Verify the chains of threads and bundles.", "verify --all", "verify.verify"),
        Verb(
            "checkpoint", "Sign the heads of all threads.",
            "checkpoint /media/audit/log.jsonl --key /media/key/audit.key", "checkpoint.checkpoint",
        ),
    ),
    "Erase": (
        Verb("search", "Find a text in messages and records.", "search 'elm street'", "search.search"),
        Verb(
            "redact", "Erase messages and the records made from them.",
            "redact t-1 7 12-20 --reason 'requested by the customer'", "erase.redact",
        ),
        Verb("erase", "Erase a whole thread.", "erase t-1 --reason 'the contract has ended' --yes", "erase.erase"),
        Verb(
            "hold", "Forbid erasing from a thread until its release.", "hold t-1 --reason 'a lawsuit'", "erase.hold",
        ),
        Verb("release", "End a hold.", "release t-1 --reason 'the lawsuit is settled'", "erase.release"),
        Verb(
            "retain", "Forbid erasing before a date.", "retain t-1 --until 2031-01-01 --reason 'tax law'",
            "erase.retain",
        ),
    ),
    "Operate": (
        Verb(
            "migrate", "Upgrade a database's schema.", "migrate --url postgresql://owner@host/database",
            "operate.migrate_",
        ),
        Verb("doctor", "Diagnose the installation and the database.", "doctor --url postgresql://app@host/database",
             "operate.doctor"),
        Verb("grant", "Grant a login one of the schema's roles.", "grant app_login application", "operate.grant"),
        Verb("tenants", "List the tenants.", "tenants --url postgresql://postgres@host/database", "operate.tenants"),
        Verb("mcp", "Serve a tenant's threads to agents over MCP.", "mcp --tenant default", "serve.mcp"),
        Verb("url", "Print the URL of the database.", "url --wait", "operate.url_"),
        Verb(
            "distribute", "Distribute the tables over a Citus cluster.",
            "distribute --shards 32 --url postgresql://postgres@coordinator/database", "operate.distribute",
        ),
        Verb(
            "rebalance", "Move shards to new nodes of a Citus cluster.",
            "rebalance --url postgresql://postgres@coordinator/database", "operate.rebalance",
        ),
        Verb("docs", "Print a page of the documentation, or list the pages.", "docs erasure", "operate.docs"),
    ),
}  # fmt: skip
VERBS = tuple(chain.from_iterable(PANELS.values()))
_BY_NAME = {verb.name: verb for verb in VERBS}


# Depending on its version, typer contains a copy of click or uses the installed click.
_CLICK = "typer._click" if find_spec("typer._click") is not None else "click"
_exceptions: Any = import_module(f"{_CLICK}.exceptions")
_Misuse: type[Exception] = _exceptions.UsageError
_ClickException: Any = _exceptions.ClickException
_NoArguments: Any = getattr(_exceptions, "NoArgsIsHelpError", ())
_CompletionItem: Any = import_module(f"{_CLICK}.shell_completion").CompletionItem
_OF_VERBS = frozenset({"--url", "--tenant", "--json", "--table"})


class Program(TyperGroup):
    """The group of all commands. It sets the exit code, and imports only the command that is called."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 — as click calls it
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 — as click calls it
        return self.commands.get(cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ARG002 — as click calls it
        """Completes the names of commands and the options of the program. Commands complete their own options."""
        options = [name for option in self.params for name in option.opts if incomplete.startswith("-")]
        offered = [(verb.name, verb.short) for verb in VERBS] + [(name, "") for name in options]
        return [_CompletionItem(name, help=said) for name, said in offered if name.startswith(incomplete)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] in _OF_VERBS:
            raise misuse("must come after the command", args[0].partition("=")[0])
        with _shown_misuse():
            return super().parse_args(ctx, args)

    def main(self, *arguments: Any, **more: Any) -> Any:
        """Runs the program. Prints a usage error in one line."""
        is_standalone = more.get("standalone_mode", True)
        try:
            code = super().main(*arguments, **more | {"standalone_mode": False})
        except typer.Abort:
            _note("compaction-store: aborted")
            code = exits.REFUSED
        except _ClickException as error:
            code = error.exit_code
            if isinstance(error, _NoArguments):
                error.show()
            else:
                _note(f"compaction-store: {_in_one_line(error)}")
        if is_standalone:
            sys.exit(code)
        return code

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 — as click calls it
        width = max(len(verb.name) for verb in VERBS)
        for panel, verbs in PANELS.items():
            with formatter.section(panel):
                # All panels get the same width, so that their columns align.
                formatter.write_dl([(verb.name.ljust(width), verb.short) for verb in verbs])

    def invoke(self, ctx: Any) -> Any:
        try:
            with _shown_misuse():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except CompactionStoreError as error:
            _print_error(error)
            raise typer.Exit(exits.of(error)) from None
        except BrokenPipeError:
            _output().broken_pipe()
        except OSError as error:
            _note(f"compaction-store: {error.strerror or type(error).__name__}")
            _output().unwritten()
        except SystemExit as error:
            _note("compaction-store: a callback or a summarizer ended the program")
            raise typer.Exit(exits.REFUSED) from error
        except KeyboardInterrupt:
            raise typer.Exit(exits.INTERRUPTED) from None
        return result


@contextmanager
def _shown_misuse() -> Iterator[None]:
    """Escapes the text of usage errors, because they quote arguments, such as file names that somebody else chose."""
    try:
        yield
    except _Misuse as error:
        if not isinstance(error, _NoArguments):
            error.message = shown(error.message)  # type: ignore[attr-defined]
        raise


def _output() -> Any:
    """Imports the module `output`. This is done late, because loading rich takes half the time of a short command."""
    return import_module("compaction_store.cli.output")


def _note(text: str) -> None:
    _output().note(text)


# Options that other programs have, and the options that say the same here.
_ELSEWHERE = {"--port": "--listen", "--host": "--listen", "--bind": "--listen", "--database": "--url", "--dsn": "--url"}


def _in_one_line(error: Any) -> str:
    instead = _ELSEWHERE.get(getattr(error, "option_name", ""))
    if instead is not None and any(instead in option.opts for option in error.ctx.command.params):
        error.possibilities = [instead]
    text = " ".join(error.format_message().split()).replace("Value error, ", "").removesuffix(".")
    verb = getattr(getattr(error, "ctx", None), "command_path", "compaction-store")
    return f"{text}; see {verb} --help"


def _print_error(error: CompactionStoreError) -> None:
    _note(f"compaction-store: {error}")
    for more in getattr(error, "__notes__", ()):
        _note(f"  {more}")
    for found in getattr(error, "findings", ()):
        _note(f"  {found}")
    if isinstance(error, OutcomeUnknown) and error.key is not None:
        _note(f"  the key is {error.key}")


program = typer.Typer(
    cls=Program,
    # Help is plain text, for every terminal and for docs/cli.md. Tracebacks show no values, which may be messages.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=exits.EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@cache
def _command(verb: Verb) -> Any:
    """Returns typer's command object for a command, as `Typer.command` would make it."""
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    epilog = f"\b\nExample:\n  compaction-store {verb.example}"
    alone.command(verb.name, short_help=verb.short, epilog=epilog)(expanded(verb.function))
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """A mapping of names to command objects, which are created when they are looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(_BY_NAME[name])

    def __contains__(self, name: object) -> bool:
        return name in _BY_NAME

    def __iter__(self) -> Iterator[str]:
        return iter(_BY_NAME)

    def __len__(self) -> int:
        return len(_BY_NAME)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"compaction-store {__version__}")
        raise typer.Exit


@program.callback()
def compaction_store(
    version: Annotated[
        bool, option("--version", "Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A persistent conversation store on Postgres, with auditable compaction records.

    The database is the one that --url or else $COMPACTION_STORE_URL names; without both, it is an embedded Postgres.
    Only view, replay, show, export, report and autopsy output the content of messages; some others do with --text.
    """
