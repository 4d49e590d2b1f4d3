"""A middleware for LangChain agents that sends the model the store's view and appends the reply with a receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

from compaction_store import arguments
from compaction_store.adapters.common import Threads, as_given, name
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidInput, MissingExtra
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store
from compaction_store.waiting import Work, drive, drive_async

try:
    from langchain.agents.middleware import AgentMiddleware
    from langgraph.config import get_config

    from compaction_store.adapters.langchain_messages import from_payload, is_summary, to_payload, usage
except ImportError as error:
    raise MissingExtra("the middleware for LangChain's agents", "langchain") from error


class _Sent(NamedTuple):
    """A request as it is sent, and the view that its messages come from."""

    request: Any
    thread_id: str
    view: View | None
    state: list[Payload]


class StoreMiddleware(AgentMiddleware):  # type: ignore[misc]  # the framework is an extra
    """A middleware that keeps an agent's messages in a thread and sends the model the view of this thread.

    The name of the thread is `thread_id`, or else the `thread_id` of the run. If `budget` is given and the view exceeds
    it, the callbacks that are registered with the store first compact the view; the agent's state keeps all messages.
    `actor` is recorded with every change of the view. With a `Store`, the agent may be invoked with or without `await`.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        thread_id: str | None = None,
        budget: TokenBudget | None = None,
        actor: str | None = None,
    ) -> None:
        if thread_id is not None:
            arguments.check_thread_id(thread_id)
        arguments.instance(budget, TokenBudget, "budget", optional=True)
        arguments.optional_name(actor, "actor")
        super().__init__()
        self.store = store
        self._threads = Threads(store, actor, is_summary)
        self._thread_id = thread_id
        self._budget = budget
        self._actor = actor

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(self.store, Store):
            raise InvalidInput("store must be a Store for an agent that is invoked without await, not an AsyncStore")
        sent = drive(self._prepared(request))
        response = handler(sent.request)
        drive(self._appended(sent, response))
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        sent = await drive_async(self._prepared(request))
        response = await handler(sent.request)
        await drive_async(self._appended(sent, response))
        return response

    def _prepared(self, request: Any) -> Work[_Sent]:
        """Stores the messages of the agent's state, and puts the messages of the view into the request."""
        thread_id = self._name()
        messages = request.state["messages"]
        state = [to_payload(message) for message in messages]
        yield from self._threads.follow(thread_id, state, "model call")
        view = yield from self._threads.view(thread_id)
        if view is not None and self._budget is not None:
            view = yield from self._threads.call("fit", thread_id, self._budget, actor=self._actor)
        # If a message of the view is also in the state, send the state's object, because the stored form may lack
        # values.
        given = {name(payload): (payload, message) for payload, message in zip(state, messages, strict=True)}
        shown = []
        for each in () if view is None else view.messages:
            if not is_erased(each):
                payload, message = given.get(name(as_given(each)), (None, None))
                shown.append(message if payload == as_given(each) else from_payload(each))
        return _Sent(request.override(messages=shown), thread_id, view, state)

    def _appended(self, sent: _Sent, response: Any) -> Work[None]:
        """Appends the reply. Its receipt names the view that the model was sent."""
        for message in response.result:
            # Set a missing id now. The agent's state would set it later, and the message would then differ from the
            # stored one.
            message.id = message.id or str(uuid4())
        replies = [to_payload(message) for message in response.result]
        if replies:
            metas = [usage(message) for message in response.result]
            appended = yield from self._threads.call(
                "append", sent.thread_id, replies, view=sent.view, meta=metas, raw=True
            )
            self._threads.remember(sent.thread_id, appended.head, [*sent.state, *replies])

    def _name(self) -> str:
        if self._thread_id is not None:
            return self._thread_id
        found = get_config().get("configurable", {}).get("thread_id")
        if found is None:
            raise InvalidInput("thread_id must be given to the middleware or in the run's config")
        return str(found)
