"""Receipts of requests with tools and a system prompt: their hashes are kept beside that of the rendered view."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import anthropic
import pytest
from anthropic import beta_tool
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionFunctionTool
from support.faces import Face

from compaction_store import InvalidInput, View
from compaction_store.models import Element, Payload
from compaction_store.rendering import Rendered, for_anthropic, for_openai
from compaction_store.rendering.receipts import matches, receipt

TOOLS = [{"name": "find_order", "input_schema": {"type": "object", "properties": {"größe": {"minimum": 0.5}}}}]
# The same with its names in order, compact and in ASCII.
CANONICAL = r'[{"input_schema":{"properties":{"gr\u00f6\u00dfe":{"minimum":0.5}},"type":"object"},"name":"find_order"}]'
PROMPT = "You help customers of a bookshop."
OF_PROMPT = sha256(b'"You help customers of a bookshop."').hexdigest()
OF_TOOLS = sha256(CANONICAL.encode()).hexdigest()
API = Literal["anthropic", "chat", "responses"]
APIS: tuple[API, ...] = ("anthropic", "chat", "responses")


def rendered(view: View, api: API, **options: Any) -> Rendered:
    return for_anthropic(view, **options) if api == "anthropic" else for_openai(view, api=api, **options)


def filled(store: Face, *, system: Any = None) -> View:
    if system is not None:
        store.append("t", {"role": "system", "content": system})
    store.append("t", {"role": "user", "content": "Where is order 4711?"})
    view: View = store.view("t")
    return view


def replied(store: Face, request: Rendered) -> int:
    [reply] = store.append("t", {"role": "assistant", "content": "In Lisbon."}, view=request)
    seq: int = reply.seq
    return seq


def sent_to(api: API, request: Rendered) -> tuple[Any, Any]:
    """The tools and the system prompt where the API has them."""
    system = {
        "anthropic": request.get("system"),
        "chat": request.get("messages"),
        "responses": request.get("instructions"),
    }
    return request.get("tools"), system[api]


@pytest.mark.parametrize("api", APIS)
def test_the_receipt_has_the_hashes_of_tools_and_system_prompt(store: Face, api: API) -> None:
    request = rendered(filled(store), api, tools=TOOLS, system=PROMPT)
    tools, system = sent_to(api, request)
    assert tools == TOOLS
    assert (system[0] if api == "chat" else system) == (
        {"role": "system", "content": PROMPT} if api == "chat" else PROMPT
    )
    seq = replied(store, request)
    seen = store.seen_by("t", seq)
    assert seen.evidence == "proved"
    assert (seen.receipt["tools"], seen.receipt["system"]) == (OF_TOOLS, OF_PROMPT)
    found = store.audit.explain("t", seq, tools=TOOLS, system=PROMPT)
    assert (found.receipt, found.same_tools, found.same_system) == (seen.receipt, True, True)
    other = store.audit.explain("t", seq, tools=[*TOOLS, *TOOLS], system=PROMPT + " ")
    assert (other.same_tools, other.same_system) == (False, False)
    unasked = store.audit.explain("t", seq)
    assert (unasked.same_tools, unasked.same_system) == (None, None)
    assert json.dumps(found.as_dict())
    assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "own", ["Be brief.", [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]]
)
def test_the_prompt_comes_before_the_system_messages_of_the_view(store: Face, api: API, own: Any) -> None:
    view = filled(store, system=own)
    request = rendered(view, api, system=PROMPT)
    if api == "anthropic":
        assert [block["text"] for block in request["system"]][:2] == [PROMPT, "Be brief."]
    seq = replied(store, request)
    assert store.seen_by("t", seq).evidence == "proved"
    # Without a prompt of the caller's, the view has the same hash.
    plain = json.loads(receipt(rendered(view, api)))
    assert plain["sha256"] == store.seen_by("t", seq).receipt["sha256"]
    assert "system" not in plain


def test_a_request_without_them_has_no_hash_and_an_empty_one_has(store: Face) -> None:
    view = filled(store)
    seq = replied(store, view.for_anthropic())
    found = store.audit.explain("t", seq, tools=TOOLS, system=PROMPT)
    assert found.receipt is not None
    assert found.receipt.keys() == {"pos", "renderer", "options", "sha256"}
    assert (found.same_tools, found.same_system) == (None, None)
    request = view.for_anthropic(tools=[], system="")
    assert request.keys() == {"messages"}
    seq = replied(store, request)
    found = store.audit.explain("t", seq, tools=[], system="")
    assert (found.same_tools, found.same_system) == (True, True)
    assert store.audit.explain("t", seq, tools=TOOLS).same_tools is False
    # A message that is no reply has no receipt.
    assert store.audit.explain("t", 1, tools=TOOLS).receipt is None
    with pytest.raises(InvalidInput, match="tools must be a list"):
        store.audit.explain("t", 1, tools="find_order")


def test_the_sdks_objects_are_sent_and_hashed_as_their_json(store: Face) -> None:
    @beta_tool
    def find_order(number: int) -> str:
        """Finds an order."""
        return str(number)

    view = filled(store)
    request = view.for_anthropic(tools=[find_order])
    assert request["tools"] == [find_order.to_dict()]
    assert store.audit.explain("t", replied(store, request), tools=[find_order.to_dict()]).same_tools is True
    tool = {"type": "function", "function": {"name": "find_order"}}
    request = view.for_openai(tools=(ChatCompletionFunctionTool.model_validate(tool),))
    assert request["tools"] == [tool]
    assert store.audit.explain("t", replied(store, request), tools=[tool]).same_tools is True


def test_what_the_caller_sets_afterwards_is_in_the_receipt(store: Face) -> None:
    view = filled(store)
    request = view.for_anthropic()
    request["tools"], request["system"], request["max_tokens"] = TOOLS, PROMPT, 400
    request["betas"] = ["mcp-client-2025-11-20"]
    found = store.audit.explain("t", replied(store, request), tools=TOOLS, system=PROMPT)
    assert (found.same_tools, found.same_system) == (True, True)
    assert store.seen_by("t", found.message.seq).evidence == "proved"
    request = view.for_openai(api="responses", tools=TOOLS, system="Another.")
    request["instructions"] = PROMPT
    assert store.audit.explain("t", replied(store, request), system=PROMPT).same_system is True


def test_a_reply_is_stored_whatever_the_caller_sets(store: Face) -> None:
    request = filled(store).for_anthropic(tools=TOOLS, system=PROMPT)
    request["tools"], request["system"] = [anthropic], 5
    found = store.audit.explain("t", replied(store, request))
    assert found.receipt is not None
    assert found.receipt.keys() == {"pos", "renderer", "options", "sha256"}


@pytest.mark.parametrize("api", APIS)
def test_a_request_whose_messages_were_changed_differs(store: Face, api: API) -> None:
    view = filled(store)
    name = "input" if api == "responses" else "messages"
    added, emptied = (rendered(view, api, system=PROMPT) for _ in range(2))
    added[name].append({"role": "user", "content": "And 4712?"})
    emptied[name] = []
    for request in (added, emptied):
        assert store.seen_by("t", replied(store, request)).evidence == "differs"


@pytest.mark.parametrize("api", APIS)
def test_what_the_caller_takes_out_again_is_not_in_the_receipt(store: Face, api: API) -> None:
    request = rendered(filled(store), api, tools=TOOLS, system=PROMPT)
    del request["tools"]
    if api == "chat":
        request["messages"] = request["messages"][1:]
    else:
        del request["system" if api == "anthropic" else "instructions"]
    seen = store.seen_by("t", replied(store, request))
    assert seen.evidence == "proved"
    assert seen.receipt.keys() == {"pos", "renderer", "options", "sha256"}


@pytest.mark.parametrize(
    "option", [{"tools": "x"}, {"tools": [1]}, {"tools": [object()]}, {"system": 5}, {"system": ["x"]}]
)
def test_other_values_are_refused(store: Face, option: Any) -> None:
    view = filled(store)
    for api in APIS:
        with pytest.raises(InvalidInput, match=f"{next(iter(option))} must be"):
            rendered(view, api, **option)
    with pytest.raises(InvalidInput, match="system must be text for Responses"):
        view.for_openai(api="responses", system=[{"type": "text", "text": PROMPT}])


def view_of(*payloads: Payload) -> View:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return View("t", len(payloads), tuple(Element(i, i, i, (p,), 9, None, moment) for i, p in enumerate(payloads, 1)))


TEXTS = st.text(max_size=5)
BLOCKS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=3)
SYSTEM = TEXTS | BLOCKS


@settings(max_examples=300, deadline=None)
@given(st.lists(SYSTEM, max_size=2), SYSTEM, st.sampled_from(APIS))
def test_any_prompt_can_be_taken_out_again(own: list[Any], prompt: Any, api: API) -> None:
    if api == "responses" and not isinstance(prompt, str):
        return
    view = view_of(*({"role": "system", "content": part} for part in own), {"role": "user", "content": "hi"})
    with_it, without = (json.loads(receipt(rendered(view, api, system=system))) for system in (prompt, None))
    assert (
        with_it.pop("system") == sha256(json.dumps(prompt, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
    )
    assert with_it == without
    assert matches(view, with_it)
