"""Lines that are carried below a summary are part of its record, and go when a message of its span is erased."""

from __future__ import annotations

import json
from typing import Any

from support.faces import Face

from compaction_store.strategies import Carry, SlidingWindow

LONG = "which goes on for quite some time " * 30


def turns(number: int, item: str) -> list[dict[str, Any]]:
    function = {"name": "update_plan", "arguments": json.dumps({"plan": [{"step": item, "status": "pending"}]})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": f"Please do {item}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": LONG},
        {"role": "assistant", "content": LONG},
    ]


def test_carried_lines_are_recorded_verified_and_erased(store: Face) -> None:
    store.append("t", [*turns(1, "the cellar"), *turns(2, "the attic"), *turns(3, "the roof")])
    window = SlidingWindow(lambda _: "Work on a house.", retain=4, keep_first=False, carry=Carry())
    (record,) = store.compact("t", window).records
    text = record.summary_text or ""
    assert "[6] update_plan: - the attic (pending)" not in text, "a newer plan stays in the view"
    assert "[1] user: Please do the cellar." in text
    assert record.coverage == {"carried": 2}
    assert "carry=Carry(" in (record.callback or "")
    assert record.summarizer is not None
    assert "Carrier" not in record.summarizer
    view = store.view("t")
    for request in (view.for_anthropic(), view.for_openai(), view.for_openai(api="responses")):
        assert "Please do the cellar." in json.dumps(request)
    assert store.audit.verify("t").findings == ()
    store.custody.redact("t", 1, reason="asked for", actor="dpo")
    assert "Please do the cellar" not in json.dumps(store.view("t").for_openai())
    assert "Please do the cellar" not in str(store.compaction("t", 1).summary_text)
    assert store.audit.verify("t").findings == ()
