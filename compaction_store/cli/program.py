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
from compaction_store.cli.bundles import EXIT_CODES, INTERRUPTED, REFUSED, exit_code, expanded, misuse, option
from compaction_store.errors import CompactionStoreError, OutcomeUnknown
from compaction_store.module_data import ModuleData


class Verb(NamedTuple):
    """A command. `place` names its module, imported when it is called, and its function, as in "view.threads"."""

    name: str
    short: str
    example: str
    place: str
    help: str

    @property
    def function(self) -> Callable[..., None]:
        module, _, name = self.place.partition(".")
        found: Callable[..., None] = getattr(import_module(f"compaction_store.cli.{module}"), name)
        return found


# The commands by purpose, in the order in which users need them.
PANELS: dict[str, tuple[Verb, ...]] = {
    panel: tuple(Verb(name, **said) for name, said in verbs.items())
    for panel, verbs in ModuleData(__file__).values.items()
}
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
            code = REFUSED
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
            raise typer.Exit(exit_code(error)) from None
        except BrokenPipeError:
            _output().drop_output()
        except OSError as error:
            _note(f"compaction-store: {error.strerror or type(error).__name__}")
            _output().drop_output(REFUSED)
        except SystemExit as error:
            _note("compaction-store: a callback or a summarizer ended the program")
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
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
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@cache
def _command(verb: Verb) -> Any:
    """Returns typer's command object for a command, as `Typer.command` would make it."""
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    epilog = f"\b\nExample:\n  compaction-store {verb.example}"
    alone.command(verb.name, help=verb.help, short_help=verb.short, epilog=epilog)(expanded(verb.function))
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
