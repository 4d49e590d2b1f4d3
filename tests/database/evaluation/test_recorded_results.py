"""Results of evaluations as events of the threads: on both faces, in bundles, and for both verifiers."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from support.faces import Face

import compaction_store as cs
from compaction_store import offline, tokens
from compaction_store.evaluation import RECORDED, evaluate, read_thread

CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "src/tides_of_june.py"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "The mistake is in src/tides_of_june.py, I think."},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "Then mend it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]


@pytest.fixture
def filled(store: Face) -> Face:
    store.append("t", TALK[:3])
    store.compact("t", lambda ctx: ctx.compact(1, 2, "They talked about a mistake."))
    store.append("t", TALK[3])
    return store


def test_a_result_is_an_event_that_verifies_and_quotes_nothing(filled: Face) -> None:
    thread = read_thread(filled, "t")
    [(name, document)] = evaluate([thread], [RECORDED], counter=tokens.bytes_over_four()).documents()
    event = filled.audit.record_evaluation(name, document, reason="the weekly run", authority={"ticket": "Q-7"})
    assert (event.kind, event.body["evaluation"], event.body["reason"]) == ("evaluation", document, "the weekly run")
    assert event.login
    assert document["kept"]["recorded"]["needed_later"] == [1, 0]
    assert "tides" not in str(document)
    assert [one.kind for one in filled.audit.events("t")] == ["evaluation"]
    assert filled.audit.verify("t").findings == ()
    assert filled.audit.verify("t").notes == ()
    bundle = b"".join(filled.audit.export("t"))
    assert cs.verify_bundle(io.BytesIO(bundle)).findings == ()
    assert offline.check(io.BytesIO(bundle)).findings == []
    assert len(filled.view("t").elements) == 3


def test_its_inputs_include_the_usage_and_not_the_times(store: Face) -> None:
    for name, meta in (("a", None), ("b", None), ("c", {"usage": {"input_tokens": 9}})):
        store.append(name, TALK, key=f"k-{name}", **({} if meta is None else {"meta": meta}))
    threads = [replace(read_thread(store, name), thread_id="t") for name in "abc"]
    hashes = [evaluate([thread], [RECORDED], counter=tokens.bytes_over_four()).inputs for thread in threads]
    assert hashes[0] == hashes[1] != hashes[2]


def test_it_stays_when_the_thread_is_erased(filled: Face) -> None:
    filled.audit.record_evaluation("t", {"kept": {}}, reason="a run")
    stub = filled.custody.erase("t", reason="case 1").thread_id
    assert [one.kind for one in filled.audit.events(stub)] == ["evaluation", "redaction"]
    assert filled.audit.verify(stub).findings == ()


@pytest.mark.parametrize("document", [None, [], "text", {"a": object()}, {"a": float("nan")}, {1: 2}])
def test_a_document_that_is_not_a_json_object_is_refused(filled: Face, document: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="document"):
        filled.audit.record_evaluation("t", document, reason="a run")
    with pytest.raises(cs.InvalidInput, match="reason"):
        filled.audit.record_evaluation("t", {}, reason="")
    with pytest.raises(cs.ThreadNotFound):
        filled.audit.record_evaluation("nobody", {}, reason="a run")
    assert list(filled.audit.events("t")) == []
