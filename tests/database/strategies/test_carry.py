"""Lines that are carried below a summary are part of its record, and go when a message of its span is erased."""

from __future__ import annotations

import json
from typing import Any

from support.faces import Face, Faces

from compaction_store.strategies import Carry, SlidingWindow
from compaction_store.summarizers import StateSummary

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


def test_an_async_summarizer_is_awaited_and_a_failure_is_recorded(store: Face, faces: Faces) -> None:
    store.append("t", [*turns(1, "the cellar"), *turns(2, "the attic"), *turns(3, "the roof")])

    class Writer:
        name = "Writer"
        model = "writer-1"
        broken = True

        def text(self) -> str:
            if self.broken:
                raise TimeoutError("no answer about the cellar")
            return "Work on a house."

    class AsyncWriter(Writer):
        async def __call__(self, _: Any) -> str:
            return self.text()

    class SyncWriter(Writer):
        def __call__(self, _: Any) -> str:
            return self.text()

    writer: Any = SyncWriter() if faces.kind == "sync" else AsyncWriter()
    window = SlidingWindow(writer, retain=4, keep_first=False, carry=Carry())
    failed, *_ = store.compact("t", window).records
    assert (failed.outcome, failed.summarizer, failed.model) == ("failed", "Writer", "writer-1")
    assert "cellar" not in json.dumps(failed.error)
    writer.broken = False
    (record,) = store.compact("t", window).records
    assert (record.outcome, record.summarizer, record.model) == ("applied", "Writer", "writer-1")
    assert "[5] user: Please do the attic." in (record.summary_text or "")


def test_the_lines_are_no_parts_of_a_state_summary(store: Face) -> None:
    store.append("t", [*turns(1, "the cellar"), *turns(2, "the attic"), *turns(3, "the roof")])
    window = SlidingWindow(StateSummary(), retain=4, keep_first=False, carry=Carry())
    (record,) = store.compact("t", window).records
    assert "[1] user: Please do the cellar." in (record.summary_text or "")
    assert record.parts is not None
    assert record.parts.counts == (record.coverage or {})["lines"]
    assert "orders" not in record.parts
