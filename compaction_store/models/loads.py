"""Bulk loads and bundle imports: what goes in besides messages, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from compaction_store.jsonable import AsDict
from compaction_store.models.messages import Payload


@dataclass(frozen=True, slots=True)
class ToLoad:
    """A message to load, with its own meta and its own token count."""

    message: Any = field(repr=False)
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A compaction made by a provider or a framework, given to `load` at its place among the messages.

    It covers the messages of the load from `first` to `last`, counted from 1; by default all messages before it. If
    there are none, or `spans` is False, its record has no span. A sealed summary has no text.
    """

    what: str
    kind: Literal["summary", "truncation", "removal"] = "summary"
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
    """The result of a load. `added` of its `count` messages were new; others may have written between its chunks."""

    first_seq: int
    last_seq: int
    count: int
    added: int
    observed: int = 0


@dataclass(frozen=True, slots=True)
class ThreadLoaded(AsDict):
    """The result for one thread of `load_threads`. If the thread was refused, `refused` has the error, not `loaded`."""

    thread_id: str
    loaded: Loaded | None
    refused: Exception | None = None


@dataclass(frozen=True, slots=True)
class Imported(AsDict):
    """The thread that a bundle contains. `added` is False if it was there already, with the same head."""

    thread_id: str
    last_seq: int
    last_number: int
    last_pos: int
    head: bytes
    added: bool
