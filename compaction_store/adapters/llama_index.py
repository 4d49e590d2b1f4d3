"""A chat store for LlamaIndex that keeps the messages of each key in a thread of the store.

Deleted messages leave the view and stay in the thread. With `on_delete="erase"`, `delete_messages` erases the thread
instead. `set_messages` compares the new list with the view, and appends new messages at the end. A change before the
end, such as a summary, becomes a replacement. A change up to the end hides the old messages and appends the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from compaction_store import arguments
from compaction_store.adapters.common import ViewItem, alike, as_given, as_user, batches, items_in
from compaction_store.errors import Conflict, InvalidInput, MissingExtra, ThreadNotFound
from compaction_store.messages.parts import CALL
from compaction_store.models import Payload
from compaction_store.rendering.view import View
from compaction_store.store import Store

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.llms import ChatMessage
    from llama_index.core.storage.chat_store.base import BaseChatStore
except ImportError as error:
    raise MissingExtra("the chat store of LlamaIndex", "llama-index") from error

OnDelete = Literal["clear", "erase"]
_SYSTEM = {"system", "developer"}
_CALLS = ("tool_calls", "tool_call_id")
_DELETED = "delete_messages"


class StoreChatStore(BaseChatStore):  # type: ignore[misc]  # the framework is an extra
    """A chat store that keeps the messages of each key in the thread of the same name.

    The store must be a `Store`, because LlamaIndex's interface is synchronous: its async methods run the synchronous
    ones in a thread. `on_delete` decides whether `delete_messages` hides the messages or erases the thread for good.
    `actor` is recorded with every change of the view.
    """

    _store: Store = PrivateAttr()
    _on_delete: OnDelete = PrivateAttr()
    _actor: str | None = PrivateAttr()

    def __init__(self, store: Store, *, on_delete: OnDelete = "clear", actor: str | None = None) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(f"store must be a Store, not {type(store).__name__}")
        arguments.one_of(on_delete, ("clear", "erase"), "on_delete")
        arguments.optional_name(actor, "actor")
        super().__init__()
        self._store = store
        self._on_delete = on_delete
        self._actor = actor

    @classmethod
    def class_name(cls) -> str:
        return "StoreChatStore"

    def set_messages(self, key: str, messages: Sequence[Any]) -> None:
        """Makes the view equal to `messages`. Messages that leave the view stay in the thread."""
        given = [to_payload(message) for message in messages]
        while True:
            # If another writer came first, compare again.
            with suppress(Conflict):
                if self._set(key, given):
                    return

    def get_messages(self, key: str) -> list[Any]:
        """Returns the messages of the view. Erased ones are left out."""
        return [from_payload(item.payload) for item in _items(self._view(key))]

    def add_message(self, key: str, message: Any) -> None:
        self._store.append(key, to_payload(message), raw=True)

    def delete_messages(self, key: str) -> list[Any] | None:
        """Hides the messages or erases the thread, as `on_delete` says. Returns them; None if there are none."""
        view = self._view(key)
        if not _items(view):
            return None
        if self._on_delete == "erase":
            self._store.custody.erase(key, reason=_DELETED, actor=self._actor)
        else:
            self._store.clear(key, reason=_DELETED, actor=self._actor)
        return [from_payload(item.payload) for item in _items(view)]

    def delete_message(self, key: str, idx: int) -> Any:
        """Removes a message from the view and returns it; returns None if no message has this index."""
        while True:
            view = self._view(key)
            items = _items(view)
            if view is None or not -len(items) <= idx < len(items):
                return None
            rest = [item.payload for item in items]
            taken = rest.pop(idx)
            with suppress(Conflict):
                self._change(key, view, items, rest)
                return from_payload(taken)

    def delete_last_message(self, key: str) -> Any:
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Returns the names of the tenant's threads whose view is not empty."""
        found = self._store.threads()
        return [thread.thread_id for thread in found if thread.view_tokens != 0 and not thread.erased_pos]

    def _set(self, key: str, given: list[Payload]) -> bool:
        view = self._view(key)
        if view is None:
            self._append(key, given)
            return True
        items = _items(view)
        if not items and self._take_back(key, view, given):
            return False
        self._change(key, view, items, given)
        return True

    def _take_back(self, key: str, view: View, given: list[Payload]) -> bool:
        """Revokes the last deletion if `given` and the deleted messages begin or end alike. Returns whether it did so.

        This is needed because the `get` of a `ChatSummaryMemoryBuffer` deletes messages and then sets them again.
        """
        for record in self._store.compactions(key, kind="clear", newest_first=True):
            if record.status != "active" or record.reason != _DELETED:
                return False
            before = [item.payload for item in _items(self._store.view(key, at=record.pos - 1))]
            if not alike(before, given) and not alike(before[::-1], given[::-1]):
                return False
            self._store.revoke(key, record.number, view=view, reason="set_messages", actor=self._actor)
            return True
        return False

    def _change(self, key: str, view: View, items: list[ViewItem], given: list[Payload]) -> None:
        now = [item.payload for item in items]
        start = alike(now, given)
        if start == len(now):
            self._append(key, given[start:])
            return
        kept = alike(now[start:][::-1], given[start:][::-1])
        end = len(now) - kept
        if kept and self._adopt(key, view, items, start, end, given[start : len(given) - kept]):
            return
        # No message after the changed range stays, or the range cannot be replaced. So hide the view from the range on,
        # and append the new messages.
        first = next(place for place, item in enumerate(items) if item.element is items[start].element)
        self._store.rewind(key, items[first].element.seq - 1, view=view, reason="set_messages", actor=self._actor)
        self._append(key, given[first:])

    def _adopt(self, key: str, view: View, items: list[ViewItem], start: int, end: int, new: list[Payload]) -> bool:
        if start == end or not new:
            # Neither the replaced messages nor the new ones may be empty, so add the next message to both.
            new, end = [*new, items[end].payload], end + 1
        first = next(place for place, item in enumerate(items) if item.element is items[start].element)
        last = max(place for place, item in enumerate(items) if item.element is items[end - 1].element)
        before, after = items[first:start], items[end : last + 1]
        stands_in = [*(item.payload for item in before), *new, *(item.payload for item in after)]
        if any(item.element.role in _SYSTEM for item in items[first : last + 1]):
            return False
        self._store.adopt(
            key, [as_user(payload) for payload in stands_in], view=view, start_seq=items[first].element.seq,
            end_seq=items[last].element.end_seq, reason="set_messages", actor=self._actor,
        )  # fmt: skip
        return True

    def _append(self, key: str, payloads: list[Payload]) -> None:
        for part in batches(payloads):
            self._store.append(key, payloads[part], raw=True)

    def _view(self, key: str) -> View | None:
        with suppress(ThreadNotFound):
            return self._store.view(key)
        return None


def _items(view: View | None) -> list[ViewItem]:
    return [item._replace(payload=_as_given(item.payload)) for item in items_in(view)]


def _as_given(payload: Payload) -> Payload:
    if not isinstance(payload.get("content"), list):
        # The message is not in the form of this adapter, such as a summary that the store wrote: convert it.
        return to_payload(from_payload(payload))
    return as_given(payload)


def to_payload(message: Any) -> Payload:
    """Converts a message for the store. Its blocks become content blocks whose text and calls the store can read."""
    if not isinstance(message, ChatMessage):
        raise InvalidInput(f"a message must be a ChatMessage, not {type(message).__name__}")
    try:
        found = message.model_dump(mode="json")
    except ValueError:
        # Hide the original error, because it quotes the value.
        raise InvalidInput("a message must have a JSON form: a value in it has none") from None
    payload = {"role": found["role"], "content": [_block(block) for block in found["blocks"]]}
    if found["additional_kwargs"]:
        payload["additional_kwargs"] = found["additional_kwargs"]
    # Copy the calls to the field in which the store looks for them, so that it never separates a call from its result.
    names = ("tool_call_id",) if any(b["type"] == CALL for b in payload["content"]) else _CALLS
    return payload | {name: found["additional_kwargs"][name] for name in names if found["additional_kwargs"].get(name)}


def from_payload(payload: Payload) -> Any:
    """Converts a stored message back. Null or missing content becomes an empty text, any that is no list, a text."""
    role, content = payload.get("role", "user"), payload.get("content")
    if not isinstance(content, list):
        text = content if isinstance(content, str | None) else json.dumps(content, ensure_ascii=False)
        return ChatMessage(role=role, content=text or "")
    blocks = [_loaded(block) for block in content]
    return ChatMessage(role=role, blocks=blocks, additional_kwargs=payload.get("additional_kwargs", {}))


def _block(block: Payload) -> Payload:
    rest = {name: value for name, value in block.items() if name != "block_type"}
    if block["block_type"] == "tool_call" and block["tool_call_id"] is not None:
        return {"type": CALL, "id": rest["tool_call_id"], "name": rest["tool_name"], "input": rest["tool_kwargs"]}
    return {"type": block["block_type"], **rest}


def _loaded(block: Payload) -> Payload:
    if block.get("type") == CALL:
        call = {"tool_call_id": block["id"], "tool_name": block["name"], "tool_kwargs": block["input"]}
        return {"block_type": "tool_call", **call}
    return {"block_type": block.get("type", "text"), **{name: v for name, v in block.items() if name != "type"}}
