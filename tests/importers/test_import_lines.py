"""Unreadable lines are named by their number, skipped only on request, and never quoted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from imported import FIXTURES, run, sound, stored
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import Notes, detect, line_files, open_source
from compaction_store.importers.line_files import LineFile, LineRange
from compaction_store.models import Observed, ToLoad

GOOD = b'{"role":"user","content":"fine"}'
BAD = {
    "it is not JSON: invalid control character at column 33": b'{"role":"user","content":"SECRET',
    "it is not JSON: expecting": b'{"SECRET": nope}',
    "it is not a JSON object": b'["SECRET"]',
    "it is not UTF-8": b'{"content":"SECRET \xff"}',
    "an object has the same name twice": b'{"role":"user","content":"SECRET","content":"b"}',
    "NaN or infinite": b'{"role":"user","content":NaN,"SECRET":1}',
    "must be a finite number": b'{"role":"user","content":"SECRET","n":1e999}',
    "a number is too long": b'{"role":"user","content":"SECRET","n":' + b"7" * 5000 + b"}",
    "nest at most 200": b'{"role":"user","content":' + b"[" * 300 + b"]" * 300 + b"}",
    "is nested too deeply": b'{"role":"user","content":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not a message of the format openai-chat": b'{"SECRET":"x"}',
    "at most 16,777,216": b'{"role":"user","content":"' + b"x" * 17_000_000 + b'"}',
    "at most 8,192": b'{"role":"user","content":"SECRET","id":"' + b"x" * 9000 + b'"}',
}


@pytest.mark.parametrize(("why", "bad"), BAD.items())
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, why: str, bad: bytes) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\n".join([GOOD, b"", GOOD, bad, GOOD]) + b"\n")
    [thread] = open_source(path, format="openai-chat").threads()
    with pytest.raises(cs.InvalidSource) as caught:
        list(thread.items)
    assert caught.value.line == 4
    assert str(caught.value).startswith("line 4 of f.jsonl: ")
    assert why in str(caught.value)
    assert "SECRET" not in str(caught.value)
    [thread] = open_source(path, format="openai-chat", skip_bad=True).threads()
    assert len(list(thread.items)) == 3
    assert thread.notes.skipped == 1
    [kept] = thread.notes.bad
    assert (kept.line, kept.where) == (4, "line 4 of f.jsonl")
    assert why in kept.why


def test_what_came_before_a_bad_line_stays_and_the_import_goes_on_from_there(store: Face, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\n".join([GOOD, b'{"SECRET', GOOD]))
    with pytest.raises(cs.InvalidSource, match=r"line 2 of f\.jsonl") as caught:
        run(store, path)
    assert "0 messages of the load are stored" in "".join(caught.value.__notes__)
    [result] = run(store, path, skip_bad=True)
    assert (result.skipped, result.loaded.added) == (1, 2)  # type: ignore[union-attr]
    assert [bad.line for bad in result.bad] == [2]
    assert "SECRET" not in repr(result)
    # The line is repaired, so the stored messages are no longer the beginning of the file.
    path.write_bytes(b"\n".join([GOOD, b'{"role":"user","content":"new"}', GOOD]))
    with pytest.raises(cs.IdempotencyConflict):
        run(store, path)
    [refused] = run(store, path, skip_bad=True)
    assert isinstance(refused.refused, cs.IdempotencyConflict)
    assert refused.loaded is None
    sound(store, result.thread_id)


def test_only_so_many_bad_lines_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + b"\n" + b"bad\n" * 5000 + GOOD)
    [thread] = open_source(path, skip_bad=True).threads()
    assert len(list(thread.items)) == 2
    assert (thread.notes.skipped, len(thread.notes.bad)) == (5000, 100)


def test_lines_as_others_write_them(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n \r\n\n" + GOOD + b"\r\n" + GOOD)
    file = LineFile(path)
    assert [line.number for line, _ in file.objects(Notes(skip_bad=False))] == [1, 4, 5]
    assert file.done == path.stat().st_size


def test_an_unfinished_line_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD[:-5])
    [thread] = open_source(path).threads()
    with pytest.raises(cs.InvalidSource, match=r"line 2 .*the file ends before the line does"):
        list(thread.items)


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LONGEST_LINE", 100)
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + b"\n" + b"x" * 1050 + b"\n" + GOOD + b"\n" + b"y" * 100 + b"\n" + b"z" * 950)
    found = [(line.number, line.data is None) for line in LineFile(path).lines()]
    assert found == [(1, False), (2, True), (3, False), (4, False), (5, True)]
    [thread] = open_source(path, skip_bad=True).threads()
    assert len(list(thread.items)) == 2
    assert thread.notes.bad[0].why == "it is longer than 100 bytes"


def test_runs_are_read_from_where_they_begin(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"".join(b"%d\n" % i for i in range(10, 20)))
    found = LineFile(path).lines([LineRange(3, 6, 12), LineRange(9, 24, 27)])
    assert [(line.number, line.data) for line in found] == [(3, b"12\n"), (4, b"13\n"), (9, b"18\n")]


def test_bad_conversations_are_reported_with_the_next_and_the_last_with_none(store: Face, tmp_path: Path) -> None:
    conversation = b'{"messages":[{"role":"user","content":"a"},{"SECRET":1}]}'
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\n".join([conversation, GOOD, conversation, b"{"]))
    with pytest.raises(cs.InvalidSource, match=r"line 1 of f\.jsonl: it is not a message of the format"):
        run(store, path)
    first, second, rest = run(store, path, skip_bad=True)
    assert [bad.line for bad in first.bad] == [1]
    assert [bad.line for bad in second.bad] == [2, 3]
    assert [bad.line for bad in rest.bad] == [4]
    assert rest.loaded is None
    assert len(stored(store, second.thread_id)) == 1


def test_a_conversation_among_messages_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + b'\n{"messages":[]}\n')
    [thread] = open_source(path).threads()
    with pytest.raises(cs.InvalidSource, match=r"line 2 .* a message like the first line, not a conversation"):
        list(thread.items)


@pytest.mark.parametrize("form", ["claude-code", "codex"])
def test_what_is_no_line_of_a_session_is_bad(tmp_path: Path, form: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes((FIXTURES / f"{form}.jsonl").read_bytes() + b'{"SECRET":"x"}\n')
    main = next(open_source(path).threads())
    with pytest.raises(cs.InvalidSource, match="it is not a line of a"):
        list(main.items)
    # A line of an unknown kind is left out.
    path.write_bytes((FIXTURES / f"{form}.jsonl").read_bytes() + b'{"type":"new","sessionId":"x"}\n')
    first = next(open_source(path).threads())
    assert list(first.items)
    assert first.notes.left_out


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from([
    "type", "role", "content", "message", "payload", "uuid", "parentUuid", "sessionId", "isSidechain", "subtype",
    "compactMetadata", "preTokens", "preservedMessages", "isCompactSummary", "timestamp", "id", "messages", "input",
    "output", "system", "object", "choices", "usage", "body", "params", "tool_calls", "created_at", "agentId",
    "leafUuid", "replacement_history", "model", "instructions", "record_type", "attachment", "prompt", "rendered",
    "shape", "shapeHash", "hash", "base", "keep", "tail", "querySource", "params", "metadata", "history_base",
    "end_ordinal_exclusive", "ordinal", "thread_id", "session_id",
])  # fmt: skip
_VALUES = _JSON | st.sampled_from([
    "user", "assistant", "system", "compact_boundary", "microcompact_boundary", "response_item", "session_meta",
    "compacted", "turn_context", "response", "chat.completion", "message", "compaction", "summary", True, "attachment",
    "queued_command", "api-request", "api-request-blob", "api-request-shape", "event_msg", "item_completed",
])  # fmt: skip
_OBJECTS = st.dictionaries(_NAMES, _VALUES | st.dictionaries(_NAMES, _VALUES, max_size=5), max_size=7)


@settings(max_examples=150, deadline=None)
@given(
    found=st.lists(_OBJECTS | st.binary(max_size=30), max_size=8),
    form=st.sampled_from(["claude-code", "codex", "openai-chat", "openai-responses", "anthropic"]),
)
def test_whatever_a_file_holds_is_read_or_refused_by_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, found: list[Any], form: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.jsonl"
    text = b"\n".join(o if isinstance(o, bytes) else json.dumps(o).encode() for o in found)
    # That would be a database, which these formats do not read.
    assume(not text.startswith(b"SQLite format 3\0"))
    path.write_bytes(text)
    for thread in open_source(path, format=form, skip_bad=True).threads():
        assert isinstance(thread.source_id, str)
        for item in thread.items:
            assert isinstance(item, (ToLoad, Observed))
    try:
        detect(path)
        for thread in open_source(path, format=form).threads():
            list(thread.items)
    except cs.InvalidSource:
        pass


_MEASURE = """
import resource, sys
from compaction_store.importers import open_source
count = 0
for thread in open_source(sys.argv[1]).threads():
    count += sum(1 for _ in thread.items)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    """Not even if the lines of two threads alternate."""
    peaks = []
    for copies in (1_000, 100_000):
        path = tmp_path / "f.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for i in range(copies):
                line = {
                    "type": "user", "sessionId": "s", "uuid": str(i), "isSidechain": i % 100 == 0, "agentId": "a",
                    "message": {"role": "user", "content": f"{i} " * 200},
                }  # fmt: skip
                file.write(json.dumps(line) + "\n")
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
        )  # fmt: skip
        count, peak = map(int, done.stdout.split())
        assert count == copies
        peaks.append(peak)
    assert peaks[1] < peaks[0] * 1.2


def _columned(path: Path, *names: Any) -> Path:
    said = [
        {"role": "user", "content": f"message {n}"} | ({} if name is None else {"conversation_id": name})
        for n, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    return path


def test_a_field_names_the_thread_of_each_line(store: Face, tmp_path: Path) -> None:
    _columned(tmp_path / "a.jsonl", "x", "y", "y", 7, "x")
    _columned(tmp_path / "b.jsonl", "y", "z")
    for added in ((3, 3, 1, 1), (0, 0, 0, 0)):
        results = run(store, tmp_path, thread_field="conversation_id")
        # In the order in which they begin. A thread may go on in another file.
        assert [r.source_id for r in results] == ["x", "y", "7", "z"]
        assert [r.loaded.added for r in results if r.loaded] == [a - (n == 0 and a > 0) for n, a in enumerate(added)]
        assert {r.hint for r in results} == {None}
    numbers = {"x": [0, 4], "y": [1, 2, 0], "7": [3], "z": [1]}
    for name, there in numbers.items():
        assert stored(store, f"openai-chat:{name}") == [{"role": "user", "content": f"message {n}"} for n in there]
        sound(store, f"openai-chat:{name}")


def test_a_line_without_the_field_is_named_or_skipped(store: Face, tmp_path: Path) -> None:
    path = _columned(tmp_path / "a.jsonl", "x", None, "x", ["odd"], "", 1.5, True)
    with pytest.raises(cs.InvalidSource, match=r"line 2 of a\.jsonl: it must have text or a number in"):
        run(store, path, thread_field="conversation_id")
    [result] = run(store, path, thread_field="conversation_id", skip_bad=True)
    assert (result.source_id, result.skipped, [bad.line for bad in result.bad]) == ("x", 5, [2, 4, 5, 6, 7])
    assert len(stored(store, result.thread_id)) == 2
    with pytest.raises(cs.InvalidInput, match="thread_field"):
        run(store, FIXTURES / "codex.jsonl", thread_field="id")
    with pytest.raises(cs.InvalidInput, match="thread_field"):
        run(store, path, thread_field="")


def test_the_field_names_whole_conversations_too(store: Face, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    said = [{"chat": n, "id": "same", "messages": [{"role": "user", "content": "hi"}]} for n in range(2)]
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    assert [r.source_id for r in run(store, path, thread_field="chat", prefix="c/")] == ["0", "1"]


def test_a_file_of_several_conversations_that_becomes_one_thread_gets_a_hint(store: Face, tmp_path: Path) -> None:
    [several] = run(store, _columned(tmp_path / "several.jsonl", "x", "x", "y"))
    assert several.hint == (
        "several.jsonl becomes one thread; if 'conversation_id' names the thread of a line, give thread_field"
    )
    [one] = run(store, _columned(tmp_path / "one.jsonl", "x", "x", None))
    assert one.hint is None
