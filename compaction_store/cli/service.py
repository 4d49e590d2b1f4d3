"""The signals of the long-running commands, and their log for programs."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

from compaction_store.cli.bundles import Bundle, misuse, option
from compaction_store.cli.output import note
from compaction_store.jsonable import time_text


class ServiceOptions(Bundle):
    """How a long-running command is operated."""

    log: Annotated[Literal["text", "json"], option("--log FORMAT")] = "text"

    @contextmanager
    def running(self, verb: str, stop: Callable[[], object] | None = None) -> Iterator[None]:
        """Sets up the log and the signals. The first SIGTERM or SIGINT calls `stop`; the second ends the process."""
        self.verb, self.stop = verb, stop
        #: Called on SIGHUP, and by a signal's handler.
        self.reload: Callable[[], object] = bool
        numbers = [] if stop is None else [signal.SIGTERM, signal.SIGINT]
        # On a terminal, SIGHUP says that the terminal was closed.
        numbers += [] if any(map(os.isatty, (0, 1, 2))) else [signal.SIGHUP]
        before = {number: signal.signal(number, self.handle) for number in numbers}
        if self.log == "json":
            handler = logging.StreamHandler()
            handler.setFormatter(_Lines())
            logging.getLogger().addHandler(handler)
            logging.getLogger(f"compaction_store.{verb}").setLevel(logging.INFO)
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)

    def handle(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self.reload()
            return
        if (stop := self.stop) is None:
            # Exit without cleaning up, because a Python thread that waits for a summary cannot be interrupted.
            os._exit(128 + number)
        self.stop = None
        stop()

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Prints a text for the person who runs the command, or logs it as JSON."""
        if self.log == "json":
            logging.getLogger(f"compaction_store.{self.verb}").log(level, "%s", text)
        else:
            note(text)


class _Lines(logging.Formatter):
    """Formats a record of the log as a line of JSON, without its exception, whose text may have content."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        said = {"time": time_text(datetime.fromtimestamp(record.created, UTC)), "level": record.levelname.lower()}
        # The lines of the pages and of the API are JSON already.
        said |= json.loads(text) if record.name.startswith("compaction_store.web") else {"message": text}
        more = {name: value for name, value in vars(record).items() if name.startswith("gen_ai.")}
        return json.dumps({**said, **more, "logger": record.name})


def parsed_address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:  # noqa: PLR2004 — the number of ports
        raise misuse(f"must look like 127.0.0.1:8000, not {text!r}", option)
    return host.strip("[]"), int(port)


def listening(text: str, option: str) -> tuple[socket.socket, str]:
    """Listens at the address that an option gives. Returns it with the port that was chosen if it was 0."""
    host, port = parsed_address(text, option)
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]
        raise misuse(f"cannot listen on {host}:{port}: {why}", option) from None
    return made, f"{text.rpartition(':')[0]}:{made.getsockname()[1]}"
