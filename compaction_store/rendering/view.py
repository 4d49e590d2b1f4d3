"""The view of a thread, and the arguments of a request that are rendered from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.jsonable import AsDict, plain
from compaction_store.models import Element, Measured, Payload
from compaction_store.rendering import anthropic, given, openai_chat, openai_responses
from compaction_store.rendering.given import System

MESSAGES = "messages/1"
ANTHROPIC = "anthropic/1"
OPENAI_CHAT = "openai-chat/1"
OPENAI_RESPONSES = "openai-responses/1"

SystemMessages = Literal["apart", "in_place"]
Thinking = Literal["drop_after_compaction", "keep", "drop"]
Cache = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class View(AsDict):
    """The messages that the model should see of a thread at a pos. `tokens` is the sum of the store's own counts.

    `measured` is the best estimate of the view's size; only a view that was measured against a budget has it. `head` is
    the entry of the thread's chain at `pos`: a thread with another entry there refuses writes made from this view.
    """

    thread_id: str
    pos: int
    elements: tuple[Element, ...] = field(repr=False)
    measured: Measured | None = field(default=None, repr=False, compare=False)
    head: bytes = field(default=b"", repr=False)
    _derived: ClassVar = ("tokens",)

    @property
    def messages(self) -> list[Payload | None]:
        """The messages in order, with every active span folded. A redacted message is None."""
        return [message for element in self.elements for message in element.messages]

    @property
    def tokens(self) -> int:
        return sum(element.tokens for element in self.elements)

    def for_anthropic(
        self,
        *,
        tools: Sequence[Any] | None = None,
        system: System | None = None,
        system_messages: SystemMessages = "apart",
        thinking: Thinking = "drop_after_compaction",
        cache: Cache | None = None,
    ) -> Rendered:
        """Renders the arguments of a request to Anthropic's Messages API, with the tools and the system prompt."""
        return for_anthropic(
            self, tools=tools, system=system, system_messages=system_messages, thinking=thinking, cache=cache
        )

    def for_openai(
        self,
        *,
        api: Literal["chat", "responses"] = "chat",
        tools: Sequence[Any] | None = None,
        system: System | None = None,
    ) -> Rendered:
        """Renders the arguments of a request to OpenAI's Chat Completions or Responses API, with tools and prompt."""
        return for_openai(self, api=api, tools=tools, system=system)


@dataclass(frozen=True, slots=True)
class SeenView(AsDict):
    """The view that a reply was written from, and the evidence for it.

    `proved`: the reply's receipt names the view and its hash. `reconstructed`: there is no receipt; it is the view just
    before the reply. `differs`: the view, rendered again, has another hash than the receipt, as after a redaction.
    """

    evidence: Literal["proved", "reconstructed", "differs"]
    view: View
    receipt: Payload | None


class RequestParts(NamedTuple):
    """A request in parts: the arguments that are made from the view, and what the caller gives beside it."""

    rendered: Payload
    tools: Any
    system: Any


class Rendered(dict[str, Any]):
    """The arguments of a request, to be unpacked into an SDK's call, with the view that they were rendered from.

    Pass it as `view=` when you append the reply: the receipt then records the renderer and its options, and the hashes
    of `tools` and of the system prompt. Arguments that you add, such as `max_tokens`, are not recorded.
    """

    def __init__(
        self,
        arguments: Payload,
        view: View,
        renderer: str,
        options: Payload,
        *,
        tools: object = None,
        system: object = None,
    ) -> None:
        self.view = view
        self.renderer = renderer
        self.options = options
        # The betas follow from the messages, and callers add to them.
        rendered = {name: value for name, value in arguments.items() if name != "betas"}
        self._given = RequestParts(rendered, given.tools_of(tools), given.system_of(system))
        super().__init__(_PLACES[renderer].put(arguments, self._given.system) if self._given.system else arguments)
        if self._given.tools:
            self["tools"] = self._given.tools

    @property
    def thread_id(self) -> str:
        return self.view.thread_id

    @property
    def pos(self) -> int:
        return self.view.pos

    @property
    def head(self) -> bytes:
        return self.view.head

    def as_dict(self) -> dict[str, Any]:
        """Returns the arguments and their origin (thread, pos, renderer and options), ready for `json.dumps`."""
        return {
            "thread_id": self.thread_id,
            "pos": self.pos,
            "head": self.head.hex(),
            "renderer": self.renderer,
            "options": plain(self.options),
            "arguments": plain(dict(self)),
        }

    def __repr__(self) -> str:
        return f"<Rendered by {self.renderer}: the view of thread {self.thread_id!r} at pos {self.pos}>"


def parts_of(request: Rendered) -> RequestParts:
    """Returns a request in parts, as it is now: the caller may have changed it."""
    known = request._given  # noqa: SLF001 — for this package only
    taken = _PLACES[request.renderer].take(dict(request), known.system) if known.system else dict(request)
    left = dict(request) if taken is None else taken
    rendered = {name: left.pop(name) for name in known.rendered if name in left}
    # If the caller has removed or replaced tools or prompt, the original ones were not sent.
    tools = left.get("tools", None if known.tools else known.tools)
    system = left.get("system", left.get("instructions", None if taken is None else known.system))
    return RequestParts(rendered, _known(given.tools_of, tools), _known(given.system_of, system))


def _known(check: Callable[[object], Any], value: object) -> Any:
    """Returns a part of a request, or None if it cannot be hashed: the reply must be stored even then."""
    with suppress(InvalidInput):
        return check(value)
    return None


def for_anthropic(
    view: View,
    *,
    tools: Sequence[Any] | None = None,
    system: System | None = None,
    system_messages: SystemMessages = "apart",
    thinking: Thinking = "drop_after_compaction",
    cache: Cache | None = None,
) -> Rendered:
    """Renders the arguments for Anthropic's Messages API: `messages`, `system`, and `betas` if a block needs one.

    `tools` are added as they are. `system`, a text or blocks, comes before the system messages of the view.
    `system_messages` puts all of these before the conversation ("apart"), or leaves later ones in place. `thinking`
    drops the thinking that is older than a compaction, keeps all of it, or drops all. `cache` sets a cache breakpoint
    with this lifetime after the last summary.
    """
    _check("system_messages", system_messages, ("apart", "in_place"))
    _check("thinking", thinking, ("drop_after_compaction", "keep", "drop"))
    _check("cache", cache, (None, "5m", "1h"))
    options = {"system_messages": system_messages, "thinking": thinking, "cache": cache}
    arguments = anthropic.request(view.elements, anthropic.Options(system_messages, thinking, cache))
    return Rendered(arguments, view, ANTHROPIC, options, tools=tools, system=system)


def for_openai(
    view: View,
    *,
    api: Literal["chat", "responses"] = "chat",
    tools: Sequence[Any] | None = None,
    system: System | None = None,
) -> Rendered:
    """Renders the arguments for OpenAI's Chat Completions (`messages`) or Responses (`input`).

    `tools` are added as they are. `system` is the first message of a chat, and the `instructions` of Responses.
    """
    _check("api", api, ("chat", "responses"))
    if api == "chat":
        return Rendered(openai_chat.request(view.elements), view, OPENAI_CHAT, {}, tools=tools, system=system)
    arguments = openai_responses.request(view.elements)
    return Rendered(arguments, view, OPENAI_RESPONSES, {}, tools=tools, system=system)


_PLACES = {ANTHROPIC: given.ANTHROPIC, OPENAI_CHAT: given.OPENAI_CHAT, OPENAI_RESPONSES: given.OPENAI_RESPONSES}
_RENDERERS: dict[str, Callable[..., Rendered]] = {
    ANTHROPIC: for_anthropic,
    OPENAI_CHAT: for_openai,
    OPENAI_RESPONSES: lambda view, **options: for_openai(view, api="responses", **options),
}


def rerender(view: View, renderer: object, options: object) -> Any:
    """Renders a view by the name of a renderer and its options; None if the renderer or an option is unknown."""
    if renderer == MESSAGES and not options:
        return view.messages
    render = _RENDERERS.get(renderer) if isinstance(renderer, str) else None
    if render is None or not isinstance(options, dict):
        return None
    try:
        return parts_of(render(view, **options)).rendered
    except (InvalidInput, TypeError):
        return None


def _check(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, choices))}{other(value)}")
