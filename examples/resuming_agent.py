"""An agent that goes on after a crash where it stopped. Run it again with the same thread as often as you like.

    python examples/resuming_agent.py order-4722            # kill it at any time, then run it again

The agent uses $COMPACTION_STORE_URL, or else the embedded Postgres. The model is a stand-in that needs no key.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from compaction_store import Store, TokenBudget, View
from compaction_store.models import PendingCall
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

BUDGET = TokenBudget(context_window=200_000)
STEPS = ("find_order", "ask_carrier", "refund")


def model(view: View) -> dict[str, Any]:
    """Stands in for a model that calls one tool after another, and then says that it is done."""
    done = sum(message["role"] == "assistant" for message in view.messages)
    if done == len(STEPS):
        return {"role": "assistant", "content": [{"type": "text", "text": "The order is lost; I refunded it."}]}
    call = {"type": "tool_use", "id": f"call-{done + 1}", "name": STEPS[done], "input": {"order": 4722}}
    return {"role": "assistant", "content": [call]}


def tool(call: PendingCall) -> str:
    """Runs a tool. A crash can come after the tool has worked and before its result is stored.

    So give a tool with side effects the id of the call as its key, such as the Idempotency-Key of a payment.
    """
    if os.environ.get("KILL_AT") == call.name:
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"runs {call.name} for {call.id}")
    return f"{call.name}: done"


def run(store: Store, thread: str, task: str) -> str:
    # Two processes must not resume the same thread. If this one is killed, the next can begin 5 seconds later.
    with store.turn(thread, lease=5) as turn:
        # The key makes this a no-op when the agent resumes.
        turn.append({"role": "user", "content": task}, key="task")
        while True:
            view = store.fit(thread, BUDGET)
            if view.pending_calls:
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": tool(call)}
                    for call in view.pending_calls
                ]
                turn.append({"role": "user", "content": results})
            elif view.messages[-1]["role"] == "assistant":
                text: str = view.messages[-1]["content"][0]["text"]
                return text
            else:
                turn.append(model(view), view=view)


if __name__ == "__main__":
    with Store.open(actor="resuming agent") as opened:
        opened.on_compact(SlidingWindow(StateSummary(), retain=12))
        print(run(opened, sys.argv[1], "Where is order 4722?"))
