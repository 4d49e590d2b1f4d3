"""Session files of coding agents that tests write, and what a store has of them."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import compaction_store as cs
from compaction_store.importers.line_files import bytes_of
from compaction_store.watching import keeping


class Session:
    """A session file of Claude Code in a folder, to which lines are added."""

    def __init__(self, home: Path, name: str | None = None) -> None:
        self.id = name or str(uuid.uuid4())
        self.path = home / ".claude" / "projects" / "-home-me-work" / f"{self.id}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.count = 0

    @property
    def thread(self) -> str:
        return f"claude-code:{self.id}"

    def line(self, text: str = "", **more: Any) -> bytes:
        """Returns the next line, which is unlike all others."""
        self.count += 1
        found = {
            "type": "user", "sessionId": self.id, "uuid": str(uuid.uuid4()),
            "message": {"role": "user", "content": f"{text} {self.count}"}, **more,
        }  # fmt: skip
        return json.dumps(found).encode() + b"\n"

    def add(self, count: int = 1, text: str = "") -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                file.write(self.line(text))
                file.flush()

    def data(self) -> bytes:
        return self.path.read_bytes()


def kept(store: cs.Reader, thread: str, folder: Path, generation: int | None = None) -> bytes:
    """Returns the file as it is restored."""
    folder = folder / str(uuid.uuid4())
    first, *_ = keeping.restore(store, thread, folder, generation=generation)
    return first.path.read_bytes()


def stored_lines(store: cs.Reader, thread: str) -> Counter[bytes]:
    """Returns how often each line is stored, in all versions of the file together."""
    messages = [m.payload for m in store.replay(f"{thread}/lines")]
    return Counter(bytes_of(message) for message in messages if message is not None and message["type"] == "line")


def said(store: cs.Reader, thread: str) -> list[str]:
    """Returns the texts of a conversation's view."""
    return [str(message["content"]).strip() for message in store.view(thread).messages]


def assert_sound(store: cs.Reader, *threads: str) -> None:
    for thread in threads:
        report = store.audit.verify(thread)
        assert report.findings == ()
