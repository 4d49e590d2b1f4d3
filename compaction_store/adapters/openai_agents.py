"""A session for the OpenAI Agents SDK that keeps its history in a thread of the store.

Items that are popped, cleared or compacted leave the view and stay in the thread. With `on_clear="erase"`, clearing
erases the thread instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from compaction_store import arguments
from compaction_store.adapters.common import Calls, ViewItem, batches, items_in
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import Conflict, MissingExtra
from compaction_store.models.messages import is_erased
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store

try:
    from agents.memory.session import SessionABC
    from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise MissingExtra("the session of the OpenAI Agents SDK", "openai-agents") from error
# These imports are not in the try block, so that the ImportError gives the name if a release moves it.
from agents.memory.session import _await_mutation, _CompactionSnapshot

OnClear = Literal["clear", "erase"]
_METHODS = ("get_items", "add_items", "pop_item", "clear_session")


class StoreSession(SessionABC):  # type: ignore[misc]  # the SDK is an extra
    """A session that keeps its items in the thread named `session_id`.

    A `Store` is called in a worker thread, so the session works on any event loop, such as that of `Runner.run_sync`.
    An `AsyncStore` must be used on the event loop on which it was opened. If `budget` is given and the view exceeds it,
    the callbacks that are registered with the store first compact the view. `on_clear` decides whether `clear_session`
    hides the items or erases the thread for good. `actor` is recorded with every change of the view.
    """

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        budget: TokenBudget | None = None,
        on_clear: OnClear = "clear",
        actor: str | None = None,
    ) -> None:
        arguments.check_thread_id(session_id)
        arguments.instance(budget, TokenBudget, "budget", optional=True)
        arguments.one_of(on_clear, ("clear", "erase"), "on_clear")
        arguments.optional_name(actor, "actor")
        self.session_id = session_id
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._calls = Calls(store)
        self.store = store
        self._budget = budget
        self._on_clear = on_clear
        self._actor = actor

    def __repr__(self) -> str:
        return f"<StoreSession {self.session_id!r}>"

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Returns the items of the view, without erased ones: all, or as many of the newest as a limit allows.

        The limit is `limit`, or else that of the session's settings. With a budget, the view is compacted first if it
        is too large.
        """
        wanted = resolve_session_limit(limit, self.session_settings)
        items = [item.payload for item in items_in(await self._view(self._budget))]
        return items if wanted is None else items[-wanted:] if wanted > 0 else []

    async def add_items(self, items: Sequence[Any]) -> None:
        for part in batches(items):
            await _await_mutation(self._call("append", list(items[part]), raw=True))

    async def pop_item(self) -> Any:
        """Removes the newest item from the view and returns it; returns None if there is no item."""
        return await _await_mutation(self._pop())

    async def clear_session(self) -> None:
        """Hides all items, or erases the thread, as `on_clear` says."""
        await _await_mutation(self._calls.delete(self.session_id, self._on_clear, "clear_session", self._actor))

    # ---- compaction: hooks of OpenAIResponsesCompactionSession

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Returns the newest `limit` items, and a function that replaces those from an index on with OpenAI's output.

        Returns None if a subclass overrides one of this class's public methods. `prune_prefix` is ignored, because all
        items stay in the thread.
        """
        del prune_prefix
        if not self._is_plain():
            return None
        view = await self._view()
        items = items_in(view)[-limit:] if limit > 0 else []

        async def replace_suffix(start: int, output: list[Any]) -> bool:
            if view is None or not items[start:]:
                return False
            replaced: bool = await _await_mutation(self._replace(view, items[start], output))
            return replaced

        return _CompactionSnapshot([item.payload for item in items], len(items_in(view)) <= limit, replace_suffix)

    async def _atomic_replace_items(self, items: list[Any]) -> bool:
        view = await self._view() if self._is_plain() else None
        present = items_in(view)
        if view is None or not present:
            return False
        return await self._replace(view, present[0], items)

    def _is_plain(self) -> bool:
        """Returns whether no subclass overrides the public methods. The hooks would bypass such overrides."""
        return all(getattr(type(self), name) is getattr(StoreSession, name) for name in _METHODS)

    async def _replace(self, view: View, first: ViewItem, output: list[Any]) -> bool:
        """Puts `output` in place of the view's items from `first` on. Returns False if the view has changed."""
        now = await self._view()
        if now is None or (now.pos, now.head) != (view.pos, view.head):
            return False
        # An element may have several items, such as the output of an earlier compaction: keep those before `first`.
        kept = [payload for payload in first.element.messages[: first.place] if not is_erased(payload)]
        start = first.element.seq
        try:
            if kept or output:
                await self._call("adopt", [*kept, *output], view=view, start_seq=start, actor=self._actor)
            else:
                await self._call("rewind", start - 1, view=view, reason="compacted to nothing", actor=self._actor)
        except Conflict:
            return False
        return True

    async def _pop(self) -> Any:
        while True:
            view = await self._view()
            if view is None or not (items := items_in(view)):
                return None
            payload, element, place = items[-1]
            rest = [each for each in element.messages[:place] if not is_erased(each)]
            about = {"view": view, "reason": "pop_item", "actor": self._actor}
            # If another writer came first, read again.
            with suppress(Conflict):
                if rest:
                    await self._call("adopt", rest, start_seq=element.seq, end_seq=view.elements[-1].end_seq, **about)
                else:
                    await self._call("rewind", element.seq - 1, **about)
                return payload

    async def _view(self, budget: TokenBudget | None = None) -> View | None:
        view: View | None
        if budget is None:
            view = await self._calls.found("view", self.session_id)
        else:
            view = await self._calls.found("fit", self.session_id, budget, actor=self._actor)
        return view

    async def _call(self, method: str, *given: Any, **options: Any) -> Any:
        return await self._calls(method, self.session_id, *given, **options)
