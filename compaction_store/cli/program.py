"""The program: its verbs in the order in which they are needed, and how each of them ends.

What the store refuses and what a caller got wrong is one line on stderr and an exit code; only a mistake of this
package shows where it was made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compaction_store import __version__
from compaction_store.cli import (
    auditing,
    bundling,
    compacting,
    demo,
    deploying,
    erasing,
    exits,
    output,
    reading,
    stats,
    worker,
    writing,
)
from compaction_store.errors import CompactionStoreError, OutcomeUnknown

# The command, an example of it, and what it does.
VERBS: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("demo", "demo", demo.demo),
    ("migrate", "migrate --url postgresql://owner@host/database", deploying.migrate_),
    ("doctor", "doctor --url postgresql://app@host/database", deploying.doctor),
    ("threads", "threads --limit 20", reading.threads),
    ("append", "append t-1 --key turn-7 < messages.jsonl", writing.append),
    ("import", "import ./store", bundling.import_),
    ("view", "view t-1 --at 2026-05-01T12:30", reading.view),
    ("replay", "replay t-1 --payloads > t-1.jsonl", reading.replay),
    ("compactions", "compactions --since 7d --actor nightly", auditing.compactions),
    ("show", "show t-1 3", auditing.show),
    ("explain", "explain t-1 42", auditing.explain),
    ("events", "events t-1", auditing.events),
    ("stats", "stats t-1 --svg t-1.svg", stats.stats),
    ("compact", "compact t-1 --strategy sliding-window:retain=10 --window 200000 --dry-run", compacting.compact),
    ("worker", "worker --window 200000 --summarizer anthropic:model=NAME --summarizer extractive", worker.worker),
    ("revoke", "revoke t-1 3 --reason 'the order number was lost'", compacting.revoke),
    ("redact", "redact t-1 7 12-20 --reason 'asked for by the customer'", erasing.redact),
    ("erase", "erase t-1 --reason 'the contract has ended' --yes", erasing.erase),
    ("hold", "hold t-1 --reason 'a lawsuit'", erasing.hold),
    ("release", "release t-1 --reason 'the lawsuit is settled'", erasing.release),
    ("retain", "retain t-1 --until 2031-01-01 --reason 'tax law'", erasing.retain),
    ("verify", "verify --all", auditing.verify),
    ("export", "export --all --to ./store", bundling.export),
)


class Program(TyperGroup):
    """Turns whatever ends a verb into an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except CompactionStoreError as error:
            _tell(error)
            raise typer.Exit(exits.of(error)) from None
        except BrokenPipeError:
            output.broken_pipe()
        except KeyboardInterrupt:
            raise typer.Exit(exits.INTERRUPTED) from None
        return result


def _tell(error: CompactionStoreError) -> None:
    output.note(f"compaction-store: {error}")
    for more in getattr(error, "__notes__", ()):
        output.note(f"  {more}")
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
for _name, _example, _verb in VERBS:
    program.command(_name, epilog=f"\b\nExample:\n  compaction-store {_example}")(_verb)


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

    Verbs take --url, else $COMPACTION_STORE_URL, else run an embedded Postgres. What messages say is shown by view,
    replay and show, and by other verbs only with --text.
    """
