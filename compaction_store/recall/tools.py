"""The tools as an agent's loop uses them: definitions for a request, and a dispatcher for what the reply calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from compaction_store import arguments, drivers, tokens
from compaction_store.errors import InvalidInput
from compaction_store.models import Payload
from compaction_store.recall import calls
from compaction_store.recall.pages import LEAST_TOKENS, Recalled
from compaction_store.recall.reading import Reading
from compaction_store.store._async import AsyncReader
from compaction_store.store._sync import Reader


class _Tools:
    def __init__(self, reader: Any, thread_id: str, max_tokens: int, counter: tokens.Counter) -> None:
        self._thread_id = thread_id
        self._reading = Reading(reader, thread_id, counter, max_tokens)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of thread {self._thread_id!r}>"

    def __contains__(self, name: object) -> bool:
        """Whether a tool of that name is one of these."""
        return isinstance(name, str) and name in self._reading.tools

    def for_anthropic(self) -> list[Payload]:
        """The definitions for Anthropic's Messages API, to be given as or among `tools`. Always the same bytes."""
        return calls.for_anthropic(self._reading.tools.values())

    def for_openai(self, *, api: Literal["chat", "responses"] = "chat") -> list[Payload]:
        """The definitions for OpenAI's Chat Completions or Responses."""
        return calls.for_openai(self._reading.tools.values(), api)


class RecallTools(_Tools):
    """Tools by which a model looks things up in its own thread. They hold no state: any thread may use them."""

    def call(self, name: str, arguments: Any) -> Recalled:
        """Does what a model asks for. Bad arguments and names that are none of these give a result that says so."""
        return drivers.drive(self._reading.call(name, arguments))

    def answer(self, call: Any) -> Payload:
        """The result of a call in the form of the call: a `tool_result` block for a `tool_use` block, a message of
        role `tool` for an entry of `tool_calls`, a `function_call_output` for a `function_call`.
        """
        read = calls.read(call)
        return read.answer(self.call(read.name, read.arguments))


class AsyncRecallTools(_Tools):
    """The same on an AsyncStore or AsyncReader: `call` and `answer` are awaited."""

    async def call(self, name: str, arguments: Any) -> Recalled:
        """Does what a model asks for. Bad arguments and names that are none of these give a result that says so."""
        return await drivers.drive_async(self._reading.call(name, arguments))

    async def answer(self, call: Any) -> Payload:
        """The result of a call in the form of the call: a `tool_result` block for a `tool_use` block, a message of
        role `tool` for an entry of `tool_calls`, a `function_call_output` for a `function_call`.
        """
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
    """Tools for an agent to search, expand and describe what its thread holds, folded or not: that thread only.

    `store` is a Store or a Reader, or an async one. No result takes more than `max_tokens` by `counter`, which is the
    default one if none is given.
    """
    arguments.check_thread_id(thread_id)
    if type(max_tokens) is not int or max_tokens < LEAST_TOKENS:
        raise InvalidInput(f"max_tokens must be an integer >= {LEAST_TOKENS}")
    chosen = tokens.chosen(counter)
    if isinstance(store, AsyncReader):
        return AsyncRecallTools(store, thread_id, max_tokens, chosen)
    if isinstance(store, Reader):
        return RecallTools(store, thread_id, max_tokens, chosen)
    raise InvalidInput(f"store must be a Store, a Reader or an async one of either, not {type(store).__name__}")
