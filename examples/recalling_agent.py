"""An agent that calls tools for hundreds of turns in a small window, and looks up folded messages by itself.

    python examples/recalling_agent.py [TURNS]

A turn is a reply that calls a tool, and the tool's result. The agent alternates two kinds of compaction: with a prompt,
and with the API's own signed block. The thread is in $COMPACTION_STORE_URL, or else in the embedded Postgres. Without
$ANTHROPIC_API_KEY, a local fake model answers.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count, cycle
from typing import Any
from uuid import uuid4

import anthropic
import local_model

from compaction_store import CompactionContext, Store, TokenBudget, recall_tools
from compaction_store.recall import RecallTools
from compaction_store.summarizers import AnthropicSummarizer

MODEL = "claude-haiku-4-5"
FIND_ORDER: Any = {
    "name": "find_order",
    "description": "Says where an order is.",
    "input_schema": {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    },
}
# Some thirty turns fill this window.
BUDGET = TokenBudget(context_window=4800, reserve_output=400, overhead=800)
KEPT_QUESTIONS = 2


def find_order(number: int) -> str:
    steps = " ".join(f"It passed station {number % 7 + i}." for i in range(4))
    return f"Order {number} is on its way. {steps} It arrives on Friday."


def in_turn(client: anthropic.Anthropic, tools: list[Any]) -> Callable[[CompactionContext], None]:
    """Returns a callback that folds all but the last questions, with two summarizers in turn."""
    by_prompt = AnthropicSummarizer(client, model=MODEL)
    # The API's own compaction needs the tools of the conversation.
    natively = AnthropicSummarizer(client, model=MODEL, mode="native", parameters={"tools": tools})
    summarizers = cycle([by_prompt, natively])

    def compact(ctx: CompactionContext) -> None:
        talk = [e for e in ctx.elements if e.message is not None and e.message["role"] != "system"]
        questions = [e.seq for e in talk if not e.is_summary and isinstance((e.message or {})["content"], str)
                     and (e.message or {})["role"] == "user"]  # fmt: skip
        # Keep whole questions, so that no call is separated from its result.
        if len(questions) > KEPT_QUESTIONS:
            ctx.compact(talk[0].seq, questions[-KEPT_QUESTIONS] - 1, next(summarizers))

    return compact


def ask(store: Store, client: anthropic.Anthropic, thread: str, recall: RecallTools, question: str) -> int:
    """Answers one question: calls the model until it calls no more tools. Returns the number of tool calls."""
    tools = [FIND_ORDER, *recall.for_anthropic()]
    store.append(thread, {"role": "user", "content": question})
    turns = 0
    while True:
        request = store.fit(thread, BUDGET, actor="agent").for_anthropic(tools=tools)
        reply = client.beta.messages.create(model=MODEL, max_tokens=400, **request)
        store.append(thread, reply, view=request)
        calls: list[Any] = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return turns
        turns += 1
        store.append(thread, {"role": "user", "content": [_result(recall, call) for call in calls]})


def _result(recall: RecallTools, call: Any) -> dict[str, Any]:
    if call.name in recall:
        return recall.answer(call)
    return {"type": "tool_result", "tool_use_id": call.id, "content": find_order(**call.input)}


def question(number: int) -> str:
    """Yields questions: most ask for orders; some ask for earlier messages, and name the tool to use."""
    first = 4711 + 5 * number
    if number % 12 == 11:
        return "What was folded of our conversation so far? See recall_describe."
    if number % 6 == 5:
        return f"What did you tell me about order {first - 100}? Look it up with recall_search."
    return f"Where are orders {first}, {first + 1}, {first + 2}, {first + 3} and {first + 4}?"


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    key = os.environ.get("ANTHROPIC_API_KEY")
    client = anthropic.Anthropic() if key else anthropic.Anthropic(api_key="none", base_url=local_model.start())
    thread = f"orders-{uuid4()}"
    with client, Store.open() as store:
        recall = recall_tools(store, thread, max_tokens=600)
        store.on_compact(in_turn(client, [FIND_ORDER, *recall.for_anthropic()]))
        store.append(thread, {"role": "system", "content": "You help customers of a bookshop. Be brief."})
        for number in count():
            turns -= ask(store, client, thread, recall, question(number))
            if turns <= 0:
                break

        stands = store.thread(thread)
        print(f"{stands.last_seq} messages are stored; the model is sent {stands.view_tokens} tokens")
        for record in store.compactions(thread):
            made = f"{record.tokens_before} tokens to {record.tokens_after}"
            print(f"record {record.number}: seqs {record.start_seq} to {record.end_seq}, {made}, {record.status}")
        replies = [message.seq for message in store.replay(thread, last=40) if message.role == "assistant"]
        evidence = Counter(store.seen_by(thread, seq).evidence for seq in replies)
        print(f"the last {len(replies)} replies were written from views that are known: {dict(evidence)}")
        print("findings:", list(store.audit.verify(thread).findings))


if __name__ == "__main__":
    main()
