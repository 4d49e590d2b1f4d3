"""The command `turn`, which runs another command in a turn on a thread."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from compaction_store.cli.bundles import argument, option
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import Database, Thread

# If a signal ended the command, the exit code is this plus the number of the signal, as in a shell.
_SIGNALLED = 128


def turn(
    thread: Thread,
    command: Annotated[list[str], argument("COMMAND...", "The command and its arguments.")],
    wait: Annotated[float, option("--wait SECONDS", "How long to wait for the turn; 0 tries once.", min=0)] = 60.0,
    lease: Annotated[
        float, option("--lease SECONDS", "How long the turn lasts after this process is killed.", min=1)
    ] = 30.0,
    actor: Annotated[
        str | None, option("--actor NAME", "The actor that holds the turn.", show_default="user@host")
    ] = None,
    *,
    db: Database,
) -> None:
    """Runs a command in a turn on a thread. A thread has one turn at a time, and requests get their turns in order.

    The exit code is that of the command. Put `--` before a command that has options. Appends by the command do not
    check that the turn is still valid.
    """
    with db.store() as store, store.turn(thread, wait=wait, lease=lease, actor=actor):
        try:
            code = subprocess.run(command, check=False).returncode  # noqa: S603 — it is what the user asked for
        except OSError as error:
            raise misuse(f"cannot run the command: {error.strerror}", "COMMAND") from None
    raise typer.Exit(code if code >= 0 else _SIGNALLED - code)
