"""Reads a stored thread for a replay: its messages and the records of its compactions, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from compaction_store.evaluation.judging import labels_of
from compaction_store.language.names import NameReader
from compaction_store.models import Compaction, Message
from compaction_store.models.vocabulary import EVENT_KINDS, KINDS
from compaction_store.probes import Planted, ThreadFacts, ThreadMessage


@dataclass(frozen=True)
class RecordedThread:
    """The messages and the whole compaction log of a thread."""

    thread_id: str
    messages: tuple[Message, ...] = field(repr=False)
    records: tuple[Compaction, ...] = field(default=(), repr=False)
    #: Whether an entry of a kind that this release does not know may have changed what the model was sent.
    is_unknown: bool = False
    #: The sentences that were planted into messages, by seq.
    planted: Mapping[int, tuple[Planted, ...]] = field(default_factory=dict, repr=False)
    #: The verdicts of people on records, by number.
    labels: Mapping[int, bool] = field(default_factory=dict, repr=False)
    #: A reader of the names in texts. Threads that share a reader are probed faster, because it remembers names.
    reader: NameReader | None = field(default=None, repr=False, compare=False)

    @cached_property
    def facts(self) -> ThreadFacts:
        """The facts of the messages that the probes need. They are computed once for all policies."""
        return ThreadFacts((
            ThreadMessage(
                message.seq, message.payload, message.tokens, _occurred(message), is_summary(message),
                self.planted.get(message.seq, ()),
            )
            for message in self.messages
        ), self.reader)  # fmt: skip

    @cached_property
    def folds(self) -> list[Compaction]:
        """The records that changed what the model was sent, in order.

        These are the applied records. If there are none, as in most imported threads, these are the observed summaries,
        which were made by the program that the thread was imported from.
        """
        applied = [record for record in self.records if record.outcome == "applied"]
        observed = [
            record for record in self.records
            if record.outcome == "observed" and record.kind == "summary" and record.start_seq is not None
        ]  # fmt: skip
        return applied or observed

    @property
    def is_erased_in_part(self) -> bool:
        """Whether the content of a message was erased. An evaluation needs all messages."""
        return any(message.payload is None for message in self.messages)

    def log(self) -> Iterator[Message | Compaction]:
        """Yields messages and folds in the order of their pos."""
        entries: list[Message | Compaction] = [*self.messages, *self.folds]
        yield from sorted(entries, key=lambda entry: entry.pos)


def is_summary(message: Message) -> bool:
    """Returns whether a message of an imported thread is the summary with which its program continued."""
    return message.meta is not None and message.meta.get("is_compact_summary") is True


def _occurred(message: Message) -> datetime:
    """Returns the time of a message. An imported message was stored later, so the time is in its meta."""
    at = None if message.meta is None else message.meta.get("occurred_at")
    try:
        return datetime.fromisoformat(at) if isinstance(at, str) else message.created_at
    except ValueError:
        return message.created_at


def read_thread(
    reader: Any, thread_id: str, *, labels: bool = False, names: NameReader | None = None
) -> RecordedThread:
    """Reads a thread of a `Reader` or `Store`; with `labels`, also the verdicts of people on its records.

    Threads that share `names`, a reader of names, are probed faster.
    """
    records, events = tuple(reader.compactions(thread_id)), tuple(reader.audit.events(thread_id))
    is_unknown = any(record.outcome == "applied" and record.kind not in KINDS for record in records) or any(
        event.critical and event.kind not in EVENT_KINDS for event in events
    )
    return RecordedThread(
        thread_id, tuple(reader.replay(thread_id)), records, is_unknown,
        labels=labels_of(events) if labels else {}, reader=names,
    )  # fmt: skip
