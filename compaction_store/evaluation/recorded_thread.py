"""A stored thread as it is replayed: its messages and its applied records, in the order of their positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from compaction_store.models import Compaction, Message
from compaction_store.probes import ThreadFacts, ThreadMessage


@dataclass(frozen=True)
class RecordedThread:
    """The messages and the whole compaction log of a thread."""

    thread_id: str
    messages: tuple[Message, ...] = field(repr=False)
    records: tuple[Compaction, ...] = field(default=(), repr=False)

    @cached_property
    def facts(self) -> ThreadFacts:
        """The facts that the probes need of the messages; read once, for any number of policies."""
        return ThreadFacts(
            ThreadMessage(message.seq, message.payload, message.tokens, message.created_at)
            for message in self.messages
        )  # fmt: skip

    @property
    def applied(self) -> list[Compaction]:
        """The records that changed the view, in order."""
        return [record for record in self.records if record.outcome == "applied"]

    @property
    def is_erased_in_part(self) -> bool:
        """Whether content that would be needed to judge it is gone."""
        return any(message.payload is None for message in self.messages)

    def log(self) -> Iterator[Message | Compaction]:
        """Yields messages and applied records by position."""
        entries: list[Message | Compaction] = [*self.messages, *self.applied]
        yield from sorted(entries, key=lambda entry: entry.pos)


def read_thread(reader: Any, thread_id: str) -> RecordedThread:
    """Reads a thread of a `Reader` or `Store`."""
    return RecordedThread(thread_id, tuple(reader.replay(thread_id)), tuple(reader.compactions(thread_id)))
