"""Counts the tokens of views exactly, with Anthropic's API, which can count a request without running it.

Counts are cached by the hash of the request. If the API cannot count, the result has the store's own count and the
reason; no error is raised.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

from compaction_store.arguments import number, other
from compaction_store.errors import InvalidInput, NotRenderable, SummarizerError
from compaction_store.models import Measured, Payload
from compaction_store.rendering.view import View, for_anthropic
from compaction_store.summarizers.api_calls import CountRequest, Deadline, count_tokens, is_async_client, sdk
from compaction_store.summarizers.prompted import check_model, check_parameters
from compaction_store.waiting import Work, drive, drive_async

# Parameters that only affect the answer. The API refuses them in a request to count.
_OF_THE_ANSWER = frozenset(
    {
        "container", "diagnostics", "inference_geo", "max_tokens", "metadata", "service_tier", "stop_sequences",
        "stream", "temperature", "top_k", "top_p",
    }
)  # fmt: skip
_OURS = ("model", "messages")
_BESIDE = ("system", "tools", "mcp_servers")


class AnthropicCounter:
    """Counts the tokens of a view with Anthropic's API. The caller makes, configures and closes the client.

    `parameters` are the parameters of your requests. If they have `system`, `tools` or `mcp_servers`, the count
    includes these: `counts_overhead` is then true, and a budget subtracts its `overhead` from the count. `render` makes
    a request from a view. With an async client, the result must be awaited. `deadline` is the number of seconds for all
    attempts to count one view. The last `remembered` counts are cached by the hash of the request.
    """

    def __init__(
        self,
        client: Any,
        *,
        model: str,
        parameters: Mapping[str, Any] | None = None,
        render: Callable[[View], Mapping[str, Any]] = for_anthropic,
        deadline: float = 5.0,
        remembered: int = 256,
    ) -> None:
        sdk("AnthropicCounter")
        if not hasattr(client, "messages"):
            raise InvalidInput(f"client must be an Anthropic or AsyncAnthropic client, not {type(client).__name__}")
        check_model(model)
        if not deadline > 0:
            raise InvalidInput(f"deadline must be a number of seconds > 0{other(deadline)}")
        number(remembered, "remembered", least=0)
        check_parameters(parameters, _OURS)
        self._client = client
        self._model = model
        self._parameters = {name: value for name, value in (parameters or {}).items() if name not in _OF_THE_ANSWER}
        self._render = render
        self._deadline = deadline
        self._remembered = remembered
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"anthropic/{self._model}"

    @property
    def needs_async(self) -> bool:
        return is_async_client(self._client)

    @property
    def counts_overhead(self) -> bool:
        """Whether a count includes parts of the request besides the view, such as system prompts and tools."""
        return any(self._parameters.get(name) for name in _BESIDE)

    def __repr__(self) -> str:
        return f"AnthropicCounter(model={self._model!r})"

    def __call__(self, view: View, /) -> Measured | Awaitable[Measured]:
        asked: Payload | NotRenderable
        try:
            asked = self._request(view)
        except NotRenderable as error:
            asked = error
        work = self._work(view.tokens, asked)
        return drive_async(work) if self.needs_async else drive(work)

    def _request(self, view: View) -> Payload:
        rendered = dict(self._render(view))
        betas = sorted({*rendered.pop("betas", ()), *self._parameters.get("betas", ())})
        asked = {**rendered, **self._parameters, "model": self._model}
        return asked | {"betas": betas} if betas else asked

    def _work(self, local: int, asked: Payload | NotRenderable) -> Work[Measured]:
        try:
            if isinstance(asked, NotRenderable):
                raise asked
            # Objects of an SDK are hashed by their repr.
            key = sha256(json.dumps(asked, ensure_ascii=True, default=repr).encode()).hexdigest()
            tokens = self._recall(key)
            if tokens is None:
                # Use the beta endpoint only for betas, because some gateways do not have it.
                request = CountRequest(asked, native="betas" in asked)
                tokens = yield from count_tokens(self._client, request, Deadline(self._deadline))
                self._remember(key, tokens)
        except (NotRenderable, SummarizerError) as error:
            return Measured(local, local, error=str(error))
        return Measured(tokens, local, "exact", counter=self.name)

    def _recall(self, key: str) -> int | None:
        with self._lock:
            tokens = self._known.get(key)
            if tokens is not None:
                self._known.move_to_end(key)
            return tokens

    def _remember(self, key: str, tokens: int) -> None:
        with self._lock:
            self._known[key] = tokens
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)
