"""Threads of LangGraph's SQLite checkpointer, from a file that the library itself has written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, metas, records, run, sound, stored
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import detect, langgraph, open_source

# A map of channel_versions with one for the messages, and no channel_values.
WITHOUT_VALUES = "81b06368616e6e656c5f76657273696f6e7381a86d6573736167657301"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "checkpoints.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((FIXTURES / "langgraph-sqlite.sql").read_text(encoding="utf-8"))
    return file


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def said(store: Face, thread_id: str) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in stored(store, thread_id)]


def turn(text: str) -> list[tuple[str, Any]]:
    return [("user", text), ("assistant", ""), ("tool", "found"), ("assistant", "It is found.")]


def test_messages_that_were_removed_are_imported_with_a_record_of_their_removal(store: Face, path: Path) -> None:
    assert detect(path) == "langgraph"
    results = run(store, path)
    assert [r.source_id for r in results] == ["edited", "folded", "long", "odd", "trimmed", "went back"]
    folded = "langgraph:folded"
    assert said(store, folded) == [
        *turn("Look for order 0."), *turn("Look for order 1."), ("user", "Orders 0 and 1 were looked for."),
        *turn("And order 2?"), ("user", "Orders 0 to 2 were looked for."), *turn("Thanks."),
    ]  # fmt: skip
    assert records(store, folded) == [
        (9, "summary", "provider:summarized", 1, 6), (15, "summary", "provider:summarized", 7, 12),
    ]  # fmt: skip
    first, _ = store.compactions(folded)
    assert first.summary_text == "Orders 0 and 1 were looked for."
    assert first.body["occurred_at"] == metas(store, folded, "occurred_at")[8]
    assert records(store, "langgraph:trimmed") == [(9, "removal", "provider:removed", 1, 4)]
    assert records(store, "langgraph:edited") == [(5, "truncation", "provider:rewritten", 4, 4)]
    assert said(store, "langgraph:went back") == [*turn("First."), *turn("The right turn.")]
    assert said(store, "langgraph:long") == [pair for i in range(5) for pair in turn(f"Turn {i}")]
    system, user, assistant, tool = stored(store, "langgraph:odd")
    assert system["content"] == "Be brief. größe 会話 🔒 \0"
    assert user["content"][1] == {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert assistant["content"][1]["input"] == {"at": 2**40, "deep": [1.5, None]}
    assert tool["langchain"] == {"status": "error", "artifact": {"raw": "AP8=", "set": [1]}}
    sound(store, *(r.thread_id for r in results))
    assert [r.loaded.added for r in run(store, path)] == [0] * 6  # type: ignore[union-attr]


def test_a_file_that_has_grown_brings_what_is_new(store: Face, path: Path, other: sqlite3.Connection) -> None:
    other.execute("CREATE TABLE all_of_them AS SELECT * FROM checkpoints")
    folded = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'folded' ORDER BY checkpoint_id"
    ids = [row[0] for row in other.execute(folded)]
    done = 0
    for until in [*ids[::3], ids[-1]]:
        other.execute("DELETE FROM checkpoints")
        other.execute("INSERT INTO checkpoints SELECT * FROM all_of_them WHERE checkpoint_id <= ?", (until,))
        [result] = run(store, path, only=["folded"])
        if result.loaded is not None:
            assert result.loaded.count - result.loaded.added == done
            done = result.loaded.count
    assert done == 18
    assert [r[3:] for r in records(store, "langgraph:folded")] == [(1, 6), (7, 12)]
    sound(store, "langgraph:folded")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE checkpoints SET checkpoint = substr(checkpoint, 1, length(checkpoint) / 2)", "cut off"),
        ("UPDATE checkpoints SET checkpoint = CAST('SECRET' AS BLOB)", "no map"),
        ("UPDATE checkpoints SET type = 'msgpack+aes'", r"stored as msgpack\+aes"),
        ("UPDATE checkpoints SET type = 'json'", "cannot be read"),
        (f"UPDATE checkpoints SET checkpoint = x'{WITHOUT_VALUES}'", "DeltaChannel"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_read_is_named(
    path: Path, other: sqlite3.Connection, change: str, why: str
) -> None:
    other.execute(change)
    with closing(open_source(path)) as source:
        thread = next(source.threads())
        with pytest.raises(cs.InvalidSource, match=why) as caught:
            list(thread.items)
    assert "SECRET" not in str(caught.value)


def test_checkpoints_in_json_and_another_channel(store: Face, path: Path, other: sqlite3.Connection) -> None:
    other.execute("DELETE FROM checkpoints")
    said_so_far: list[Any] = []
    for number, message in enumerate(["yes", {"role": "assistant", "content": "no"}]):
        said_so_far.append(message)
        checkpoint = {
            "ts": "2026-05-04T09:00:00+00:00", "channel_values": {"chat": said_so_far}, "channel_versions": {"chat": 1},
        }  # fmt: skip
        parent = f"{number - 1:03d}" if number else None
        row = ("t", f"{number:03d}", parent, "json", json.dumps(checkpoint).encode())
        other.execute(
            "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint)"
            " VALUES (?, '', ?, ?, ?, ?)",
            row,
        )
    [result] = run(store, path, channel="chat", prefix="")
    assert result.loaded is not None
    assert said(store, "t") == [("user", "yes"), ("assistant", "no")]
    assert [r.loaded for r in run(store, path)] == [None]


def test_a_long_thread_is_decoded_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint holds the whole state; a message that was read before is not decoded again."""
    decoded = 0
    split = langgraph.split

    def counted(data: bytes, at: int) -> Iterator[bytes]:
        nonlocal decoded
        for raw in split(data, at):
            decoded += 1
            yield raw

    monkeypatch.setattr(langgraph, "split", counted)
    with closing(open_source(path)) as source:
        [thread] = [t for t in source.threads() if t.source_id == "long"]
        assert len(list(thread.items)) == decoded == 20


def test_checkpoints_that_name_each_other_as_parents_end(store: Face, path: Path, other: sqlite3.Connection) -> None:
    whole = said_of(store, path, "langgraph:")
    other.execute("UPDATE checkpoints SET parent_checkpoint_id = checkpoint_id WHERE parent_checkpoint_id IS NULL")
    other.execute(
        "UPDATE checkpoints AS c SET parent_checkpoint_id = (SELECT max(p.checkpoint_id) FROM checkpoints AS p"
        " WHERE p.thread_id = c.thread_id AND p.checkpoint_ns = '') WHERE c.thread_id = 'folded' AND"
        " c.parent_checkpoint_id = c.checkpoint_id"
    )
    assert said_of(store, path, "circles:") == whole


def said_of(store: Face, path: Path, prefix: str) -> list[list[tuple[str, Any]]]:
    return [said(store, r.thread_id) for r in run(store, path, prefix=prefix)]


def test_a_value_larger_than_any_message_is_refused_and_not_made(
    store: Face, path: Path, other: sqlite3.Connection
) -> None:
    other.execute("ALTER TABLE checkpoints RENAME COLUMN checkpoint TO stored")
    other.execute("ALTER TABLE checkpoints ADD COLUMN checkpoint BLOB GENERATED ALWAYS AS (zeroblob(900000000))")
    with pytest.raises(cs.InvalidSource, match="SQLITE_TOOBIG"):
        run(store, path)
