"""Runs the program as its users do: in a separate process, in a pipe or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cli.program_client import request

SECRET = "marmalade-7741"
THREAD = "t-1"
_PATIENCE = 120
# A progress bar, from where it hides the cursor to where it erases itself.
_BAR = re.compile(r"\x1b\[\?25l(?:(?!\x1b\[\?25[lh]).)*\x1b\[\?25h\r(?:\x1b\[1A)?\x1b\[2K", re.DOTALL)


def environment(folder: Path, url: str | None, **more: str) -> dict[str, str]:
    """Returns an environment without this machine's variables, which could change the output."""
    gone = {"COMPACTION_STORE_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "ANTHROPIC_API_KEY"}
    found = {name: value for name, value in os.environ.items() if name not in gone}
    found |= {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        # Nothing is left running when a test is over.
        "COMPACTION_STORE_LINGER": "0",
        "TZ": "UTC",
        "PAGER": "cat",
        "TERM": "xterm-256color",
    }
    if url is not None:
        found["COMPACTION_STORE_URL"] = url
    return found | more


def command(*arguments: str) -> list[str]:
    """Returns the command for the program in a new interpreter."""
    return [sys.executable, "-m", "compaction_store", *arguments]


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Running:
    """A run under way."""

    def __init__(self, connection: socket.socket) -> None:
        self._answers = connection.makefile("r")
        connection.close()
        self.pid = int(self._answers.readline())

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        code = int(self._answers.readline())
        self._answers.close()
        return code


class Forks:
    """Starts the program by forks of one process that has it loaded."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="csf")
        self._path = f"{self._folder.name}/s"
        script = Path(__file__).with_name("program_server.py")
        self._server = subprocess.Popen([sys.executable, str(script), self._path], stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def start(
        self, arguments: Sequence[str], env: dict[str, str], folder: Path, files: list[int], script: Path | None = None
    ) -> Running:
        """Starts the program, or a Python script that may import it."""
        return Running(request(self._path, arguments, env, str(folder), files, None if script is None else str(script)))

    def command(self) -> str:
        """Returns a shell command that runs the program by a fork."""
        return shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("program_client.py")), self._path])

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._folder.cleanup()


class Run:
    """Runs the program on a test's database."""

    def __init__(self, forks: Forks, folder: Path, url: str | None) -> None:
        self._forks = forks
        self.folder = folder
        self.url = url

    def __call__(self, *arguments: str, stdin: str | bytes = b"", code: int | None = 0, **more: str) -> Ended:
        """Runs it in a pipe. Checks the exit code, and that no traceback is printed."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            source.write(given)
            source.seek(0)
            files = [source.fileno(), out.fileno(), err.fileno()]
            ended = self._forks.start(arguments, environment(self.folder, self.url, **more), self.folder, files).wait()
            out.seek(0)
            err.seek(0)
            done = Ended(ended, out.read().decode(), err.read().decode())
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, done
        return done

    def json(self, *arguments: str, stdin: str | bytes = b"", code: int = 0, **more: str) -> list[Any]:
        """Returns the JSON objects that it prints."""
        return [json.loads(line) for line in self(*arguments, stdin=stdin, code=code, **more).stdout.splitlines()]

    @contextmanager
    def in_background(self, *arguments: str, **more: str) -> Iterator[tuple[Running, Path]]:
        """Yields a run in the background and the file with its output. Kills it at the end if it still runs."""
        path = self.folder / f"out-{time.monotonic_ns()}"
        with path.open("wb") as out, Path(os.devnull).open("rb") as null:
            env = environment(self.folder, self.url, **more)
            files = [null.fileno(), out.fileno(), out.fileno()]
            running = self._forks.start(arguments, env, self.folder, files)
        killer = threading.Timer(_PATIENCE, running.kill, [signal.SIGKILL])
        killer.start()
        try:
            yield running, path
        finally:
            killer.cancel()
            killer.join()
            with suppress(ProcessLookupError):
                running.kill(signal.SIGKILL)

    def on_terminal(self, *arguments: str, code: int = 0, columns: int = 120, **more: str) -> str:
        """Returns the text that the terminal would show."""
        leader, follower = pty.openpty()
        env = environment(self.folder, self.url, COLUMNS=str(columns), **more)
        running = self._forks.start(arguments, env, self.folder, [follower] * 3)
        os.close(follower)
        seen = b""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if not select.select([leader], [], [], 1)[0]:
                continue
            try:
                part = os.read(leader, 65536)
            except OSError:
                # Linux raises this when the other end is closed.
                break
            if not part:
                break
            seen += part
        os.close(leader)
        assert running.wait() == code, seen.decode()
        return _BAR.sub("", seen.decode().replace("\r\n", "\n"))
