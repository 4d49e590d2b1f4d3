"""Values that bulk loads and bundle imports take and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compaction_store.jsonable import AsDict
from compaction_store.models.messages import Payload
from compaction_store.models.vocabulary import ReplacingKind


@dataclass(frozen=True, slots=True)
class ToLoad:
    """A message to load, with its own meta and its own token count."""

    message: Any = field(repr=False)
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A compaction that a provider or a framework made. Pass it to `load.messages` at its place among the messages.

    The compaction covers the messages from `first` to `last` of the load, counted from 1. By default, it covers all
    messages before its place. The record has no span if there are no such messages or if `spans` is False. A summary
    that only the provider can read has no `summary_text`.
    """

    what: str
    kind: ReplacingKind = "summary"
    summary_text: str | None = field(default=None, repr=False)
    provider: Payload | None = field(default=None, repr=False)
    model: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    occurred_at: str | None = None
    first: int = 1
    last: int | None = None
    spans: bool = True


@dataclass(frozen=True, slots=True)
class Loaded(AsDict):
    """The result of a load. The load had `count` messages, and `added` of them were new.

    Other writers may have appended messages between the chunks of the load. `observed` is the number of compactions of
    providers that the load recorded.
    """

    first_seq: int
    last_seq: int
    count: int
    added: int
    observed: int = 0


@dataclass(frozen=True, slots=True)
class ThreadLoaded(AsDict):
    """The result of `load.threads` for one thread. If it was refused, `refused` has the error, and `loaded` is None."""

    thread_id: str
    loaded: Loaded | None
    refused: Exception | None = None


@dataclass(frozen=True, slots=True)
class Imported(AsDict):
    """The thread in an imported bundle. `added` is False if the thread already existed with the same head."""

    thread_id: str
    last_seq: int
    last_number: int
    last_pos: int
    head: bytes
    added: bool
