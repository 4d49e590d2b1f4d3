"""A history provider for the Microsoft Agent Framework that keeps each session as a thread of the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from compaction_store import arguments
from compaction_store.adapters.common import Calls, batches, items_in
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidInput, MissingExtra
from compaction_store.messages.parts import CALL, RESULT
from compaction_store.models import Payload
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store

try:
    from agent_framework import HistoryProvider, Message
except ImportError as error:
    raise MissingExtra("the history provider of the Microsoft Agent Framework", "agent-framework") from error
# This import is not in the try block, so that the ImportError names the function if a release moves it.
from agent_framework._sessions import filter_new_messages

# Maps a type of content to the store's type of block, and the content's field names to those of the block.
_BLOCKS: dict[str, tuple[str, dict[str, str]]] = {
    "function_call": (CALL, {"id": "content_id", "call_id": "id", "arguments": "input"}),
    "function_result": (RESULT, {"call_id": "tool_use_id", "result": "content"}),
}
_CONTENTS = {block: (content, {new: old for old, new in names.items()}) for content, (block, names) in _BLOCKS.items()}


class StoreHistoryProvider(HistoryProvider):  # type: ignore[misc]  # the framework is an extra
    """A history provider that keeps the history of each session as the thread of the same name.

    A `Store` is called in a worker thread, so it works on any event loop. An `AsyncStore` must be used on the event
    loop on which it was opened. If `budget` is given and a history exceeds it, the callbacks that are registered with
    the store first compact the history; `actor` is recorded with these compactions. `options`, such as `store_outputs`,
    are passed to `HistoryProvider`.
    """

    DEFAULT_SOURCE_ID = "compaction_store"

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        budget: TokenBudget | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> None:
        arguments.instance(budget, TokenBudget, "budget", optional=True)
        arguments.optional_name(actor, "actor")
        super().__init__(source_id, **options)
        self._call = Calls(store)
        self.store = store
        self._budget = budget
        self._actor = actor

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Returns the messages of the view. Erased ones are left out."""
        del state, kwargs
        name = _checked(session_id)
        if self._budget is None:
            return await self._shown("view", name)
        return await self._shown("fit", name, self._budget, actor=self._actor)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Any], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Appends the messages, except those that repeat the history or its end."""
        del state, kwargs
        name = _checked(session_id)
        payloads = [to_payload(message) for message in messages]
        new = filter_new_messages(await self._shown("view", name), messages) if payloads else []
        payloads = payloads[len(payloads) - len(new) :]
        for part in batches(payloads):
            await self._call("append", name, payloads[part], raw=True)

    async def _shown(self, method: str, *given: Any, **options: Any) -> list[Any]:
        view: View | None = await self._call.found(method, *given, **options)
        return [from_payload(item.payload) for item in items_in(view)]


def _checked(session_id: str | None) -> str:
    if session_id is None:
        raise InvalidInput("session_id must be given: run the agent with a session")
    return session_id


def to_payload(message: Any) -> Payload:
    """Converts a message for the store. Its contents become blocks whose text and tool calls the store can read."""
    if not isinstance(message, Message):
        raise InvalidInput(f"a message must be a Message, not {type(message).__name__}")
    found = message.to_dict()
    blocks = [_renamed(each, _BLOCKS) for each in found.pop("contents", [])]
    return {"role": found.pop("role"), "content": blocks, **found}


def from_payload(payload: Payload) -> Any:
    """Converts a stored message back. Null or missing content becomes no text, and any that is no list, one text."""
    rest = {name: value for name, value in payload.items() if name != "content"}
    content = payload.get("content")
    if not isinstance(content, list):
        text = content if isinstance(content, str | None) else json.dumps(content, ensure_ascii=False)
        return Message(str(payload.get("role", "user")), [] if text is None else [text])
    return Message.from_dict({**rest, "contents": [_renamed(block, _CONTENTS) for block in content]})


def _renamed(found: Payload, names_of: dict[str, tuple[str, dict[str, str]]]) -> Payload:
    kind, names = names_of.get(found["type"], (found["type"], {}))
    return {names.get(name, name): value for name, value in found.items()} | {"type": kind}
