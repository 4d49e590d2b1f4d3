"""A LangGraph checkpointer that wraps another checkpointer and keeps the messages of each thread in the store."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Literal, Self

from compaction_store import arguments
from compaction_store.adapters.common import Threads, deletion
from compaction_store.errors import InvalidInput, MissingExtra, ThreadNotFound
from compaction_store.store import AsyncStore, Store
from compaction_store.waiting import Work, drive, drive_async

try:
    from langchain_core.messages import BaseMessage
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from compaction_store.adapters.langchain_messages import is_summary, to_payload
except ImportError as error:
    raise MissingExtra("the checkpointer of LangGraph", "langgraph") from error
# This import is not in the try block, so that the ImportError names the class if a release moves it.
from langgraph.checkpoint.serde.types import _DeltaSnapshot

OnDelete = Literal["clear", "erase"]
# Methods that a checkpointer may lack. LangGraph looks for them on the class, so a wrapper must lack the same ones.
_OPTIONAL = ("delete_for_runs", "copy_thread", "prune")


def _passed(name: str) -> Callable[..., Any]:
    """Returns a method that calls the method of the inner checkpointer with this name."""

    @wraps(getattr(BaseCheckpointSaver, name))
    def method(self: StoreSaver, *given: Any, **options: Any) -> Any:
        return getattr(self.inner, name)(*given, **options)

    return method


class StoreSaver(BaseCheckpointSaver):  # type: ignore[misc]  # the framework is an extra
    """A checkpointer that records the messages of its threads.

    `inner` keeps the checkpoints, and the graph works with them as before. In addition, the list in `channel` is kept
    as the thread named by LangGraph's `thread_id`. The graph may remove or summarize messages, or abandon them by going
    back to an older checkpoint. A record then removes them from the view, and they stay in the thread. `on_delete`
    decides whether `delete_thread` hides the messages of the thread or erases the thread for good. `actor` is recorded
    with every change of the view.
    """

    def __new__(cls, inner: Any = None, *_given: Any, **_options: Any) -> Self:
        names = [name for each in _OPTIONAL for name in (each, f"a{each}")]
        lacking = [n for n in names if getattr(type(inner), n, None) is getattr(BaseCheckpointSaver, n)]
        kind: Any = cls
        made: Self = super().__new__(_without(kind, tuple(lacking)))
        return made

    def __init__(
        self,
        inner: BaseCheckpointSaver,
        store: Store | AsyncStore,
        *,
        channel: str = "messages",
        on_delete: OnDelete = "clear",
        actor: str | None = None,
    ) -> None:
        if not isinstance(inner, BaseCheckpointSaver):
            raise InvalidInput(f"inner must be a BaseCheckpointSaver, not {type(inner).__name__}")
        arguments.one_of(on_delete, ("clear", "erase"), "on_delete")
        arguments.optional_name(actor, "actor")
        super().__init__(serde=inner.serde)
        self.inner = inner
        self.store = store
        self._threads = Threads(store, actor, is_summary)
        self._channel = channel
        self._on_delete = on_delete
        self._actor = actor

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self._drive(self._recorded(config, checkpoint, new_versions))
        return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        await drive_async(self._recorded(config, checkpoint, new_versions))
        return await self.inner.aput(config, checkpoint, metadata, new_versions)

    def delete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)
        self._drive(self._deleted(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.inner.adelete_thread(thread_id)
        await drive_async(self._deleted(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)
        self._drive(self._copied(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.inner.acopy_thread(source_thread_id, target_thread_id)
        await drive_async(self._copied(source_thread_id, target_thread_id))

    def _recorded(self, config: Any, checkpoint: Any, new_versions: Any) -> Work[None]:
        """Stores the messages of a checkpoint. Ignores checkpoints of subgraphs.

        This runs before the inner `put`, so that the inner checkpointer never has messages that the store lacks.
        """
        about = config["configurable"]
        value = checkpoint["channel_values"].get(self._channel)
        value = value.value if isinstance(value, _DeltaSnapshot) else value
        is_messages = isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)
        if self._channel not in new_versions or about.get("checkpoint_ns") or not is_messages:
            return
        state = [to_payload(message) for message in value]
        yield from self._threads.follow(about["thread_id"], state, f"checkpoint {checkpoint['id']}")

    def _deleted(self, thread_id: str) -> Work[None]:
        method, options = deletion(self._on_delete)
        with suppress(ThreadNotFound):
            yield from self._threads.call(method, thread_id, reason="delete_thread", actor=self._actor, **options)

    def _copied(self, source: str, target: str) -> Work[None]:
        with suppress(ThreadNotFound):
            yield from self._threads.call("fork", source, target, reason="copy_thread", actor=self._actor)

    def _drive(self, work: Work[None]) -> None:
        if not isinstance(self.store, Store):
            raise InvalidInput("store must be a Store for the methods without await, not an AsyncStore")
        drive(work)

    @property
    def config_specs(self) -> Any:
        return self.inner.config_specs

    get_next_version = _passed("get_next_version")

    def with_allowlist(self, extra_allowlist: Any) -> Any:
        inner = self.inner.with_allowlist(extra_allowlist)
        if inner is self.inner:
            return self
        clone = copy.copy(self)
        clone.inner, clone.serde = inner, inner.serde
        return clone


for _each in ("get_tuple", "list", "put_writes", "delete_for_runs", "prune", "get_delta_channel_history"):
    setattr(StoreSaver, _each, _passed(_each))
    setattr(StoreSaver, f"a{_each}", _passed(f"a{_each}"))


@cache
def _without(kind: type[StoreSaver], names: tuple[str, ...]) -> type[StoreSaver]:
    """Returns a subclass that, as LangGraph sees it, does not implement the methods `names`."""
    return type(kind.__name__, (kind,), {name: getattr(BaseCheckpointSaver, name) for name in names}) if names else kind
