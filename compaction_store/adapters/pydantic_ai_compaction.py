"""A capability for Pydantic AI that records another capability's compactions, so that later runs reuse them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from compaction_store import arguments
from compaction_store.adapters.common import alike
from compaction_store.adapters.pydantic_ai import Shown, StoreConversations, from_payload, shown, to_payload
from compaction_store.errors import Conflict, InvalidInput, MissingExtra
from compaction_store.rendering.view import View

try:
    from pydantic_ai.capabilities import ProcessHistory, WrapperCapability
    from pydantic_ai.capabilities.abstract import AbstractCapability
except ImportError as error:
    raise MissingExtra("the capability for Pydantic AI", "pydantic-ai") from error


@dataclass
class StoredCompaction(WrapperCapability):  # type: ignore[misc]  # the framework is an extra
    """A capability that sends the model the view of the thread and records compactions by another capability.

    `wrapped` is a history processor, or a capability that compacts the messages of a request. If `wrapped` replaces
    stored messages, the replacement becomes one record, and later runs in any process begin with the replacement. No
    record is made of messages that `wrapped` omits without a replacement, or of changes to messages that are not saved
    yet.
    """

    wrapped: Any
    conversations: Any = field(kw_only=True)

    def __post_init__(self) -> None:
        arguments.instance(self.conversations, StoreConversations, "conversations")
        if not isinstance(self.wrapped, AbstractCapability):
            if not callable(self.wrapped):
                raise InvalidInput(f"wrapped must be a capability or a callable, not {type(self.wrapped).__name__}")
            self.wrapped = ProcessHistory(self.wrapped)
        super().__post_init__()

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        return await self._recorded(ctx, request_context, self.wrapped.before_model_request)

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        return await self._recorded(ctx, request_context, self.wrapped.prepare_model_request)

    async def _recorded(self, ctx: Any, request: Any, hook: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        view, present = await self._put_view(ctx, request)
        before = list(request.messages)
        request = await hook(ctx, request)
        if view is not None and request.messages != before:
            await self._adopt(view, present, before, list(request.messages))
        return request

    async def _put_view(self, ctx: Any, request: Any) -> tuple[View | None, list[Shown]]:
        """Puts the view in place of the stored messages that the request begins with.

        Returns the view and its messages, or None and no messages if the request does not begin with stored messages.
        """
        name = ctx.conversation_id
        view = None if name is None else await self.conversations.view(name)
        if view is None:
            return None, []
        present = shown(view)
        stored = [each.message for each in present]
        for known in (stored, [from_payload(each.payload) for each in await self.conversations.path(name)]):
            end = _end(request.messages, known)
            if known and end is not None:
                request.messages = [*stored, *request.messages[end:]]
                if (end := _end(ctx.messages, known)) is not None:
                    ctx.messages[:end] = stored
                return view, present
        return None, []

    async def _adopt(self, view: View, present: list[Shown], before: list[Any], after: list[Any]) -> None:
        start = alike(before, after)
        kept = alike(before[start:][::-1], after[start:][::-1])
        end = len(before) - kept
        if not start < end <= len(present) or start >= len(after) - kept:
            return
        # An element is replaced as a whole, so the replacement repeats those of its messages that stay.
        first = next(place for place, each in enumerate(present) if each.element is present[start].element)
        last = max(place for place, each in enumerate(present) if each.element is present[end - 1].element)
        given = [*before[first:start], *after[start : len(after) - kept], *before[end : last + 1]]
        start_seq, end_seq = present[first].element.seq, present[last].element.end_seq
        # If another writer came first, the request goes on, and the next run compacts again.
        with suppress(Conflict):
            messages = [to_payload(each) for each in given]
            await self.conversations.adopt(view, messages, start_seq, end_seq, type(self.wrapped).__name__)


def _end(messages: list[Any], known: list[Any]) -> int | None:
    """Returns how many first messages have the parts of `known`, as the framework joins requests; None if none do."""
    wanted, place = _parts(known), 0
    for count, message in enumerate(messages):
        if place == len(wanted):
            return count
        own = _parts([message])
        if wanted[place : place + len(own)] != own:
            return None
        place += len(own)
    return len(messages) if place == len(wanted) else None


def _parts(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(message.kind, part) for message in messages for part in message.parts or (None,)]
