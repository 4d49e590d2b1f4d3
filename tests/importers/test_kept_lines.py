"""Session files are kept line by line, and can be written again byte for byte."""

from __future__ import annotations

import uuid
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from imported import FIXTURES, run_all, sound
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import line_files
from compaction_store.importers.line_files import json_object
from compaction_store.messages import encoding

SESSION = "5c0f3a52-6d0e-4b43-9a55-0f6f5a3c9b11"
LINE = b'{"type":"user","sessionId":"%s","message":{"role":"user","content":"hi"}}\n' % SESSION.encode()
_ODD = st.sampled_from([
    b"\n", b"\r\n", b"\r", b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"{}",
    b'{"a":1}\n', b'"', "ä€😀".encode(), b" ", b"\x0b", b"\x1c", b"\x85",
])  # fmt: skip
_BYTES = st.lists(_ODD | st.binary(max_size=8), max_size=30).map(b"".join)


def made(data: bytes) -> list[dict[str, object]]:
    return [piece.message for piece in line_files.messages(BytesIO(data), len(data))]


def again(messages: list[dict[str, object]]) -> bytes:
    return b"".join(map(line_files.bytes_of, messages))


@given(_BYTES)
@example(b"\n\n\r\n")
@example(b"no newline")
@example(b"")
def test_any_bytes_come_back(data: bytes) -> None:
    messages = made(data)
    encoded = [encoding.encode(message).payload for message in messages]
    assert again(encoded) == data
    assert len(messages) == len(BytesIO(data).readlines())


@given(_BYTES, _BYTES)
def test_a_file_that_grows_keeps_its_first_messages(data: bytes, more: bytes) -> None:
    """If the first part ends with a newline, its messages do not depend on what follows."""
    before = made(data + b"\n")
    assert made(data + b"\n" + more)[: len(before)] == before


@pytest.mark.parametrize("unit", [b"a", b'"', b"\x01", b"\xff", "€".encode(), b"a" * 1023 + "€".encode()])
def test_a_line_of_40_mib_comes_back_in_pieces(unit: bytes) -> None:
    data = b"first\n" + unit * (40 * 1024 * 1024 // len(unit)) + b"\nlast"
    messages = made(data)
    assert again(messages) == data
    assert len(messages) > 5
    for message in messages:
        assert encoding.encode(message).size <= encoding.MAX_MESSAGE_BYTES


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_line_as_long_as_a_piece(end: bytes, extra: int) -> None:
    data = b"x" * (line_files.PIECE + extra) + end
    messages = made(data)
    assert again(messages) == data
    assert len(messages) == 1 + (extra == 1 or (extra == 0 and end == b"\n"))


def back(store: Face, thread_id: str) -> bytes:
    return again([message.payload for message in store.replay(thread_id)])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_BYTES)
@example(b"\x00\n\xff\n\\ud800\n\r\n\nno end")
@example(b'{"no": "end"}')
def test_any_file_is_stored_and_comes_back(store: Face, tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    session = str(uuid.uuid4())
    path = tmp_path_factory.mktemp("file") / f"{session}.jsonl"
    path.write_bytes(LINE + data)
    results = run_all(store, path, skip_bad=True, format="claude-code")
    [lines] = [result for result in results if result.source_id == f"{session}/lines"]
    assert (lines.thread_id, lines.refused) == (f"claude-code:{session}/lines", None)
    # A last line without a newline is kept if it is whole.
    tail = data.rpartition(b"\n")[2]
    unfinished = len(tail) if isinstance(json_object(tail), str) else 0
    assert back(store, lines.thread_id) == (LINE + data)[: len(LINE + data) - unfinished]
    sound(store, lines.thread_id)


def test_the_lines_of_each_file_are_beside_its_thread(store: Face, tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "projects" / "-home-me-work"
    agents = folder / SESSION / "subagents"
    agents.mkdir(parents=True)
    main, agent = folder / f"{SESSION}.jsonl", agents / "agent-a1b2c3d.jsonl"
    main.write_bytes((FIXTURES / "claude-code.jsonl").read_bytes())
    agent.write_bytes((FIXTURES / "claude-agent.jsonl").read_bytes())
    found = {result.thread_id for result in run_all(store, tmp_path)}
    for path, name in ((main, SESSION), (agent, f"{SESSION}/agent-a1b2c3d")):
        thread = f"claude-code:{name}/lines"
        assert {f"claude-code:{name}", thread} <= found
        assert back(store, thread) == path.read_bytes()
        place = path.relative_to(tmp_path / ".claude" / "projects").as_posix()
        assert store.thread(thread).metadata == {"file": place, "format": "claude-code"}
        assert store.thread(thread).view_tokens == 0
    # After the file has grown, only the new line is added.
    with main.open("ab") as file:
        file.write(LINE)
    assert [r.loaded.added for r in run_all(store, main) if r.loaded and r.source_id.endswith("/lines")] == [1]
    assert back(store, f"claude-code:{SESSION}/lines") == main.read_bytes()
    sound(store, f"claude-code:{SESSION}/lines")


def test_a_line_that_was_not_finished_is_kept_by_the_next_import(store: Face, tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_bytes(LINE + LINE[:40])
    run_all(store, path, skip_bad=True)
    path.write_bytes(LINE + LINE)
    assert [r.loaded.added for r in run_all(store, path) if r.loaded] == [1, 1]
    assert back(store, f"claude-code:{SESSION}/lines") == LINE + LINE


def test_the_lines_of_a_rollout(store: Face, tmp_path: Path) -> None:
    path = tmp_path / ".codex" / "sessions" / "2026" / "05" / "04" / "rollout.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes((FIXTURES / "codex.jsonl").read_bytes())
    thread, lines = run_all(store, path)
    assert lines.thread_id == f"{thread.thread_id}/lines"
    assert back(store, lines.thread_id) == path.read_bytes()
    assert store.thread(lines.thread_id).metadata == {"file": "2026/05/04/rollout.jsonl", "format": "codex"}


def test_the_lines_are_named_as_the_caller_wishes(store: Face, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes((FIXTURES / "codex.jsonl").read_bytes())
    names = [result.thread_id for result in run_all(store, path, thread_id="mine")]
    assert names == ["mine", "mine/lines"]
    source_id = run_all(store, path, thread_id="mine")[0].source_id
    only = run_all(store, path, prefix="p:", only=[source_id])
    assert [result.thread_id for result in only] == [f"p:{source_id}", f"p:{source_id}/lines"]


def test_the_lines_are_left_out_if_asked(store: Face) -> None:
    results = run_all(store, FIXTURES / "codex.jsonl", lines=False)
    assert not [result for result in results if result.source_id.endswith("/lines")]
    with pytest.raises(cs.InvalidInput, match="lines must be"):
        run_all(store, FIXTURES / "chat.jsonl", lines=False)
    with pytest.raises(cs.InvalidInput, match="lines must be"):
        run_all(store, FIXTURES / "codex.jsonl", lines="no")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("home/.claude/projects/-a/x.jsonl", "-a/x.jsonl"),
        ("projects/.codex/sessions/2026/x.jsonl", "2026/x.jsonl"),
        ("a/b/x.jsonl", "b/x.jsonl"),
        ("a/projects", "a/projects"),
    ],
)
def test_the_place_of_a_file(tmp_path: Path, path: str, place: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert line_files.place_of(file) == place
