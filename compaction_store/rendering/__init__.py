"""What a model is sent: a view as the arguments of a request, for Anthropic's and OpenAI's APIs.

Pure: the same view and the same options give the same bytes for ever, so that a receipt can name a rendering and its
hash. A change to what a renderer writes needs a new name for it. Nothing of the view is altered, and what has no form
in the format asked for is `NotRenderable`, never left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from compaction_store.errors import InvalidInput
from compaction_store.models import Payload, View
from compaction_store.rendering import chat, messages, responses

MESSAGES = "messages/1"
ANTHROPIC = "anthropic/1"
OPENAI_CHAT = "openai-chat/1"
OPENAI_RESPONSES = "openai-responses/1"

System = Literal["apart", "in_place"]
Thinking = Literal["drop_after_compaction", "keep", "drop"]
Cache = Literal["5m", "1h"]


class Rendered(dict[str, Any]):
    """The arguments of a request, to be unpacked into an SDK's call, and what they were made of.

    Given as `view=` to the append of the reply, the receipt says which renderer and options the model was sent.
    """

    def __init__(self, arguments: Payload, view: View, renderer: str, options: Payload) -> None:
        super().__init__(arguments)
        self.view = view
        self.renderer = renderer
        self.options = options

    @property
    def thread_id(self) -> str:
        return self.view.thread_id

    @property
    def pos(self) -> int:
        return self.view.pos

    @property
    def head(self) -> bytes:
        return self.view.head

    def __repr__(self) -> str:
        return f"<Rendered by {self.renderer}: the view of thread {self.thread_id!r} at pos {self.pos}>"


def for_anthropic(
    view: View,
    *,
    system: System = "apart",
    thinking: Thinking = "drop_after_compaction",
    cache: Cache | None = None,
) -> Rendered:
    """The arguments for Anthropic's Messages API: `messages`, `system`, and `betas` where a block needs one.

    `system`: all system messages together before the conversation, or those inside of it where they are. `thinking`:
    what was thought before a compaction of ours was written is left out after it, or all is kept, or none. `cache`: a
    breakpoint after the last summary, for so long.
    """
    _check("system", system, ("apart", "in_place"))
    _check("thinking", thinking, ("drop_after_compaction", "keep", "drop"))
    _check("cache", cache, (None, "5m", "1h"))
    options = {"system": system, "thinking": thinking, "cache": cache}
    return Rendered(messages.request(view, messages.Options(system, thinking, cache)), view, ANTHROPIC, options)


def for_openai(view: View, *, api: Literal["chat", "responses"] = "chat") -> Rendered:
    """The arguments for OpenAI's Chat Completions (`messages`) or Responses (`input`)."""
    _check("api", api, ("chat", "responses"))
    if api == "chat":
        return Rendered(chat.request(view), view, OPENAI_CHAT, {})
    return Rendered(responses.request(view), view, OPENAI_RESPONSES, {})


_RENDERERS: dict[str, Callable[..., Mapping[str, Any]]] = {
    ANTHROPIC: for_anthropic,
    OPENAI_CHAT: for_openai,
    OPENAI_RESPONSES: lambda view, **options: for_openai(view, api="responses", **options),
}


def again(view: View, renderer: object, options: object) -> Any:
    """What a renderer makes of a view with these options; None if there is no such renderer or option."""
    if renderer == MESSAGES and not options:
        return view.messages
    render = _RENDERERS.get(renderer) if isinstance(renderer, str) else None
    if render is None or not isinstance(options, dict):
        return None
    try:
        return render(view, **options)
    except (InvalidInput, TypeError):
        return None


def _check(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, choices))}")
