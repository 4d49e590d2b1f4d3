"""A conversation store for Pydantic AI that keeps each conversation as a thread of the store.

An entry of the conversation is a message of the thread, and the message's meta holds the ids of the entry and of its
parent. Pydantic AI's record of the conversation is in the meta of the last message, so one append writes both. If the
record is written without an entry, or is too long for a meta, it becomes a separate message, which is then hidden. The
view of the thread is the conversation's history. When the conversation continues from an earlier entry, the later
entries are hidden. When it returns to entries that the view no longer has, they are appended again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from compaction_store import arguments
from compaction_store.adapters.common import Calls, batches
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import HeadConflict, InvalidInput, MissingExtra, SequenceConflict, ThreadNotFound
from compaction_store.messages.parts import CALL, RESULT
from compaction_store.models import Element, Message, Payload, Thread
from compaction_store.models.messages import is_erased
from compaction_store.models.vocabulary import WITHDRAWALS
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store
from compaction_store.store.threads import refuse_unknown

try:
    from pydantic_ai import conversation_store as framework
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart
except ImportError as error:
    raise MissingExtra("the conversation store of Pydantic AI", "pydantic-ai") from error
# This import is not in the try block, so that the ImportError gives the name if a release moves it.
from pydantic_ai._conversation_marks import mark_stored

OnDelete = Literal["hide", "erase"]
# A meta may take up to 8 KiB. This leaves room for the ids.
_LONGEST_RECORD = 7000
_ONE_QUERY = 2000  # the maximum number of messages that one query reads
_RECORDS = TypeAdapter(framework.ConversationRecord)


class _State(NamedTuple):
    """The present state of a conversation: its thread, Pydantic AI's record of it, and the thread's last message."""

    thread: Thread | None
    record: Any
    last: Message | None


class Shown(NamedTuple):
    """A message of the view, and the element that contains the message."""

    message: Any
    element: Element


class StoreConversations(framework.ConversationStore):  # type: ignore[misc]  # the framework is an extra
    """A conversation store that keeps each conversation as the thread of the same name.

    A `Store` is called in a worker thread, so it works on any event loop. An `AsyncStore` must be used on the event
    loop on which it was opened. If `budget` is given, `load` returns the view of the thread, which the callbacks that
    are registered with the store first compact if it exceeds the budget. `on_delete` decides whether `delete_record`
    hides the messages or erases the thread for good. `actor` is recorded with every change of the view.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        budget: TokenBudget | None = None,
        on_delete: OnDelete = "hide",
        actor: str | None = None,
    ) -> None:
        arguments.instance(budget, TokenBudget, "budget", optional=True)
        arguments.one_of(on_delete, ("hide", "erase"), "on_delete")
        arguments.optional_name(actor, "actor")
        self._call = Calls(store)
        self.store = store
        self.actor = actor
        self._budget = budget
        self._on_delete = on_delete

    async def load(self, conversation_id: str, *, limit: int | None = None, scope: str | None = None) -> Any:
        """Returns the conversation: with its history, or with a budget, with the view that fits the budget."""
        if self._budget is None:
            return await super().load(conversation_id, limit=limit, scope=scope)
        # The history itself is not needed. The framework refuses a negative limit.
        found = await super().load(conversation_id, limit=min(limit or 0, 0), scope=scope)
        if found is not None:
            view = await self._call("fit", conversation_id, self._budget, actor=self.actor)
            messages = [each.message for each in shown(view)]
            found.messages = messages if limit is None else messages[len(messages) - limit :] if limit else []
            mark_stored(found, found.messages)
        return found

    async def read_record(self, conversation_id: str) -> Any:
        return (await self._state(conversation_id)).record

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[Any]:
        names = [thread.thread_id for thread in await self._call.listed("threads")]
        records = [(await self._state(name)).record for name in names if not name.startswith("erased:")]
        found = [record for record in records if record is not None and scope in {None, record.scope}]
        return sorted(found, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[Any]:
        if head_id is None or limit == 0:
            return []
        thread_id = getattr(head_id, "thread_id", "") or await self._thread_of(head_id)
        found = None
        for last in (limit or _ONE_QUERY, None):
            found = walk(head_id, await self._messages(thread_id, last=last))
            if found is not None and (found[0].parent_id is None or limit in range(1, len(found) + 1)):
                break
        if found is None:
            raise LookupError(f"no entry {head_id!r}")
        return [_entry(each, thread_id) for each in found[-(limit or 0) :]]

    async def read_entry(self, entry_id: str) -> Any:
        return (await self.read_history(entry_id))[-1]

    async def write_record(
        self, record: Any, *, new_entries: Sequence[Any] = (), expected_revision: str | None
    ) -> None:
        new = [Stored(entry.id, entry.parent_id, to_payload(entry.message)) for entry in new_entries]
        while True:
            state = await self._state(record.conversation_id)
            if (None if state.record is None else state.record.revision) != expected_revision:
                raise framework.ConversationConflict(record.conversation_id)
            # If another writer came first, read again.
            with suppress(HeadConflict, SequenceConflict):
                if await self._write(state, record, new):
                    return

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        while True:
            state = await self._state(conversation_id)
            if state.record is None or state.thread is None or state.record.revision != expected_revision:
                raise framework.ConversationConflict(conversation_id)
            if self._on_delete == "erase":
                await self._call("custody.erase", conversation_id, reason="delete", forks=False, actor=self.actor)
                return
            with suppress(HeadConflict, SequenceConflict):
                await self._call("append", conversation_id, {OURS: None}, expected_head=state.thread.head, raw=True)
                await self._hide(conversation_id, 0, "delete")
                return

    async def _write(self, state: _State, record: Any, new: list[Stored]) -> bool:
        """Appends the entries with the record. Returns False if it only changed the view and has to be called again."""
        name = record.conversation_id
        parent = new[0].parent_id if new else record.head_id
        is_last = state.last is not None and state.thread is not None and state.last.pos == state.thread.last_pos
        if state.last is not None and is_last and parent is not None and entry_id(state.last) == parent:
            keep, copies = state.last.seq, list[Stored]()
        else:
            found = await self._align(state, record, parent)
            if found is None:
                return False
            keep, copies = found
        given = [*copies, *new]
        if record.head_id is not None and record.head_id not in {parent, *(each.entry_id for each in given)}:
            raise framework.ConversationConflict(name)
        document = dumped(_RECORDS, record)
        apart = not given or len(to_json(document)) > _LONGEST_RECORD
        messages = [each.payload for each in given]
        metas: list[Payload] = [{OURS: {"id": each.entry_id, "parent": each.parent_id}} for each in given]
        if apart:
            messages, metas = [*messages, {OURS: document}], [*metas, {}]
        else:
            metas[-1][OURS]["record"] = document
        expected: Payload = {"expected_seq": 0} if state.thread is None else {"expected_head": state.thread.head}
        for part in batches(messages):
            done = await self._call("append", name, messages[part], meta=metas[part], raw=True, **expected)
            expected = {"expected_head": done.head}
        if apart:
            await self._hide(name, done[-1].seq - 1 if given else keep, "record")
        return True

    async def _align(self, state: _State, record: Any, parent: str | None) -> tuple[int, list[Stored]] | None:
        """Returns the seq to which the view has an entry's history, and the missing entries; None after a rewind."""
        name = record.conversation_id
        messages = await self._messages(name) if state.thread is not None else []
        if messages and not any(entry_id(each) or each.redacted or OURS in (each.payload or {}) for each in messages):
            raise InvalidInput(f"thread {name!r} must have messages of Pydantic AI only")
        path = [] if parent is None else walk(parent, messages)
        if path is None and parent is not None:
            try:
                source = getattr(parent, "thread_id", "") or await self._thread_of(parent)
            except LookupError:
                raise framework.ConversationConflict(name) from None
            if (path := walk(parent, await self._messages(source))) is None:
                raise framework.ConversationConflict(name)
            path = [each._replace(seq=0) for each in path]
        path = path or []
        view = await self.view(name)
        ids = {each.seq: entry_id(each) for each in messages}
        place = end = last = 0
        for element in () if view is None else view.elements:
            if element.kind in WITHDRAWALS or element.is_erased:
                continue
            last = element.end_seq
            inside = {ids.get(seq) for seq in range(element.seq, last + 1)}
            after = place
            while after < len(path) and path[after].entry_id in inside:
                after += 1
            # A compaction that also covers messages after the entry is not part of the entry's history.
            if after > place and path[after - 1].entry_id == ids.get(last):
                place, end = after, last
            else:
                break
        if last > end:
            # If the entry is inside the compaction, rewind to the entry, which revokes the compaction.
            at = path[-1].seq if path and end < path[-1].seq < last else end
            await self._call("rewind", name, at, view=view, reason="branch", actor=self.actor)
            return None
        return end, path[place:]

    async def _hide(self, name: str, after: int, reason: str) -> None:
        """Hides all messages after a seq, unless another writer hid them first, or added one that must stay."""
        view = await self.view(name)
        with suppress(HeadConflict, SequenceConflict):
            if view is not None:
                await self._call("rewind", name, after, view=view, reason=reason, actor=self.actor)

    async def _state(self, name: str) -> _State:
        thread: Thread | None = await self._call.found("thread", name, hidden=True)
        if thread is None:
            return _State(None, None, None)
        refuse_unknown(thread)
        last = None
        for count in (1, 64, max(thread.last_seq, 1)):
            messages = await self._messages(name, last=count)
            last = messages[-1] if messages else None
            for message in reversed(messages):
                is_there, document = record_of(message)
                if is_there:
                    record = None if thread.hidden or document is None else _RECORDS.validate_python(document)
                    return _State(thread, record and _with_thread(record), last)
            if len(messages) < count:
                break
        return _State(thread, None, last)

    async def path(self, conversation_id: str) -> list[Stored]:
        state = await self._state(conversation_id)
        if state.record is None or state.record.head_id is None:
            return []
        return walk(state.record.head_id, await self._messages(conversation_id)) or []

    async def adopt(self, view: View, messages: list[Payload], start_seq: int, end_seq: int, reason: str) -> None:
        await self._call(
            "adopt", view.thread_id, messages, view=view, start_seq=start_seq, end_seq=end_seq, reason=reason,
            actor=self.actor,
        )  # fmt: skip

    async def _thread_of(self, wanted: str) -> str:
        """Searches all threads for an entry. An id that this store returned names its thread and needs no search."""
        for thread in await self._call.listed("threads", hidden=True):
            if any(entry_id(message) == wanted for message in await self._messages(thread.thread_id)):
                found: str = thread.thread_id
                return found
        raise LookupError(f"no entry {wanted!r}")

    async def _messages(self, name: str, last: int | None = None) -> list[Message]:
        with suppress(ThreadNotFound):
            return await self._call.listed("replay", name, last=last)
        return []

    async def view(self, name: str) -> View | None:
        view: View | None = await self._call.found("view", name)
        return view


def shown(view: View) -> list[Shown]:
    """Returns the messages of a view, without erased ones and without records of conversations."""
    return [
        Shown(from_payload(payload, element.created_at), element)
        for element in view.elements
        for payload in element.messages
        if not is_erased(payload) and OURS not in payload
    ]


def _with_thread(record: Any) -> Any:
    def known(text: str | None) -> str | None:
        return None if text is None else EntryId(text, record.conversation_id)

    return replace(record, head_id=known(record.head_id), branches=[known(tip) for tip in record.branches])


def _entry(stored: Stored, thread_id: str) -> Any:
    parent = None if stored.parent_id is None else EntryId(stored.parent_id, thread_id)
    return framework.ConversationEntry(
        id=EntryId(stored.entry_id, thread_id), parent_id=parent, message=from_payload(stored.payload)
    )


# ---- messages, whose parts become blocks whose text and tool calls the store can read. Nothing is left out, so every
# message can be restored.


OURS = "pydantic_ai"
_ROLES = {"request": "user", "response": "assistant"}
_BLOCKS: dict[str, tuple[str, dict[str, str]]] = {
    "text": ("text", {"content": "text"}),
    "user-prompt": ("text", {"content": "text"}),
    "system-prompt": ("text", {"content": "text"}),
    "thinking": ("thinking", {"content": "thinking"}),
    "tool-call": (CALL, {"id": "part_id", "tool_call_id": "id", "tool_name": "name", "args": "input"}),
    "tool-return": (RESULT, {"tool_call_id": "tool_use_id"}),
    "compaction": ("compaction", {}),
}


class EntryId(str):  # noqa: SLOT000 — it has an attribute
    """The id of an entry, with the name of the entry's thread, so that no search for the thread is needed."""

    thread_id: str

    def __new__(cls, text: str, thread_id: str = "") -> Self:
        made = super().__new__(cls, text)
        made.thread_id = thread_id
        return made


class Stored(NamedTuple):
    """An entry in its stored form. `payload` is the message, and `seq` is 0 if the entry is not stored yet."""

    entry_id: str
    parent_id: str | None
    payload: Payload
    seq: int = 0

    def __repr__(self) -> str:
        return f"Stored({self.entry_id!r}, seq={self.seq})"


def _ours(message: Message) -> Payload:
    found = (message.meta or {}).get(OURS)
    return found if isinstance(found, dict) else {}


def entry_id(message: Message) -> str | None:
    return _ours(message).get("id")


def record_of(message: Message) -> tuple[bool, Payload | None]:
    """Returns whether a message carries a conversation's record, and the record: None for a deleted one."""
    if message.payload is not None and OURS in message.payload:
        return True, message.payload[OURS]
    found = _ours(message)
    return "record" in found, found.get("record")


def walk(head_id: str, messages: Sequence[Message]) -> list[Stored] | None:
    """Returns the history that ends at an entry, as far back as `messages` go; None if they lack the entry."""
    places = {entry_id(message): place for place, message in enumerate(messages)}
    path: list[Stored] = []
    current: str | None = head_id
    while current is not None and (place := places.pop(current, None)) is not None:
        message = messages[place]
        parent = _ours(message).get("parent")
        path.append(Stored(current, parent, message.payload or {}, message.seq))
        if parent is not None and parent not in places:
            # The parent may be an erased message, which has lost its id: continue with the message before it.
            before = place - 1
            while before >= 0 and messages[before].redacted:
                before -= 1
            parent = entry_id(messages[before]) if 0 <= before < place - 1 else None
        current = parent
    return path[::-1] or None


def dumped(adapter: Any, value: Any) -> Any:
    try:
        return adapter.dump_python(value, mode="json")
    except PydanticSerializationError:
        # Hide the original error, because it quotes the value.
        raise InvalidInput("a conversation must have a JSON form: a value in it has none") from None


def to_payload(message: Any) -> Payload:
    """Converts a message for the store. Its parts become blocks whose text and tool calls the store can read."""
    [found] = dumped(ModelMessagesTypeAdapter, [message])
    blocks = [_block(part) for part in found.pop("parts")]
    return {"role": _ROLES[found["kind"]], "content": blocks, **found}


def from_payload(payload: Payload, created_at: datetime | None = None) -> Any:
    """Converts a stored message back. A message of another form, such as a summary, becomes a user prompt."""
    if payload.get("kind") not in _ROLES or not isinstance(payload.get("content"), list):
        text = payload.get("content")
        at = {} if created_at is None else {"timestamp": created_at}
        return ModelRequest(parts=[UserPromptPart(text if isinstance(text, str) else to_json(payload).decode(), **at)])
    rest = {name: value for name, value in payload.items() if name not in {"role", "content"}}
    [message] = ModelMessagesTypeAdapter.validate_python([{"parts": [_part(b) for b in payload["content"]], **rest}])
    return message


def _block(part: Payload) -> Payload:
    kind = part["part_kind"]
    if kind not in _BLOCKS or (_BLOCKS[kind][0] == "text" and not isinstance(part["content"], str)):
        return part
    block_type, names = _BLOCKS[kind]
    return {"type": block_type, **{names.get(name, name): value for name, value in part.items()}}


def _part(block: Payload) -> Payload:
    if "type" not in block:
        return block
    names = {new: old for old, new in _BLOCKS[block["part_kind"]][1].items()}
    return {names.get(name, name): value for name, value in block.items() if name != "type"}
