"""A stored thread as it is replayed: its messages and the records of its compactions, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
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
            ThreadMessage(
                message.seq, message.payload, message.tokens, _occurred(message), is_summary=is_summary(message)
            )
            for message in self.messages
        )  # fmt: skip

    @cached_property
    def folds(self) -> list[Compaction]:
        """The records that changed what the model was sent, in order.

        They are the applied ones. An imported thread has none: there the summaries that its program made are on record
        as observed.
        """
        applied = [record for record in self.records if record.outcome == "applied"]
        observed = [
            record for record in self.records
            if record.outcome == "observed" and record.kind == "summary" and record.start_seq is not None
        ]  # fmt: skip
        return applied or observed

    @property
    def is_erased_in_part(self) -> bool:
        """Whether content that would be needed to judge it is gone."""
        return any(message.payload is None for message in self.messages)

    def log(self) -> Iterator[Message | Compaction]:
        """Yields messages and folds by position."""
        entries: list[Message | Compaction] = [*self.messages, *self.folds]
        yield from sorted(entries, key=lambda entry: entry.pos)


def is_summary(message: Message) -> bool:
    """Returns whether a message of an imported thread is the summary that its program went on with."""
    return message.meta is not None and message.meta.get("is_compact_summary") is True


def _occurred(message: Message) -> datetime:
    """Returns when a message was said: an imported one was stored later."""
    at = None if message.meta is None else message.meta.get("occurred_at")
    try:
        return datetime.fromisoformat(at) if isinstance(at, str) else message.created_at
    except ValueError:
        return message.created_at


def read_thread(reader: Any, thread_id: str) -> RecordedThread:
    """Reads a thread of a `Reader` or `Store`."""
    return RecordedThread(thread_id, tuple(reader.replay(thread_id)), tuple(reader.compactions(thread_id)))
