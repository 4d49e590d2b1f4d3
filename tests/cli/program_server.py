"""Keeps the program loaded and forks it for every run, because loading it takes longer than most runs.

Started with the path of a socket. A request is JSON (arguments, environment, folder) with three open files; the answers
are the process's number and, when it has ended, its exit code. If there is a `script`, it is run instead of the
program.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Any, NoReturn

from compaction_store import migrate  # noqa: F401 — loaded for those who want it
from compaction_store.cli import main
from compaction_store.cli.program import VERBS, program


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Makes this process the program, as if it had been started with these arguments and files."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    script = request["script"]
    sys.argv = [script or "compaction-store", *request["arguments"]]
    # As Python opens them in a UTF-8 locale.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if script is None:
        main()
    else:
        sys.path[0] = os.path.dirname(script)  # noqa: PTH120 — as Python has it
        runpy.run_path(script, run_name="__main__")


def _end(error: SystemExit) -> NoReturn:
    """Ends like Python, but without freeing what was loaded: a fork would first have to copy it."""
    if isinstance(error.code, str):
        sys.stderr.write(f"{error.code}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(error.code if isinstance(error.code, int) else error.code is not None)


def serve(path: str) -> None:
    with redirect_stdout(StringIO()), suppress(SystemExit):
        # The first use of typer loads parts of it, and each verb its module.
        for verb in VERBS:
            assert callable(verb.function)
        program(["threads", "--help"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, _, _ = socket.recv_fds(connection, 1024 * 1024, 3)
    number = os.fork()
    if number == 0:
        connection.close()
        try:
            _become(json.loads(text), files)
            sys.exit(0)
        except SystemExit as error:
            _end(error)
    for file in files:
        os.close(file)
    connection.send(f"{number}\n".encode())
    _, status = os.waitpid(number, 0)
    connection.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
