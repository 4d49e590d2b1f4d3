"""The view of a thread, and requests to APIs that are rendered from a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from compaction_store import arguments as checks
from compaction_store.arguments import other_choice
from compaction_store.errors import InvalidInput, NotRenderable
from compaction_store.jsonable import AsDict, plain
from compaction_store.messages import tool_pairs
from compaction_store.messages.stand_ins import shown
from compaction_store.models import Element, Measured, Payload, PendingCall
from compaction_store.rendering import given
from compaction_store.rendering.given import Parts, System

MESSAGES = "messages/1"
ANTHROPIC = "anthropic/1"
OPENAI_CHAT = "openai-chat/1"
OPENAI_RESPONSES = "openai-responses/1"

SystemMessages = Literal["apart", "in_place"]
Thinking = Literal["drop_after_compaction", "keep", "drop"]
Cache = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class View(AsDict):
    """The messages of a thread that the model should see, at a pos. `tokens` is the sum of the store's own counts.

    `measured` is the best estimate of the view's size. It is None unless the view was measured against a budget. `head`
    is the hash of the thread's entry at `pos`. If the thread has a different entry there, the store refuses writes that
    were made from this view.
    """

    thread_id: str
    pos: int
    elements: tuple[Element, ...] = field(repr=False)
    measured: Measured | None = field(default=None, repr=False, compare=False)
    head: bytes = field(default=b"", repr=False)
    _derived: ClassVar = ("tokens", "pending_calls")

    @property
    def messages(self) -> list[Payload]:
        """The messages in order, with the replacement of each active compaction, or a line for a removal.

        A stand-in that says so is in place of an erased message.
        """
        return [message for element in self.elements for message in shown(element)]

    @property
    def tokens(self) -> int:
        return sum(element.tokens for element in self.elements)

    @property
    def pending_calls(self) -> tuple[PendingCall, ...]:
        """The tool calls without a result, in order. An application that resumes after a crash begins with them.

        Calls that the provider answers itself are left out.
        """
        return tool_pairs.pending_calls(self.elements)

    def for_anthropic(
        self,
        *,
        tools: Sequence[Any] | None = None,
        system: System | None = None,
        system_messages: SystemMessages = "apart",
        thinking: Thinking = "drop_after_compaction",
        cache: Cache | None = None,
    ) -> Rendered:
        """Renders the arguments for Anthropic's Messages API: `messages`, `system`, and `betas` if a block needs one.

        `tools` are added unchanged. `system` is text or blocks, and comes before the system messages of the view. With
        `system_messages="apart"`, all system messages come before the conversation, except those that add or remove
        tools. With "in_place", later system messages stay in the conversation. `thinking` says whether to drop thinking
        that is older than a compaction, to keep all thinking, or to drop all. `cache` adds up to four cache breakpoints
        with this lifetime: after the tools, the system prompt, the last summary and the last message.
        """
        _check("system_messages", system_messages, ("apart", "in_place"))
        _check("thinking", thinking, ("drop_after_compaction", "keep", "drop"))
        _check("cache", cache, (None, "5m", "1h"))
        if cache is not None:
            given.check(given.tools_of(tools), given.system_of(system), cache)
        options = {"system_messages": system_messages, "thinking": thinking, "cache": cache}
        with _naming_the_way_out(self):
            anthropic = _renderer("anthropic")
            arguments = anthropic.request(self.elements, anthropic.Options(system_messages, thinking, cache))
        return Rendered(arguments, self, ANTHROPIC, options, tools=tools, system=system)

    def for_openai(
        self,
        *,
        api: Literal["chat", "responses"] = "chat",
        tools: Sequence[Any] | None = None,
        system: System | None = None,
        join: bool | None = None,
    ) -> Rendered:
        """Renders the arguments for OpenAI's Chat Completions API (`messages`) or Responses API (`input`).

        `tools` are added unchanged. `system` becomes the first message of a chat, or the `instructions` of Responses.
        With `join`, consecutive messages of one role and name are joined, and the first message is the user's, because
        the chat templates of some models refuse anything else, such as Mistral's and Gemma's. This is the default of
        chat. In Responses, items with an id are not joined, and the default is not to join.
        """
        _check("api", api, ("chat", "responses"))
        join = api == "chat" if join is None else join
        checks.instance(join, bool, "join")
        renderer = OPENAI_CHAT if api == "chat" else OPENAI_RESPONSES
        with _naming_the_way_out(self):
            arguments = _renderer(f"openai_{api}").request(self.elements, join=join)
        return Rendered(arguments, self, renderer, {"join": join}, tools=tools, system=system)


@dataclass(frozen=True, slots=True)
class SeenView(AsDict):
    """The view from which a reply was written, and the evidence for it.

    The evidence is `proved` if the receipt of the reply names the view and has its hash. It is `reconstructed` if the
    reply has no receipt: then the view is the view just before the reply. It is `differs` if the view, rendered again,
    does not have the hash in the receipt, for example after a redaction.

    If a coding agent wrote the reply, and its session file has the request, `messages` is the list of messages that the
    agent sent, without marks for the cache, and the evidence is about this list and not about the view. If it is not
    `proved`, `where` says what is missing or does not fit its hash.
    """

    evidence: Literal["proved", "reconstructed", "differs"]
    view: View
    receipt: Payload | None
    messages: list[Payload] | None = field(default=None, repr=False)
    where: str | None = None


class Rendered(dict[str, Any]):
    """The arguments of a request, which you can unpack into a call of an SDK, and the view that they come from.

    Pass this object as `view=` when you append the reply. The receipt then records the renderer, its options, and
    hashes of the arguments, of the tools and of the system prompt. It does not record arguments that you add, such as
    `max_tokens`.
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
        # The receipt has no hash of the betas, because the messages determine them and callers may add to them.
        rendered = {name: value for name, value in arguments.items() if name != "betas"}
        self._given = Parts(rendered, given.tools_of(tools), given.system_of(system))
        super().__init__({**arguments, **given.whole(self._given, _place(renderer, options), options.get("cache"))})

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
        """Returns the arguments, thread, pos, head, renderer and options, ready for `json.dumps`."""
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


def parts_of(request: Rendered) -> Parts:
    """Returns the current parts of a request, which the caller may have changed."""
    known = request._given  # noqa: SLF001 — for this package only
    options = request.options
    return given.taken_apart(dict(request), known, _place(request.renderer, options), options.get("cache"))


for_anthropic, for_openai = View.for_anthropic, View.for_openai


def _renderer(api: str) -> Any:
    """Returns the module for an API. It is loaded with the first request, because a program seldom uses all of them."""
    return import_module(f"compaction_store.rendering.{api}")


@contextmanager
def _naming_the_way_out(view: View) -> Iterator[None]:
    """Adds to a `NotRenderable` how to take the message out of the view."""
    try:
        yield
    except NotRenderable as error:
        refused = NotRenderable(f"{error}; {_way_out(view, error.seq)}", seq=error.seq, part=error.part)
    else:
        return
    raise refused


def _way_out(view: View, seq: int) -> str:
    index = next(index for index, element in enumerate(view.elements) if element.seq == seq)
    if (number := view.elements[index].number) is not None and number > 0:
        return f"revoke(thread_id, {number}) brings back the messages that it replaced"
    items = tool_pairs.items_of(view.elements)
    if (span := tool_pairs.Links(items).closed(index, index)) is None:
        return f"append the result of its call, or hide the message with rewind(thread_id, {seq - 1})"
    low, high = span
    inside = [payload for item in items[low : high + 1] for payload in item]
    names = ["system"] if any(map(tool_pairs.is_system, inside)) else []
    if (last := tool_pairs.last_user(items)) is not None and low <= last <= high:
        names.append("last_user")
    allow = f", allow={{{', '.join(map(repr, names))}}}" if names else ""
    start, end = view.elements[low].seq, view.elements[high].end_seq
    return f"compact(thread_id, lambda ctx: ctx.remove({start}, {end}{allow})) takes it out of the view"


def _place(renderer: str, options: Payload) -> given.PromptPlace:
    if renderer == OPENAI_CHAT:
        return given.OPENAI_CHAT_JOINED if options["join"] else given.OPENAI_CHAT
    return given.ANTHROPIC if renderer == ANTHROPIC else given.OPENAI_RESPONSES


_RENDERERS: dict[str, Callable[..., Rendered]] = {
    ANTHROPIC: for_anthropic,
    OPENAI_CHAT: for_openai,
    OPENAI_RESPONSES: lambda view, **options: for_openai(view, api="responses", **options),
}


def rerender(view: View, renderer: object, options: object) -> Any:
    """Renders a view with a renderer, given by its name, and options. Returns None if one of these is unknown."""
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
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, choices))}{other_choice(value)}")
