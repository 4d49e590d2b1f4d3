"""The recall tools for an agent's loop: tool definitions for requests, and answers to the model's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from compaction_store import arguments, tokens, waiting
from compaction_store.errors import InvalidInput
from compaction_store.models import Payload
from compaction_store.recall import calls
from compaction_store.recall.pages import LEAST_TOKENS, Recalled
from compaction_store.recall.reader import Reading
from compaction_store.store._async import AsyncReader
from compaction_store.store._sync import Reader


class _Tools:
    def __init__(self, reader: Any, thread_id: str, max_tokens: int, counter: tokens.Counter) -> None:
        self._thread_id = thread_id
        self._reading = Reading(reader, thread_id, counter, max_tokens)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of thread {self._thread_id!r}>"

    def __contains__(self, name: object) -> bool:
        """Returns whether `name` is the name of one of these tools."""
        return isinstance(name, str) and name in self._reading.tools

    def for_anthropic(self) -> list[Payload]:
        """Returns the tool definitions for Anthropic's Messages API. They are the same each time, for prompt caches."""
        return calls.for_anthropic(self._reading.tools.values())

    def for_openai(self, *, api: Literal["chat", "responses"] = "chat") -> list[Payload]:
        """Returns the tool definitions for OpenAI's Chat Completions or Responses API. They are the same each time."""
        return calls.for_openai(self._reading.tools.values(), api)


class RecallTools(_Tools):
    """Tools with which a model searches and reads its own thread. They keep no state, and they are thread-safe."""

    def call(self, name: str, arguments: Any) -> Recalled:
        """Runs a model's call.

        For an unknown tool, wrong arguments, or a thread or record that does not exist, returns an error result that
        tells the model so.
        """
        return waiting.drive(self._reading.call(name, arguments))

    def answer(self, call: Any) -> Payload:
        """Runs a call from a model's reply and returns its result in the format of the same API.

        Returns a `tool_result` block for a `tool_use` block, a message of role `tool` for an entry of `tool_calls`, and
        a `function_call_output` item for a `function_call` item.
        """
        read = calls.read(call)
        return read.answer(self.call(read.name, read.arguments))


class AsyncRecallTools(_Tools):
    """The async form of `RecallTools`, for an AsyncStore or an AsyncReader."""

    async def call(self, name: str, arguments: Any) -> Recalled:
        """Runs a model's call, as `RecallTools.call` does."""
        return await waiting.drive_async(self._reading.call(name, arguments))

    async def answer(self, call: Any) -> Payload:
        """Runs a call from a model's reply, as `RecallTools.answer` does."""
        read = calls.read(call)
        return read.answer(await self.call(read.name, read.arguments))


@overload
def recall_tools(
    store: Reader,
    thread_id: str,
    *,
    max_tokens: int = 4000,
    counter: tokens.Counter | Callable[[Payload], int] | None = None,
) -> RecallTools: ...


@overload
def recall_tools(
    store: AsyncReader,
    thread_id: str,
    *,
    max_tokens: int = 4000,
    counter: tokens.Counter | Callable[[Payload], int] | None = None,
) -> AsyncRecallTools: ...


def recall_tools(
    store: Reader | AsyncReader,
    thread_id: str,
    *,
    max_tokens: int = 4000,
    counter: tokens.Counter | Callable[[Payload], int] | None = None,
) -> RecallTools | AsyncRecallTools:
    """Makes tools with which an agent searches and reads one thread, including messages that its view no longer shows.

    `store` is a Store, a Reader, an AsyncStore or an AsyncReader. No result has more than `max_tokens` tokens, counted
    by `counter` or, if it is None, by the default counter.
    """
    arguments.check_thread_id(thread_id)
    arguments.number(max_tokens, "max_tokens", least=LEAST_TOKENS)
    chosen = tokens.chosen(counter)
    if isinstance(store, AsyncReader):
        return AsyncRecallTools(store, thread_id, max_tokens, chosen)
    if isinstance(store, Reader):
        return RecallTools(store, thread_id, max_tokens, chosen)
    raise InvalidInput(f"store must be a Store, a Reader, an AsyncStore or an AsyncReader, not {type(store).__name__}")
