"""Starts real processes that use an embedded Postgres, waits for them, and kills them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction_store import embedded

IS_ROOT = os.geteuid() == 0
PATIENCE = 120
as_root = pytest.mark.skipif(not IS_ROOT, reason="needs root, to be somebody else or to mount a file system")
# A folder in memory, because making a server mostly waits for the disk.
FAST_FOLDER = "/dev/shm"  # noqa: S108 — the folders in it have random names
OPEN = "import sys, time, compaction_store as cs\nstore = cs.Store.open()\n"
APPEND = 'print(store.append("t", {"role": "user", "content": "hi"})[0].seq, flush=True)\n'


def is_roomy(folder: str) -> bool:
    return Path(folder).is_dir() and shutil.disk_usage(folder).free > 2**30


def server_folder(home: Path) -> Path:
    return home / "compaction-store" / "postgres"


started_processes: list[subprocess.Popen[str]] = []


def start_python(code: str, home: Path, *, user: int | None = None, **environment: str) -> subprocess.Popen[str]:
    """Starts Python with this data home and no other settings. Its code may leave a store open, but must not warn."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("COMPACTION_", "XDG_", "HOME"))}
    variables |= {"XDG_DATA_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    options: dict[str, Any] = {}
    python = sys.executable
    if user is not None:
        options = {"user": user, "group": user, "extra_groups": []}
        variables["PYTHONPATH"] = os.pathsep.join((str(Path(embedded.__file__).parents[1]), *sys.path[1:]))
        python = _python_for(options | {"env": variables})
    process = subprocess.Popen(
        (python, "-W", "error", "-W", "ignore::ResourceWarning", "-c", code),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd="/", env={k: v for k, v in variables.items() if v}, **options,
    )  # fmt: skip
    started_processes.append(process)
    return process


def _python_for(options: dict[str, Any]) -> str:
    """Returns an interpreter that an ordinary user can run.

    This is the current interpreter, unless it or this package is in root's home.
    """
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            command = (python, "-c", "import compaction_store")
            if not subprocess.run(command, check=False, cwd="/", capture_output=True, **options).returncode:
                return python
    pytest.skip("a plain user cannot run this Python, or not read this package")


def output_of(process: subprocess.Popen[str]) -> str:
    """Returns the output of a process. Fails if the process failed or gave a warning."""
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    return out


def run_python(code: str, home: Path, *, user: int | None = None, **environment: str) -> str:
    return output_of(start_python(code, home, user=user, **environment))


def refusal_of_open(home: Path, *, user: int | None = None, **environment: str) -> tuple[str, str]:
    """Returns the name and the text of the error that an open raised."""
    code = """
import compaction_store as cs
try:
    cs.Store.open()
except cs.CompactionStoreError as error:
    assert error.__context__ is None, error.__context__
    print(type(error).__name__, error)
"""
    name, _, text = run_python(code, home, user=user, **environment).strip().partition(" ")
    assert "\n" not in text
    return name, text


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)


def processes_in(home: Path) -> dict[int, str]:
    """Returns every process whose working directory is below a folder, such as servers and reapers."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(home.resolve()):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def servers(folder: Path) -> list[int]:
    """Returns the postmaster and its child processes."""
    return [pid for pid, command in processes_in(folder).items() if "postgres" in command and "reaper" not in command]


def reapers(folder: Path) -> list[int]:
    return [pid for pid, command in processes_in(folder).items() if "reaper" in command]


def kill_all(home: Path) -> None:
    """Kills the server, its children and the reaper at once, as if the machine went down."""
    while left := processes_in(home):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def stored_seqs(home: Path) -> list[int]:
    program = 'print([m.seq for m in store.replay("t")])\nassert store.audit.verify("t").findings == ()'
    out = run_python(OPEN + program, home)
    return [int(seq) for seq in out.strip().strip("[]").split(",")]


def kill(process: subprocess.Popen[str]) -> list[int]:
    """Kills a process and returns the seqs that it had acknowledged."""
    process.kill()
    out, _ = process.communicate(timeout=PATIENCE)
    # Leave out the last line, which may be incomplete.
    return [int(line) for line in out.split("\n")[:-1]]


@contextlib.contextmanager
def small_disk(where: Path, size: str) -> Iterator[None]:
    done = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", where), check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        wait_until(lambda: not processes_in(where))
        subprocess.run(("umount", where), check=True)


def resize_disk(where: Path, options: str) -> None:
    subprocess.run(("mount", "-o", f"remount,{options}", where), check=True)
