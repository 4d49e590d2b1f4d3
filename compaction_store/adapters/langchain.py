"""A chat message history for LangChain that keeps its messages in a thread of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from compaction_store import arguments
from compaction_store.adapters import langchain_messages as stored
from compaction_store.adapters.batches import batches
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidInput, MissingExtra, ThreadNotFound
from compaction_store.store import Store

try:
    from langchain_core.chat_history import BaseChatMessageHistory
except ImportError as error:
    raise MissingExtra("the chat message history of LangChain", "langchain") from error

OnClear = Literal["clear", "erase"]


class StoreChatMessageHistory(BaseChatMessageHistory):  # type: ignore[misc]  # the framework is an extra
    """A chat message history that keeps the messages of a session in the thread named `session_id`.

    The store must be a `Store`, because LangChain's interface is synchronous: its async methods run the synchronous
    ones in a thread. `on_clear` decides whether `clear` hides the messages or erases the thread for good. If `budget`
    is given and the history exceeds it, the callbacks that are registered with the store first compact the history.
    `actor` is recorded with each clear and each compaction. `message_types` are the application's own message classes.
    """

    def __init__(
        self,
        session_id: str,
        store: Store,
        *,
        on_clear: OnClear = "clear",
        budget: TokenBudget | None = None,
        actor: str | None = None,
        message_types: Iterable[type[Any]] = (),
    ) -> None:
        arguments.check_thread_id(session_id)
        if not isinstance(store, Store):
            raise InvalidInput(f"store must be a Store, not {type(store).__name__}")
        arguments.one_of(on_clear, ("clear", "erase"), "on_clear")
        if budget is not None:
            arguments.instance(budget, TokenBudget, "budget")
        arguments.optional_name(actor, "actor")
        super().__init__()
        self.session_id = session_id
        self.store = store
        self._on_clear = on_clear
        self._budget = budget
        self._actor = actor
        self._types = stored.message_types(message_types)

    def __repr__(self) -> str:
        return f"<StoreChatMessageHistory {self.session_id!r}>"

    @property
    def messages(self) -> list[Any]:
        """The messages of the view. Erased ones are left out."""
        try:
            if self._budget is None:
                view = self.store.view(self.session_id)
            else:
                view = self.store.fit(self.session_id, self._budget, actor=self._actor)
        except ThreadNotFound:
            return []
        return [stored.from_payload(payload, self._types) for payload in view.messages if payload is not None]

    def add_messages(self, messages: Sequence[Any]) -> None:
        payloads = [stored.to_payload(message, self._types) for message in messages]
        for part in batches(payloads):
            self.store.append(self.session_id, payloads[part])

    def clear(self) -> None:
        """Hides all messages, or erases the thread, as `on_clear` says."""
        try:
            if self._on_clear == "erase":
                self.store.erase(self.session_id, reason="clear", actor=self._actor)
            else:
                self.store.clear(self.session_id, hide=True, reason="clear", actor=self._actor)
        except ThreadNotFound:
            return
