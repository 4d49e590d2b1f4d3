"""The recall tools for an agent's loop: tool definitions for requests, and answers to the model's calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, overload

from compaction_store import arguments, tokens, waiting
from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.messages.answers import field
from compaction_store.messages.parts import PartType, answer_to, row_of
from compaction_store.models import Payload
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
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in self._reading.tools.values()
        ]

    def for_openai(self, *, api: Literal["chat", "responses"] = "chat") -> list[Payload]:
        """Returns the tool definitions for OpenAI's Chat Completions or Responses API. They are the same each time."""
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": False}
            for tool in self._reading.tools.values()
        ]
        if api == "chat":
            return [{"type": "function", "function": function} for function in functions]
        if api == "responses":
            return [{"type": "function", **function} for function in functions]
        raise InvalidInput(f"api must be 'chat' or 'responses', not {api!r}")


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
        read = read_call(call)
        return read.answer(self.call(read.name, read.arguments))


class AsyncRecallTools(_Tools):
    """The async form of `RecallTools`, for an AsyncStore or an AsyncReader."""

    async def call(self, name: str, arguments: Any) -> Recalled:
        """Runs a model's call, as `RecallTools.call` does."""
        return await waiting.drive_async(self._reading.call(name, arguments))

    async def answer(self, call: Any) -> Payload:
        """Runs a call from a model's reply, as `RecallTools.answer` does."""
        read = read_call(call)
        return read.answer(await self.call(read.name, read.arguments))


_Counter = tokens.Counter | Callable[[Payload], int] | None


@overload
def recall_tools(store: Reader, thread_id: str, *, max_tokens: int = 4000, counter: _Counter = None) -> RecallTools: ...


@overload
def recall_tools(
    store: AsyncReader, thread_id: str, *, max_tokens: int = 4000, counter: _Counter = None
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


# ---- calls in the formats of three APIs: Anthropic's Messages, OpenAI's Chat Completions and Responses


class AnswerableCall(NamedTuple):
    """A tool call, and a function that converts its result to the format that the call came in."""

    name: Any
    arguments: Any
    answer: Callable[[Recalled], Payload]


def read_call(given: Any) -> AnswerableCall:
    """Parses a call from a model's reply: a `tool_use` block, a `function_call` item or an entry of `tool_calls`."""
    kind, function = field(given, "type"), field(given, "function")
    row = row_of({"type": kind})
    if row.answer is not None and isinstance(name := field(given, row.id[0]), str):
        arguments = _parsed(field(given, row.input[0]))
        return AnswerableCall(field(given, "name"), arguments, lambda result: _part(row, name, result))
    if kind in ("function", None) and function is not None and isinstance(name := field(given, "id"), str):
        arguments = _parsed(field(function, "arguments"))
        answer = {"role": "tool", "tool_call_id": name}
        return AnswerableCall(field(function, "name"), arguments, lambda result: {**answer, "content": result.text})
    raise InvalidInput(
        "call must be a tool_use block with an id, a function_call item with a call_id, or an entry of tool_calls with"
        f" an id{'' if isinstance(given, Mapping) else other(given)}"
    )


def _part(row: PartType, name: str, result: Recalled) -> Payload:
    part = answer_to({"type": row.name, row.id[0]: name}, result.text)
    # The items of Responses have no field for errors.
    return part | ({"is_error": True} if result.is_error and row.anthropic else {})


def _parsed(arguments: Any) -> Any:
    """Parses the arguments of a call, which are JSON text in OpenAI's APIs. Invalid JSON is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
