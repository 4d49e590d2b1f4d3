"""An agent on Anthropic's Messages API whose thread is stored, compacted when it grows, and audited.

    python examples/anthropic_agent.py

The thread is in $COMPACTION_STORE_URL, or else in the embedded Postgres. Without $ANTHROPIC_API_KEY, a local fake
model answers.
"""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

import anthropic
import local_model

from compaction_store import Store, TokenBudget
from compaction_store.strategies import ClearToolResults, SlidingWindow
from compaction_store.summarizers import AnthropicSummarizer, FallbackSummarizer, StateSummary

MODEL = "claude-haiku-4-5"
TOOLS: Any = [
    {
        "name": "find_order",
        "description": "Says where an order is.",
        "input_schema": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    }
]
# A dozen questions fill this window. For a real model, use its context window, and the size of the tools as overhead.
BUDGET = TokenBudget(context_window=2400, reserve_output=400)


def find_order(number: int) -> str:
    steps = " ".join(f"It passed station {number % 7 + i}." for i in range(9))
    return f"Order {number} is on its way. {steps} It arrives on Friday."


def turn(store: Store, client: anthropic.Anthropic, thread: str, question: str) -> str:
    """Answers one question: calls the model until it calls no more tools."""
    store.append(thread, {"role": "user", "content": question})
    while True:
        # `fit` compacts the view first if it is over its budget. Even if that fails, the view that it returns fits.
        request = store.fit(thread, BUDGET, actor="agent").for_anthropic(tools=TOOLS, cache="5m")
        reply = client.beta.messages.create(model=MODEL, max_tokens=400, **request)
        # Store the SDK's object as it is, with a receipt for the request that the model was sent.
        store.append(thread, reply, view=request)
        calls: list[Any] = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return " ".join(block.text for block in reply.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": find_order(**call.input)} for call in calls
        ]
        store.append(thread, {"role": "user", "content": results})


def main() -> None:
    key = os.environ.get("ANTHROPIC_API_KEY")
    client = anthropic.Anthropic() if key else anthropic.Anthropic(api_key="none", base_url=local_model.start())
    summarize = FallbackSummarizer(AnthropicSummarizer(client, model=MODEL), StateSummary())
    thread = f"orders-{uuid4()}"
    with client, Store.open() as store:
        store.on_compact(ClearToolResults(keep=2))
        store.on_compact(SlidingWindow(summarize, retain=6))
        store.append(thread, {"role": "system", "content": "You help customers of a bookshop. Be brief."})
        answer = ""
        for number in range(4711, 4723):
            answer = turn(store, client, thread, f"Where is order {number}?")
        print(answer)

        stands = store.thread(thread)
        print(f"{stands.last_seq} messages are stored; the model is sent {stands.view_tokens} tokens")
        for record in store.compactions(thread, outcome="applied", kind="summary"):
            made = f"{record.tokens_before} tokens to {record.tokens_after}, by {record.model}"
            print(f"record {record.number}: seqs {record.start_seq} to {record.end_seq}, {made}, {record.status}")
        seen = store.seen_by(thread, stands.last_seq)
        print(f"the last reply was written from the view at pos {seen.view.pos}: {seen.evidence}")
        print("findings:", list(store.audit.verify(thread).findings))


if __name__ == "__main__":
    main()
