"""An agent on OpenAI's Chat Completions whose thread is stored, compacted by a callback, and can be audited later.

    python examples/openai_loop.py

The thread is in $COMPACTION_STORE_URL, or else in the embedded Postgres. Without $OPENAI_API_KEY, a local fake model
answers. $OPENAI_BASE_URL may name any service that speaks this API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import local_model
import openai

from compaction_store import CompactionContext, Element, Store, Summary, TokenBudget

MODEL = "gpt-4.1-mini"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Says where an order is.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer"}},
                "required": ["number"],
            },
        },
    }
]
# A dozen questions fill this window. For a real model, use its context window, and the size of the tools as overhead.
BUDGET = TokenBudget(context_window=2000, reserve_output=400)
KEEP = 6


def find_order(number: int) -> str:
    steps = " ".join(f"It passed station {number % 7 + i}." for i in range(9))
    return f"Order {number} is on its way. {steps} It arrives on Friday."


def turn(store: Store, client: openai.OpenAI, thread: str, question: str, key: str) -> str:
    """Answers one question: calls the model until it calls no more tools."""
    # With the key, a retry of the same question adds nothing.
    store.append(thread, {"role": "user", "content": question}, key=key)
    while True:
        request = store.fit(thread, BUDGET, actor="agent").for_openai(tools=TOOLS)
        completion: Any = client.chat.completions.create(model=MODEL, **request)
        message = completion.choices[0].message
        store.append(thread, message, view=request)
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            found = find_order(**json.loads(call.function.arguments))
            store.append(thread, {"role": "tool", "tool_call_id": call.id, "content": found})


def summarizer(client: openai.OpenAI) -> Any:
    """A custom summarizer: it gets the elements of a span and returns a text, or a Summary with more about it."""

    def summarize(elements: Sequence[Element]) -> Summary:
        messages = [message for element in elements for message in element.messages]
        prompt = "Summarize this conversation between a shop's agent and a customer. Keep every order's number.\n\n"
        completion = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt + json.dumps(messages)}]
        )
        usage = completion.usage.model_dump() if completion.usage else None
        return Summary(completion.choices[0].message.content or "", model=completion.model, prompt=prompt, usage=usage)

    return summarize


def main() -> None:
    key = os.environ.get("OPENAI_API_KEY")
    client = openai.OpenAI() if key else openai.OpenAI(api_key="none", base_url=f"{local_model.start()}/v1")
    summarize = summarizer(client)
    thread = f"orders-{uuid4()}"
    with client, Store.open() as store:

        @store.on_compact
        def fold_the_old(ctx: CompactionContext) -> None:
            # The largest span that separates no call from its result, without the system message and the last user
            # message.
            span = ctx.safe_span(ctx.elements[1].seq, ctx.elements[-KEEP].end_seq)
            if span is not None:
                ctx.compact(*span, summarize)

        store.append(thread, {"role": "system", "content": "You help customers of a bookshop. Be brief."})
        answer = ""
        for number in range(4711, 4723):
            answer = turn(store, client, thread, f"Where is order {number}?", key=f"question-{number}")
        print(answer)

        stands = store.thread(thread)
        print(f"{stands.last_seq} messages are stored; the model is sent {stands.view_tokens} tokens")
        for record in store.compactions(thread, outcome="applied"):
            made = f"{record.tokens_before} tokens to {record.tokens_after}, by {record.model}"
            print(f"record {record.number}: seqs {record.start_seq} to {record.end_seq}, {made}, {record.status}")
        newest = next(iter(store.compactions(thread, newest_first=True)))
        undone = store.revoke(thread, newest.number, reason="to show that it can be", actor="agent")
        view = store.view(thread)
        print(f"record {undone.number} revokes {undone.revokes}: the view has {len(view.messages)} messages again")


if __name__ == "__main__":
    main()
