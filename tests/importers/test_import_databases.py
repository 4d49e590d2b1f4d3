"""Sessions of the OpenAI Agents SDK and threads of LangGraph's checkpointer, from databases made by their libraries."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from imported import FIXTURES, metas, records, run, sound, stored
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import databases, detect, langgraph, open_source
from compaction_store.postgres.foreign_databases import ForeignPostgres


@pytest.fixture
def other(superuser_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with another program's schema."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA theirs; SET search_path = theirs")
        yield connection


Filled = Callable[[str], str]


@pytest.fixture
def filled(other: psycopg.Connection[Any], superuser_url: str) -> Filled:
    """Loads a fixture; returns its URL, as users of SQLAlchemy write it."""

    def fill(name: str) -> str:
        other.execute((FIXTURES / f"{name}.sql").read_text(encoding="utf-8").encode())
        address = sa.make_url(superuser_url).set(drivername="postgresql+asyncpg")
        theirs = address.update_query_dict({"options": "-csearch_path=theirs"})
        return theirs.render_as_string(hide_password=False)

    return fill


def said(store: Face, thread_id: str) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in stored(store, thread_id)]


def turn(text: str) -> list[tuple[str, Any]]:
    return [("user", text), ("assistant", ""), ("tool", "found"), ("assistant", "It is found.")]


# ---- LangGraph


def test_what_langgraph_took_away_is_there_and_on_record(store: Face, filled: Filled) -> None:
    url = filled("langgraph")
    assert detect(url) == "langgraph"
    results = run(store, url)
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
    assert first.body["provider"]["message"]["langchain"]["additional_kwargs"] == {"lc_source": "summarization"}
    assert first.body["occurred_at"] == metas(store, folded, "occurred_at")[8]
    assert said(store, "langgraph:trimmed") == [*turn("Question 0"), *turn("Question 1"), *turn("Question 2")]
    assert records(store, "langgraph:trimmed") == [(9, "removal", "provider:removed", 1, 4)]
    assert records(store, "langgraph:edited") == [(5, "truncation", "provider:rewritten", 4, 4)]
    [edit] = store.compactions("langgraph:edited")
    assert edit.body["provider"]["message"]["content"] == "Corrected by a person."
    assert said(store, "langgraph:went back") == [*turn("First."), *turn("The right turn.")]
    assert said(store, "langgraph:long") == [pair for i in range(5) for pair in turn(f"Turn {i}")]
    sound(store, *(r.thread_id for r in results))
    assert [r.loaded.added for r in run(store, url)] == [0] * 6  # type: ignore[union-attr]


def test_langgraphs_messages_are_chat_messages_with_nothing_lost(store: Face, filled: Filled) -> None:
    [result] = run(store, filled("langgraph"), only={"odd"}, prefix="")
    system, user, assistant, tool = stored(store, "odd")
    assert (result.thread_id, system["content"]) == ("odd", "Be brief. größe 会話 🔒 \0")
    assert user["content"][1] == {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert assistant["content"][1]["input"] == {"at": 2**40, "deep": [1.5, None]}
    call = {"name": "look", "arguments": '{"at":1099511627776,"deep":[1.5,null]}'}
    assert assistant["tool_calls"] == [{"id": "toolu_1", "type": "function", "function": call}]
    assert (assistant["name"], assistant["langchain"]["response_metadata"]["stop_reason"]) == ("agent", "tool_use")
    assert tool["langchain"] == {"status": "error", "artifact": {"raw": "AP8=", "set": [1]}}
    meta = next(iter(store.replay("odd"))).meta
    assert (meta["source"], meta["external_id"]) == ("langgraph", system["id"])
    assert meta["occurred_at"].startswith("20")
    assert meta["checkpoint_id"]
    store.view("odd").for_openai()
    # The call is in the content and also beside it, and counts once.
    assert store.compact("odd", lambda ctx: ctx.remove(3, 4)).applied


def test_a_thread_of_langgraph_that_has_grown_brings_what_is_new(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    url = filled("langgraph")
    other.execute("CREATE TABLE all_of_them AS TABLE checkpoints")
    ids = other.execute("SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'folded' ORDER BY 1").fetchall()
    done = 0
    for (until,) in ids[::3] + ids[-1:]:
        other.execute("TRUNCATE checkpoints")
        other.execute("INSERT INTO checkpoints SELECT * FROM all_of_them WHERE checkpoint_id <= %s", (until,))
        [result] = run(store, url, only=["folded"])
        if result.loaded is not None:
            assert result.loaded.count - result.loaded.added == done
            done = result.loaded.count
    assert done == 18
    assert [r[3:] for r in records(store, "langgraph:folded")] == [(1, 6), (7, 12)]
    sound(store, "langgraph:folded")


def test_a_thread_that_was_pruned_since_is_a_conflict(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    url = filled("langgraph")
    run(store, url)
    other.execute("""
        DELETE FROM checkpoints AS c WHERE thread_id = 'folded' AND checkpoint_id < (
            SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'folded'
        )
    """)
    with pytest.raises(cs.IdempotencyConflict):
        run(store, url, only=["folded"])
    results = run(store, url, skip_bad=True)
    assert [r.source_id for r in results if r.refused] == ["folded"]
    assert len(results) == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE checkpoint_blobs SET blob = substr(blob, 1, length(blob) - 5)", "cut off"),
        ("UPDATE checkpoint_blobs SET blob = 'SECRET'", "cannot be read"),
        ("UPDATE checkpoint_blobs SET type = 'msgpack+aes'", r"stored as msgpack\+aes"),
        ("UPDATE checkpoint_blobs SET blob = NULL", "DeltaChannel"),
        ("DELETE FROM checkpoint_blobs", "DeltaChannel"),
    ],
)
def test_checkpoints_that_cannot_be_read_are_said_to_be_so(
    filled: Filled, other: psycopg.Connection[Any], change: str, why: str
) -> None:
    url = filled("langgraph")
    other.execute(change.encode())
    with closing(open_source(url)) as source:
        thread = next(source.threads())
        with pytest.raises(cs.InvalidSource, match=why) as caught:
            list(thread.items)
    assert "SECRET" not in str(caught.value)


def test_a_thread_that_cannot_be_read_does_not_keep_others_out(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    url = filled("langgraph")
    other.execute("UPDATE checkpoint_blobs SET blob = 'SECRET' WHERE thread_id = 'folded'")
    with pytest.raises(cs.InvalidSource, match="cannot be read"):
        run(store, url)
    results = run(store, url, skip_bad=True)
    assert [r.source_id for r in results if r.refused] == ["folded"]
    sound(store, *(r.thread_id for r in results if r.loaded))


def _state(connection: psycopg.Connection[Any], number: int, kind: str, blob: bytes) -> None:
    parent = f"{number - 1:03d}" if number else None
    checkpoint = json.dumps({"ts": "2026-05-04T09:00:00+00:00", "channel_versions": {"chat": f"{number}"}})
    connection.execute(
        "INSERT INTO checkpoints VALUES ('t', '', %s, %s, NULL, %s, '{}')", (f"{number:03d}", parent, checkpoint)
    )
    connection.execute("INSERT INTO checkpoint_blobs VALUES ('t', '', 'chat', %s, %s, %s)", (f"{number}", kind, blob))


def test_messages_without_ids_are_told_apart_by_their_place(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    """As in a graph whose reducer adds lists: messages are dicts, pairs and texts, in another channel."""
    url = filled("langgraph")
    other.execute("TRUNCATE checkpoints, checkpoint_blobs")
    yes, no = b"\xa3yes", b"\x92\xa2ai\xa2no"
    for number, body in enumerate(([yes], [yes, no, yes], [yes, no, yes, yes], [yes], [yes, no])):
        _state(other, number, "msgpack", bytes([0x90 + len(body)]) + b"".join(body))
    _state(other, 5, "msgpack", b"\x92\xa3yes\x05")
    with pytest.raises(cs.InvalidSource, match="a message of checkpoint 005: it is not a message"):
        run(store, url, channel="chat", prefix="")
    [result] = run(store, url, channel="chat", prefix="", skip_bad=True)
    assert [m["content"] for m in stored(store, "t")] == ["yes", "no", "yes", "yes"]
    assert records(store, "t") == [
        (5, "removal", "provider:removed", 2, 4), (6, "removal", "provider:removed", 2, 2),
    ]  # fmt: skip
    assert result.skipped == 1
    assert [r.loaded for r in run(store, url)] == [None]


def test_checkpoints_in_json_are_read_too(store: Face, filled: Filled, other: psycopg.Connection[Any]) -> None:
    url = filled("langgraph")
    other.execute("TRUNCATE checkpoints, checkpoint_blobs")

    def constructed(name: str, **fields: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": fields}

    first = [constructed("HumanMessage", content="Hi", id="1"), constructed("AIMessageChunk", content="Hello", id="2")]
    call = {"name": "f", "args": {}, "id": "c"}
    second = [*first, constructed("AIMessage", content="", tool_calls=[call], id="3"), {"role": "user", "content": "x"}]
    _state(other, 0, "json", json.dumps(first).encode())
    _state(other, 1, "json", json.dumps(second).encode())
    run(store, url, channel="chat", prefix="")
    assert [m["role"] for m in stored(store, "t")] == ["user", "assistant", "assistant", "user"]
    assert not records(store, "t")


# ---- the Agents SDK


def test_sessions_of_the_agents_sdk(store: Face, filled: Filled) -> None:
    url = filled("agents")
    assert detect(url) == "openai-agents"
    first, second = run(store, url)
    assert (first.thread_id, second.thread_id) == ("openai-agents:chat-1", "openai-agents:chat-2")
    assert [m.get("type") for m in stored(store, first.thread_id)] == [
        None, "reasoning", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert stored(store, first.thread_id)[3]["output"] == "-3 °C, größe 会話 🔒"
    assert metas(store, first.thread_id, "row_id") == [1, 2, 3, 4, 5]
    assert stored(store, second.thread_id)[-1]["content"] == "a \0 and a \ud800"
    assert records(store, second.thread_id) == [(7, "summary", "provider:compaction", 1, 5)]
    assert [r.loaded.added for r in run(store, url)] == [0, 0]  # type: ignore[union-attr]
    sound(store, first.thread_id, second.thread_id)
    store.view(first.thread_id).for_openai(api="responses")


def test_times_without_a_zone_are_the_servers(store: Face, filled: Filled, other: psycopg.Connection[Any]) -> None:
    url = filled("agents")
    other.execute("UPDATE agent_messages SET created_at = '2026-05-04 09:00:00'")
    other.execute(f"ALTER DATABASE {other.info.dbname} SET timezone = 'Asia/Kolkata'".encode())
    [result, _] = run(store, url)
    assert set(metas(store, result.thread_id, "occurred_at")) == {"2026-05-04T03:30:00.000000+00:00"}


def test_a_session_that_has_grown_brings_what_is_new(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    url = filled("agents")
    run(store, url)
    other.execute('INSERT INTO agent_messages VALUES (99, \'chat-1\', \'{"role":"user","content":"new"}\', now())')
    grown, same = run(store, url)
    assert (grown.loaded.added, same.loaded.added) == (1, 0)  # type: ignore[union-attr]
    assert stored(store, grown.thread_id)[-1]["content"] == "new"


def test_rows_that_cannot_be_read_are_named_or_skipped(
    store: Face, filled: Filled, other: psycopg.Connection[Any]
) -> None:
    url = filled("agents")
    other.execute("UPDATE agent_messages SET message_data = '{\"SECRET' WHERE id = 3")
    with pytest.raises(cs.InvalidSource, match="row 3 of agent_messages: it is not JSON") as caught:
        run(store, url)
    assert "SECRET" not in str(caught.value)
    first, _ = run(store, url, skip_bad=True)
    assert (first.skipped, first.bad[0].where, first.loaded.count) == (1, "row 3 of agent_messages", 4)  # type: ignore[union-attr]


def test_tables_of_another_name(store: Face, filled: Filled, other: psycopg.Connection[Any]) -> None:
    url = filled("agents")
    other.execute(
        "CREATE SCHEMA app; ALTER TABLE agent_messages SET SCHEMA app;"
        'ALTER TABLE app.agent_messages RENAME TO "My items"'
    )
    with pytest.raises(cs.InvalidSource, match=r"has the tables .*; openai-agents keeps its threads"):
        detect(url)
    results = run(store, url, format="openai-agents", messages_table="app.My items")
    assert len(results) == 2


def _sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP, updated_at TIMESTAMP);
            CREATE TABLE agent_messages (
                id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TIMESTAMP
            );
            INSERT INTO agent_messages VALUES (1, 's', '{"role":"user","content":"a"}', '2026-05-04 09:00:00');
            INSERT INTO agent_messages VALUES (2, 's', '{"role":"user","content":"b"}', '2026-05-04 09:00:01');
        """)


def test_sessions_in_a_sqlite_file(store: Face, tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    _sqlite(path)
    before = path.read_bytes()
    assert detect(path) == "openai-agents"
    [result] = run(store, path)
    assert [m["content"] for m in stored(store, result.thread_id)] == ["a", "b"]
    assert metas(store, result.thread_id, "occurred_at")[1] == "2026-05-04T09:00:01+00:00"
    assert run(store, f"sqlite+aiosqlite:///{path}")[0].loaded.added == 0  # type: ignore[union-attr]
    assert path.read_bytes() == before


# ---- databases


def test_a_database_is_only_read(filled: Filled, tmp_path: Path) -> None:
    _sqlite(tmp_path / "f.db")
    for source, statement, why in (
        (filled("agents"), "SELECT nextval('s')", "SQLSTATE"),
        (tmp_path / "f.db", "DELETE FROM agent_messages", "SQLITE_READONLY"),
    ):
        database = databases.open_database(source)
        assert database is not None
        with closing(database), pytest.raises(cs.InvalidSource, match=f"the database cannot be read: {why}"):
            list(database.rows(statement))


def test_what_a_database_is_not(url: str, filled: Filled, tmp_path: Path) -> None:
    both = filled("agents")
    filled("langgraph")
    with pytest.raises(cs.InvalidSource, match="openai-agents and langgraph"):
        detect(both)
    with pytest.raises(cs.InvalidSource, match="openai-agents keeps its threads in agent_messages"):
        detect(url)
    for form, option in (("langgraph", "messages_table"), ("openai-agents", "channel"), ("codex", "x")):
        options: dict[str, Any] = {option: "x"}
        with pytest.raises(cs.InvalidInput, match=form):
            open_source(both, format=form, **options)
    _sqlite(tmp_path / "f.db")
    with pytest.raises(cs.InvalidSource, match="langgraph keeps its threads in checkpoints"):
        open_source(tmp_path / "f.db", format="langgraph")
    (tmp_path / "g.db").write_bytes(b"SQLite format 3\0" + b"SECRET" * 100)
    with pytest.raises(cs.InvalidSource, match="cannot be read"):
        detect(tmp_path / "g.db")
    with pytest.raises(cs.InvalidSource, match="cannot be read"):
        detect(f"sqlite:///{tmp_path}/gone.db")


def test_a_database_out_of_reach_is_said_to_be_so(url: str) -> None:
    gone = sa.make_url(url).set(database="gone", username=None).render_as_string(hide_password=False)
    for address in (gone, "postgresql://user:SECRET@127.0.0.1:1/x", "postgresql://x/?SECRET=1"):
        with pytest.raises(cs.DatabaseUnavailable, match="cannot reach the database to import from") as caught:
            detect(address)
        assert "user:SECRET" not in str(caught.value)


def test_reading_holds_one_page_and_one_state_at_a_time(filled: Filled) -> None:
    """The cursors are on the server, which sends rows only when they are fetched."""
    with closing(databases.open_database(filled("langgraph"))) as database:  # type: ignore[type-var]
        assert isinstance(database, ForeignPostgres)
        rows = database.rows(
            "SELECT g, pg_sleep(CASE WHEN g > 10 THEN 100 ELSE 0 END) FROM generate_series(1, 20) AS g", page=5
        )
        assert [next(rows)[0] for _ in range(10)] == list(range(1, 11))
        rows.close()  # type: ignore[attr-defined]
        source = langgraph.Checkpoints(database)
        threads = source.threads()
        # Two threads are open at once, and read in turn.
        one, two = iter(next(threads).items), iter(next(threads).items)
        assert next(one) != next(two) != next(one)
