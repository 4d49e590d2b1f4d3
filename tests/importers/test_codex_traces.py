"""Traces of Codex: each reply has the exact request, also while the trace is being written; forks and reverts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from imported import left_out, metas, run, run_all, sound, stored
from support.codex_sessions import (
    AGAIN,
    CALL,
    FORK,
    LATE,
    OUTPUT,
    REPLIES,
    REQUESTS,
    REVERTED,
    SESSION,
    SHIPPED,
    STAND_IN,
    SUMMARY,
    TOOLS,
    USER,
    header,
    line,
    path_of,
    rollout,
    said,
    write_bundle,
    write_lines,
    zstd,
)
from support.faces import Face
from support.superuser_edits import unlock

import compaction_store as cs
from compaction_store.errors import MissingExtra
from compaction_store.rendering.given import digest

THREAD = f"codex:{SESSION}"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return write_lines(path_of(tmp_path, SESSION), rollout())


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "traces").parent


def proved(store: Face, thread: str, seq: int) -> Any:
    seen = store.seen_by(thread, seq)
    assert (seen.evidence, seen.where) == ("proved", None), seq
    return seen.messages


def test_each_reply_has_the_input_of_its_request(store: Face, session: Path, traces: Path) -> None:
    _, lines, requests = run_all(store, session, traces=str(traces))
    assert (lines.thread_id, requests.thread_id) == (f"{THREAD}/lines", f"{THREAD}/requests/b1")
    sound(store, THREAD, lines.thread_id, requests.thread_id)
    for seq, number in REPLIES.items():
        assert proved(store, THREAD, seq) == REQUESTS[number][1]
        receipt = store.seen_by(THREAD, seq).receipt
        assert (receipt["lines"], receipt["tools"]) == (requests.thread_id, digest(TOOLS))
        assert receipt["system"] == digest("Be brief.")
    # Codex does not write down the request for a summary of its own model, and what people say answers nothing.
    for seq in (3, 5, 6):
        assert (store.seen_by(THREAD, seq).evidence, store.seen_by(THREAD, seq).messages) == ("reconstructed", None)
    assert run_all(store, session, traces=str(traces))[2].loaded.added == 0  # type: ignore[union-attr]


def test_every_message_is_kept_once_and_the_body_can_be_made_again(store: Face, session: Path, traces: Path) -> None:
    requests = run_all(store, session, traces=str(traces))[2]
    found = [json.loads(m.payload["text"]) for m in store.replay(requests.thread_id)]
    kinds = [each["type"] for each in found]
    distinct = {json.dumps(item) for _, given, _ in REQUESTS for item in given}
    assert (kinds.count("api-request-blob"), kinds.count("api-request-shape")) == (len(distinct), 1)
    asked = [each for each in found if each["type"] == "api-request"]
    assert [each["querySource"] for each in asked] == [source for source, _, _ in REQUESTS]
    assert [each["params"] for each in asked] == [{"model": "gpt-5", "stream": True}] * 4
    assert [len(each["tail"]) + each["keep"] for each in asked] == [len(given) for _, given, _ in REQUESTS]
    [shape] = [each["shape"] for each in found if each["type"] == "api-request-shape"]
    assert shape == {"system": "Be brief.", "tools": TOOLS}


def test_without_traces_nothing_is_proved(store: Face, session: Path) -> None:
    assert [r.thread_id for r in run_all(store, session)] == [THREAD, f"{THREAD}/lines"]
    assert {store.seen_by(THREAD, seq).evidence for seq in REPLIES} == {"reconstructed"}


def test_the_folder_of_the_traces_may_be_in_the_environment(
    store: Face, session: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_ROLLOUT_TRACE_ROOT", str(traces))
    assert len(run_all(store, session)) == 3
    assert proved(store, THREAD, 2) == [USER]
    # Codex makes the folder when it writes the first trace.
    monkeypatch.setenv("CODEX_ROLLOUT_TRACE_ROOT", str(traces / "none"))
    assert len(run_all(store, session, prefix="other:")) == 2


def test_a_changed_line_of_a_request_is_no_proof(
    store: Face, session: Path, traces: Path, superuser: psycopg.Connection[Any]
) -> None:
    requests = run_all(store, session, traces=str(traces))[2]
    unlock(superuser)
    superuser.execute(
        "UPDATE compaction_store.messages AS m SET payload = replace(payload::text, 'A-17 🙂', 'A-18 🙂')::json"
        " FROM compaction_store.threads AS t WHERE t.thread_uid = m.thread_uid AND t.thread_id = %s",
        [requests.thread_id],
    )
    superuser.commit()
    assert proved(store, THREAD, 2) == REQUESTS[0][1]
    seen = store.seen_by(THREAD, 4)
    assert (seen.evidence, seen.where) == ("differs", "message 3 does not fit its hash")


def test_a_trace_that_is_still_written_gives_the_requests_so_far(store: Face, session: Path, tmp_path: Path) -> None:
    """The stream of payloads and the events may end anywhere. What is stored stays a prefix of the next import."""
    whole = write_bundle(tmp_path / "whole")
    events = (whole / "trace.jsonl").read_bytes()
    stream = zstd.decompress((whole / "payloads" / "000001.zst").read_bytes())
    growing = tmp_path / "traces" / whole.name
    (growing / "payloads").mkdir(parents=True)
    (growing / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    counts = []
    for percent in range(0, 101, 5):
        compressor = zstd.ZstdCompressor()
        part = compressor.compress(stream[: len(stream) * percent // 100])
        written = part + compressor.flush(zstd.ZstdCompressor.FLUSH_BLOCK)
        (growing / "payloads" / "000001.zst").write_bytes(written)
        (growing / "trace.jsonl").write_bytes(events[: len(events) * percent // 100])
        results = run_all(store, session, traces=str(growing.parent), skip_bad=percent % 2 == 1)
        counts += [r.loaded.count for r in results if "/requests/" in r.source_id and r.loaded]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert [m.payload for m in store.replay(f"{THREAD}/requests/b1")] == [
        m.payload for m in _stored_alone(store, session, whole)
    ]


def _stored_alone(store: Face, session: Path, bundle: Path) -> list[Any]:
    requests = run_all(store, session, traces=str(bundle.parent), prefix="alone:")[2]
    return list(store.replay(requests.thread_id))


def test_each_run_has_a_trace_and_each_thread_of_a_run_its_own(store: Face, session: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    write_bundle(traces, "b1", requests=REQUESTS[:2])
    write_bundle(traces, "b2", requests=REQUESTS[2:])
    write_bundle(traces, "b3", thread=FORK)
    results = run_all(store, session, traces=str(traces))
    assert [r.source_id for r in results[2:]] == [f"{SESSION}/requests/b1", f"{SESSION}/requests/b2"]
    for seq, number in REPLIES.items():
        assert proved(store, THREAD, seq) == REQUESTS[number][1]
    # A subagent has a rollout of its own, and is in the traces of its session.
    own = write_lines(path_of(tmp_path, FORK), [line("session_meta", header(FORK) | {"session_id": SESSION}, 0),
        line("response_item", USER, 1), line("response_item", CALL, 2)])  # fmt: skip
    run_all(store, own, traces=str(traces))
    assert proved(store, f"codex:{FORK}", 2) == [USER]


def test_a_chosen_name_is_the_name_of_all_threads_of_a_session(store: Face, session: Path, traces: Path) -> None:
    results = run_all(store, session, traces=str(traces), thread_id="mine")
    assert [r.thread_id for r in results] == ["mine", "mine/lines", "mine/requests/b1"]
    assert proved(store, "mine", 2) == [USER]


def continued(name: str, own: str, base: str, end: int, **more: Any) -> list[dict[str, Any]]:
    about = header(own) | {"history_base": {"thread_id": base, "end_ordinal_exclusive": end}, **more}
    return [
        line("session_meta", about, end), line("response_item", said("user", f"{name}-said", f"{name}?"), end + 1),
        line("response_item", said("assistant", f"{name}-done", f"{name}!"), end + 2),
    ]  # fmt: skip


def test_forks_and_reverts_begin_with_what_they_continue(
    store: Face, session: Path, traces: Path, tmp_path: Path
) -> None:
    """A fork has a session of its own. A revert goes on in another file of the same session."""
    write_lines(path_of(tmp_path, f"{SESSION}_{REVERTED}"), continued("r", SESSION, SESSION, 8))
    fork = write_lines(path_of(tmp_path, FORK), continued("f", FORK, REVERTED, 10))
    found = {r.source_id: r for r in run(store, session.parents[3], traces=str(traces))}
    assert found.keys() == {SESSION, FORK, f"{SESSION}_{REVERTED}"}
    assert [item["id"] for item in stored(store, THREAD)] == ["m1", "f1", "o1", "m2", "m3", "m5", "m6"]
    assert [item["id"] for item in stored(store, f"{THREAD}_{REVERTED}")] == [
        "m1",
        "f1",
        "o1",
        "m2",
        "r-said",
        "r-done",
    ]
    inherited = [item["id"] for item in stored(store, f"codex:{FORK}")]
    assert inherited == ["m1", "f1", "o1", "m2", "r-said", "f-said", "f-done"]
    assert proved(store, f"{THREAD}_{REVERTED}", 4) == REQUESTS[1][1]
    assert proved(store, f"codex:{FORK}", 4) == REQUESTS[1][1]
    # The lines of a file are those of the file alone, so that it can be written back.
    assert len(stored(store, f"codex:{FORK}/lines")) == 3
    assert run(store, fork, traces=str(traces))[0].loaded.added == 0  # type: ignore[union-attr]


def test_a_rollout_whose_beginning_is_missing_says_so(store: Face, tmp_path: Path) -> None:
    fork = write_lines(path_of(tmp_path, FORK), continued("f", FORK, SESSION, 10))
    for each in ("../../x", SESSION):
        write_lines(fork, continued("f", FORK, each, 10))
        [found] = run(store, fork, prefix=f"{len(each)}:")
        assert found.loaded is not None
        assert found.loaded.count == 2
        assert (found.hint or "").endswith(f"continues the rollout {each}, which was not found")


def test_a_rollout_that_continues_itself_ends(store: Face, tmp_path: Path) -> None:
    fork = write_lines(path_of(tmp_path, FORK), continued("f", FORK, FORK, 1))
    [found] = run(store, fork)
    assert "was not found" in (found.hint or "")


def test_what_the_lines_of_a_rollout_are(store: Face, session: Path) -> None:
    lines = [*rollout(), line("inter_agent_communication", {"content": "hello"}, 13), line("later", {"text": "x"}, 14)]
    write_lines(session, lines)
    [result] = run(store, session)
    assert (result.unknown, result.is_recognised) == ({"inter_agent_communication": 1, "later": 1}, True)
    assert left_out(result) == {
        "session_meta": 1, "turn_context": 1, "token_usage_record": 1, "event_msg/agent_message": 1, "world_state": 1,
    }  # fmt: skip
    assert stored(store, THREAD) == [USER, CALL, OUTPUT, LATE, SUMMARY, AGAIN, SHIPPED]
    assert metas(store, THREAD, "is_compact_summary") == [None, None, None, None, True, None, None]
    assert len(stored(store, f"{THREAD}/lines")) == len(lines)


def test_a_file_in_which_nothing_is_known_is_said_to_be_so(store: Face, session: Path) -> None:
    write_lines(session, [line("later", {"text": "x"}, 0)])
    [result] = run(store, session, format="codex")
    assert (result.loaded, result.is_recognised, result.unknown) == (None, False, {"later": 1})


def test_a_compaction_can_be_adopted(store: Face, session: Path) -> None:
    run(store, session)
    [record] = store.compactions(THREAD)
    assert (record.outcome, record.start_seq, record.end_seq) == ("observed", 1, 5)
    store.adopt(THREAD, record)
    assert store.view(THREAD).messages == [STAND_IN, AGAIN, SHIPPED]


@pytest.mark.parametrize(("change", "why"), [
    (lambda b: (b / "manifest.json").write_text("{"), "manifest.json: it is not JSON"),
    (lambda b: (b / "manifest.json").write_text('{"schema_version": 4}'), "schema_version must be 3"),
    (lambda b: (b / "manifest.json").write_text('{"schema_version": 3}'), "must be text"),
    (lambda b: (b / "payloads" / "000001.zst").write_bytes(b"no zstd"), "must be a stream of zstd"),
    (lambda b: (b / "trace.jsonl").write_text("{\n{}\n"), "line 1 of trace.jsonl of trace-b1"),
    (lambda b: (b / "payloads" / "000001.zst").write_bytes(
        zstd.compress(b"\x01\x00" + b"\xff" * 7 + b"\x00x")), "must have at most"),
    (lambda b: (b / "payloads" / "000001.zst").write_bytes(
        zstd.compress(b"\x0d\x00\x02" + b"\x00" * 7 + b"raw_payload:2{}")), "must be a request with an input"),
])  # fmt: skip
def test_a_damaged_trace_is_refused(store: Face, session: Path, traces: Path, change: Any, why: str) -> None:
    change(traces / f"trace-b1-{SESSION}")
    with pytest.raises(cs.InvalidSource, match=why):
        run_all(store, session, traces=str(traces))


def test_a_folder_without_traces_is_refused(store: Face, session: Path) -> None:
    with pytest.raises(cs.InvalidSource, match="traces must be a folder"):
        run_all(store, session, traces=str(session))
    with pytest.raises(cs.InvalidInput, match="traces must be given only for the format codex"):
        run_all(store, session, format="openai-responses", traces=str(session.parent))


def test_a_trace_without_the_package_for_it_names_the_extra(
    store: Face, session: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="importers"):
        run_all(store, session, traces=str(traces))
