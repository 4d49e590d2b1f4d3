"""Exporting bundles from one store to another: the thread is the same there, or nothing of it is imported."""

from __future__ import annotations

import io
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.compactable_thread import span
from support.databases import Server
from support.faces import Face, Faces
from support.handmade_bundles import Line, Thread, entry, golden, rich, said, sealed

import compaction_store as cs
from compaction_store import offline
from compaction_store.errors import InvalidThreadId, PermissionDenied
from compaction_store.messages import encoding
from compaction_store.models import Imported
from compaction_store.postgres import queries

TABLES = ("threads", "heads", "messages", "compactions", "events")
SECRET = "SECRET"


@pytest.fixture
def other(faces: Faces, other_url: str) -> Face:
    """A store of the same kind on another database."""
    return faces.open(other_url)


def rows(superuser: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    # The place of an entry in the feed is its server's own.
    [(columns,)] = superuser.execute(
        "SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) FROM information_schema.columns"
        " WHERE table_schema = 'compaction_store' AND table_name = %s AND column_name <> 'feed_xid'",
        (table,),
    ).fetchall()
    return superuser.execute(
        f"SELECT ROW({columns})::text FROM compaction_store.{table} ORDER BY 1".encode()
    ).fetchall()


def nothing_there(superuser: psycopg.Connection[Any]) -> bool:
    return not any(rows(superuser, table) for table in TABLES)


def busy(store: Any, thread_id: str = "t") -> None:
    """Makes a thread with every kind of entry."""
    store.append(
        thread_id, {"role": "user", "content": "a \0 \ud800 größe 会話 🔒\u2028"}, key="one", meta={"n": 1}, actor="me"
    )
    store.append(thread_id, [{"role": "user", "content": f"message {i}"} for i in range(20)], key="many")
    store.append(thread_id, {"role": "assistant", "content": "so"}, view=store.view(thread_id))
    store.compact(thread_id, lambda ctx: ctx.compact(2, 5, "short", reason="because"), actor="me")
    store.compact(thread_id, lambda ctx: ctx.compact(8, 10, "brief"))
    store.compact(thread_id, lambda ctx: ctx.compact(2, 12, "both"))
    store.compact(thread_id, lambda ctx: ctx.remove(14, 15))
    store.revoke(thread_id, 3, reason="too much")
    store.compact(thread_id, lambda ctx: ctx.compact(17, 18, ""))
    store.append(thread_id, {"role": "user", "content": "go on"}, view=store.view(thread_id))
    store.custody.hold(thread_id, reason="audit", actor="legal")
    store.custody.release(thread_id, reason="done")
    store.custody.retain(thread_id, datetime(2020, 1, 1, tzinfo=UTC), reason="law")
    store.custody.redact(thread_id, [9, 17], reason="asked")
    store.append(thread_id, {"role": "user", "content": "last"})
    store.set_metadata(thread_id, {"title": "größe \ud800"})


def everything(store: Any, thread_id: str = "t") -> dict[str, Any]:
    """Returns everything that a reader can get of a thread."""
    thread = store.thread(thread_id)
    return {
        "thread": thread,
        "replay": list(store.replay(thread_id)),
        "views": [store.view(thread_id, at=pos) for pos in range(1, thread.last_pos + 1)],
        "log": list(store.compactions(thread_id)),
        "events": list(store.audit.events(thread_id)),
        "seen": [store.seen_by(thread_id, seq) for seq in (22, 23)],
        "explained": [store.audit.explain(thread_id, seq) for seq in (3, 9, 14)],
        "report": store.audit.verify(thread_id),
        "lines": list(store.audit.export(thread_id))[1:-1],
    }


# ---- export and import


def test_an_imported_thread_is_the_thread_it_was(
    store: Face, other: Face, superuser: psycopg.Connection[Any], other_url: str, server: Server
) -> None:
    busy(store)
    lines = list(store.audit.export("t"))
    report = cs.verify_bundle(lines)
    thread = store.thread("t")
    assert (report.level, report.entries, report.findings, report.head) == ("content", thread.last_pos, (), thread.head)
    assert offline.check(io.BytesIO(b"".join(lines))).findings == []
    done = other.load.bundle(lines)
    assert done == Imported("t", thread.last_seq, thread.last_number, thread.last_pos, thread.head, added=True)
    assert everything(other) == everything(store)
    assert other.audit.verify("t").findings == ()
    with psycopg.connect(server.by_own_login(other_url)) as behind:
        assert [rows(behind, table) for table in TABLES] == [rows(superuser, table) for table in TABLES]


def test_an_imported_thread_goes_on_as_any_other(store: Face, other: Face) -> None:
    busy(store)
    other.load.bundle(list(store.audit.export("t")))
    for each in (store, other):
        assert each.append("t", {"role": "user", "content": "more"}, key="new")[0].seq == 25
        assert each.append("t", {"role": "user", "content": "a \0 \ud800 größe 会話 🔒\u2028"}, key="one")[0].seq == 1
        with pytest.raises(cs.IdempotencyConflict):
            each.append("t", {"role": "user", "content": "other"}, key="many")
        each.compact("t", lambda ctx: ctx.compact(18, 20, "end"))
        each.custody.redact("t", 1, reason="asked")
        assert each.audit.verify("t").findings == ()
    assert other.view("t").messages == store.view("t").messages
    assert other.thread("t").view_tokens == store.thread("t").view_tokens
    assert cs.verify_bundle(list(other.audit.export("t"))).findings == ()


def test_the_same_import_again_adds_nothing(store: Face, other: Face) -> None:
    busy(store)
    lines = list(store.audit.export("t"))
    assert other.load.bundle(lines).added
    assert not other.load.bundle(iter(lines)).added
    assert not store.load.bundle(list(store.audit.export("t"))).added
    store.append("t", {"role": "user", "content": "more"})
    with pytest.raises(cs.ThreadExists, match=r"pos 35 .*'t'") as caught:
        other.load.bundle(list(store.audit.export("t")))
    assert isinstance(caught.value, cs.Conflict)
    assert everything(other)["lines"] == lines[1:-1]


@pytest.mark.one_server("it replaces the query of one server")
def test_an_import_whose_reply_is_lost_has_added_the_thread(
    store: Face, other: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(store)
    lines, calls = list(store.audit.export("t")), []
    real = queries.import_bundle

    def lost(*arguments: Any) -> bool:
        calls.append(real(*arguments))
        if len(calls) == 1:
            raise psycopg.OperationalError("lost")
        return calls[-1]

    monkeypatch.setattr(queries, "import_bundle", lost)
    assert other.load.bundle(lines).added
    assert calls == [True, True]
    assert not other.load.bundle(lines).added


def test_two_imports_at_once_make_one_thread(url: str, other_url: str) -> None:
    with cs.Store.open(url) as store, cs.Store.open(other_url) as other:
        busy(store)
        lines = list(store.audit.export("t"))
        found: list[Any] = []
        together = threading.Barrier(4)

        def bring() -> None:
            together.wait()
            found.append(other.load.bundle(lines).added)

        workers = [threading.Thread(target=bring) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(found) == [False, False, False, True]
        assert other.audit.verify("t").findings == ()


@pytest.mark.parametrize("name", sorted(golden()))
def test_the_golden_bundles_can_be_imported_and_exported_again(store: Face, faces: Faces, url: str, name: str) -> None:
    lines = golden()[name]
    if "withheld" in name:
        with pytest.raises(cs.InvalidBundle, match="withheld"):
            store.load.bundle(lines)
        return
    reopened = faces.open(url, tenant=said(lines)[0]["tenant"])
    thread_id = said(lines)[0]["thread_id"]
    reopened.load.bundle(lines)
    assert list(reopened.audit.export(thread_id))[1:-1] == lines[1:-1]
    assert reopened.audit.verify(thread_id).findings == ()
    assert reopened.thread(thread_id).metadata == encoding.decode(said(lines)[0]["metadata"])


def test_lines_come_from_a_file_or_from_wherever(store: Face, other: Face, tmp_path: Any) -> None:
    busy(store)
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        file.writelines(store.audit.export("t"))
    with path.open("rb") as file:
        assert other.load.bundle(file).added
    with path.open("rb") as file:
        assert cs.verify_bundle(file).findings == ()
    if other.runner is not None:

        async def brought() -> AsyncIterator[bytes]:
            with path.open("rb") as file:
                for line in file:
                    yield line

        assert not other.load.bundle(brought()).added


def test_a_reader_exports_what_a_store_does(store: Face, url: str) -> None:
    busy(store)
    with cs.Reader.open(url) as reader:
        assert list(reader.audit.export("t"))[1:-1] == list(store.audit.export("t"))[1:-1]
        assert not hasattr(reader, "import_bundle")


def test_what_is_no_thread_is_not_exported(store: Face) -> None:
    with pytest.raises(cs.ThreadNotFound):
        list(store.audit.export("t"))
    with pytest.raises(InvalidThreadId):
        store.audit.export("")
    wrong: Any
    for wrong in (1, None, "all"):
        with pytest.raises(cs.InvalidInput, match="bodies must"):
            store.audit.export("t", bodies=wrong)
    for wrong in ({}, "note", {"note": "n", "proof": [1], "leaf_index": 0, "key": ""}, {"key": "", "note": ""}):
        with pytest.raises(cs.InvalidInput, match="checkpoint must"):
            store.audit.export("t", checkpoint=wrong)


def test_a_checkpoint_is_carried(store: Face, other: Face) -> None:
    busy(store)
    checkpoint = {"note": "log\n1\n— größe\n", "proof": ["00", "ff"], "leaf_index": 7, "key": "ab"}
    lines = list(store.audit.export("t", checkpoint=checkpoint))
    assert said(lines)[0]["checkpoint"] == checkpoint
    assert (cs.verify_bundle(lines).findings, other.load.bundle(lines).added) == ((), True)


# ---- without some of the content


def test_content_can_be_withheld(store: Face, other: Face) -> None:
    busy(store)
    total = store.thread("t").last_pos
    lines = list(store.audit.export("t", bodies=False))
    report = cs.verify_bundle(lines)
    assert (report.level, report.entries, report.findings) == ("structure", total, ())
    assert (report.withheld, report.redacted) == (total - 6, 6)
    assert offline.check(io.BytesIO(b"".join(lines))).findings == []
    assert all(not line.get("salt") for line in said(lines))
    assert "größe".encode() not in b"".join(lines[1:])
    with pytest.raises(cs.InvalidBundle, match=r"line 2 .*withheld") as caught:
        other.load.bundle(lines)
    assert (caught.value.line, caught.value.pos) == (2, 1)


def test_whose_content_is_withheld_is_the_callers_to_say(store: Face) -> None:
    busy(store)
    asked: list[dict[str, Any]] = []

    def wanted(line: Any) -> bool:
        asked.append(dict(line))
        with pytest.raises(TypeError):
            line["pos"] = 0
        return line["type"] == "message" and line["seq"] in (2, 9, 23)

    lines = said(list(store.audit.export("t", bodies=wanted)))[1:]
    assert [line["pos"] for line in asked] == list(range(1, len(lines) + 1))
    assert not any(line.get("payload") or line.get("body") or line["salt"] for line in asked)
    assert [line["seq"] for line in lines if line.get("payload")] == [2, 23]
    assert {line["type"] for line in lines if line["salt"]} == {"message"}
    with pytest.raises(ZeroDivisionError):
        list(store.audit.export("t", bodies=lambda line: line["pos"] < 1 // 0))


# ---- while others write


def test_what_is_appended_during_an_export_is_left_out(store: Face) -> None:
    store.append("t", [{"n": n} for n in range(1000)], raw=True)
    store.append("t", [{"n": n} for n in range(1000)], raw=True)
    lines = store.audit.export("t")
    first = [next(lines) for _ in range(10)]
    store.append("t", [{"n": n} for n in range(50)], raw=True)
    store.compact("t", lambda ctx: ctx.remove(1, 5))
    store.custody.hold("t", reason="audit")
    whole = [*first, *lines]
    assert (len(whole), cs.verify_bundle(whole).findings) == (2002, ())


def test_what_is_erased_during_an_export_ends_it(store: Face) -> None:
    store.append("t", [{"n": n} for n in range(1000)], raw=True)
    store.append("t", [{"n": n} for n in range(1000)], raw=True)
    lines = store.audit.export("t")
    first = [next(lines) for _ in range(10)]
    store.custody.redact("t", 1500, reason="asked")
    with pytest.raises(cs.Conflict, match="pos 1500 was erased"):
        first += lines
    assert cs.verify_bundle(first).findings[0].what == "the bundle has no end: part of it is missing"
    assert cs.verify_bundle(list(store.audit.export("t"))).findings == ()


def test_a_thread_that_was_tampered_with_is_exported_as_it_is_and_found(
    store: Face, other: Face, superuser: psycopg.Connection[Any]
) -> None:
    store.append("t", [{"role": "user", "content": str(i)} for i in range(9)])
    for table in TABLES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
    for change in (
        "UPDATE compaction_store.messages SET payload = '{}' WHERE seq = 3",
        "UPDATE compaction_store.messages SET created_at = 'infinity' WHERE seq = 4",
        "UPDATE compaction_store.messages SET redacted_pos = 99 WHERE seq = 5",
        "UPDATE compaction_store.messages SET tenant = 'other' WHERE seq = 6",
        "UPDATE compaction_store.messages SET seq = 9223372036854775807 WHERE seq = 9",
        "UPDATE compaction_store.heads SET last_pos = 3, last_seq = 3",
    ):
        superuser.execute("BEGIN")
        superuser.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        superuser.execute(change)
        superuser.execute("COMMIT")
        lines = list(store.audit.export("t"))
        assert cs.verify_bundle(lines).findings
        assert offline.check(io.BytesIO(b"".join(lines))).findings
        with pytest.raises(cs.InvalidBundle):
            other.load.bundle(lines)


# ---- what is refused


def test_a_bundle_that_does_not_prove_itself_leaves_nothing(store: Face, superuser: psycopg.Connection[Any]) -> None:
    lines = golden()["bundle-1.jsonl"]
    entries = said(lines)
    wrong: list[tuple[list[bytes], int | None]] = [
        (lines[:-1], len(lines)),
        (lines[:5], 6),
        ([], 1),
        ([*lines[:5], *lines[6:]], 6),
        ([*lines, *lines], len(lines) + 1),
        ([lines[0].replace(b"\n", b"\r\n"), *lines[1:]], 1),
        (sealed([*entries[:3], entries[3] | {"tokens": 8}, *entries[4:]]), 4),
        (sealed([*entries[:3], entries[3] | {"payload": f'{{"{SECRET}":1}}'}, *entries[4:]]), 4),
        (sealed([entries[0] | {"tenant": "other"}, *entries[1:]]), 1),
        (rich("other").lines(), 1),
        (sealed([entries[0] | {"head": "0" * 64}, *entries[1:]]), 1),
        (sealed([entries[0] | {"last_pos": 0, "last_seq": 0, "last_number": 0}]), 1),
    ]
    for bad, line in wrong:
        with pytest.raises(cs.InvalidBundle) as caught:
            store.load.bundle(bad)
        assert caught.value.line == line, bad[:1]
        assert f"line {line} of the bundle" in str(caught.value)
        assert SECRET not in str(caught.value)
        assert nothing_there(superuser)


def test_an_empty_bundle_is_refused(store: Face, superuser: psycopg.Connection[Any]) -> None:
    manifest, genesis = said(golden()["bundle-1.jsonl"])[0], rich().genesis.hex()
    empty = sealed([manifest | {"last_pos": 0, "last_seq": 0, "last_number": 0, "head": genesis}])
    assert cs.verify_bundle(empty).findings == ()
    with pytest.raises(cs.InvalidBundle, match="no entries"):
        store.load.bundle(empty)
    assert nothing_there(superuser)


def _unsound(case: str) -> Thread:
    """Makes a thread with a valid chain that no store would write."""
    thread = Thread()
    for i in range(6):
        key = "same" if case == "key" else None
        thread.message('{"role":"user","content":"hi"}', key=key, meta="{" if case == "meta" and i else None)
    other: Line = {"source_end": "0" * 64}
    folds = '{"replacement":[]}'
    if case == "source":
        thread.compaction(folds, start=2, end=4)
        line = thread.entries.pop()
        thread.compaction(folds, **{k: line[k] for k in ("outcome", "source_count", "start_seq", "end_seq")}, **other)
    elif case == "overlap":
        thread.compaction(folds, start=1, end=3)
        thread.compaction(folds, start=3, end=5)
    elif case == "inside":
        thread.compaction(folds, start=1, end=6, source_count=2)
    elif case == "revokes":
        thread.compaction(kind="revocation", outcome="applied", revokes=9, start_seq=1, end_seq=2)
    elif case == "undone":
        thread.compaction(folds, start=2, end=4)
        body = '{"replacement":"x"}'
        thread.compaction(body, kind="revocation", outcome="applied", revokes=1, start_seq=2, end_seq=4)
    elif case == "span":
        thread.compaction(outcome="failed", start_seq=3, end_seq=1)
    elif case == "body":
        thread.compaction("no JSON")
    elif case == "time":
        thread.event("hold")
        thread.entries[-1]["microseconds"] = 2**62
        thread.entries[-1]["entry"] = entry(thread.entries[-1], bytes.fromhex(thread.entries[-2]["entry"]))
    return thread


@pytest.mark.parametrize(
    "case", ["key", "meta", "source", "overlap", "inside", "revokes", "undone", "span", "body", "time"]
)  # fmt: skip
def test_a_sound_chain_that_no_store_would_have_written_is_refused(
    store: Face, superuser: psycopg.Connection[Any], case: str
) -> None:
    lines = _unsound(case).lines()
    found = cs.verify_bundle(lines).findings
    is_found = case in {"meta", "body", "time", "undone"}
    assert bool(found) == bool(offline.check(io.BytesIO(b"".join(lines))).findings) == is_found
    with pytest.raises(cs.InvalidBundle, match=r"'t-1'|year|JSON|replacement") as caught:
        store.load.bundle(lines)
    assert "hi" not in str(caught.value).split()
    assert nothing_there(superuser)
    assert store.append("t-1", {"role": "user", "content": "free"})[0].seq == 1


@pytest.mark.one_server("it makes triggers with several commands")
def test_rows_that_were_changed_on_their_way_are_refused(
    store: Face, other: Face, other_url: str, server: Server
) -> None:
    """The database checks the chain of the inserted rows before it moves the head."""
    busy(store)
    lines = list(store.audit.export("t"))
    with psycopg.connect(server.by_own_login(other_url), autocommit=True) as behind:
        for table, change in (
            ("messages", "NEW.tokens := NEW.tokens + 1"),
            ("messages", "NEW.payload := '{}'"),
            ("messages", "NEW.redacted_pos := 5"),
            ("compactions", "NEW.end_seq := NEW.end_seq + 1"),
            ("compactions", "NEW.body := '{}'"),
            ("events", "NEW.actor := 'nobody'"),
            ("events", "NEW.login := 'nobody'"),
            ("events", "NEW.critical := NOT NEW.critical"),
            ("compactions", "NEW.login := 'nobody'"),
            ("events", "RETURN NULL"),
        ):
            behind.execute(
                f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {change}; RETURN NEW; END$$;"
                f"CREATE TRIGGER meddle BEFORE INSERT ON compaction_store.{table}"
                " FOR EACH ROW EXECUTE FUNCTION meddle()"
            )
            with pytest.raises(cs.InvalidBundle, match=r"do not form a chain|no redaction erased it"):
                other.load.bundle(lines)
            behind.execute("DROP FUNCTION meddle CASCADE")
            assert nothing_there(behind)
    assert other.load.bundle(lines).added


def test_lines_are_bytes(store: Face) -> None:
    lines = golden()["bundle-1.jsonl"]
    wrong: Any
    for wrong in (b"".join(lines), b"".join(lines).decode(), {}, [lines[0].decode()], [None]):
        with pytest.raises(cs.InvalidInput, match="mode 'rb'"):
            store.load.bundle(wrong)


def test_a_source_that_fails_leaves_nothing(store: Face, superuser: psycopg.Connection[Any]) -> None:
    def cut() -> Iterator[bytes]:
        yield from golden()["bundle-1.jsonl"][:10]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.load.bundle(cut())
    assert nothing_there(superuser)


# ---- roles and faults


@pytest.fixture
def login(url: str, superuser: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a login that is a member of the roles named."""
    name = f"cs_importer_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {request.param}".encode())
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize("login", ["compaction_store_loader"], indirect=True)
def test_a_member_of_the_loaders_role_exports_and_imports(faces: Faces, url: str, login: str) -> None:
    store = faces.open(login)
    lines = golden()["bundle-1.jsonl"]
    assert store.load.bundle(lines).added
    assert list(store.audit.export("t-1"))[1:-1] == lines[1:-1]
    assert list(faces.open(url, tenant="other").threads()) == []


@pytest.mark.parametrize("login", ["compaction_store_app", "compaction_store_auditor"], indirect=True)
def test_a_login_without_the_loaders_role_learns_which_to_get(
    faces: Faces, login: str, superuser: psycopg.Connection[Any]
) -> None:
    with pytest.raises(PermissionDenied, match="grant LOGIN loader"):
        faces.open(login).load.bundle(golden()["bundle-1.jsonl"])
    assert nothing_there(superuser)


@pytest.mark.one_server("it makes triggers with several commands")
@pytest.mark.parametrize("table", ["messages", "compactions", "events"])
def test_an_import_whose_connection_breaks_is_tried_again(
    store: Face, superuser: psycopg.Connection[Any], table: str
) -> None:
    superuser.execute(
        "CREATE SEQUENCE broken; GRANT USAGE ON SEQUENCE broken TO PUBLIC;"
        "CREATE FUNCTION break() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN"
        " IF nextval(''public.broken'') = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW;"
        f" END'; CREATE TRIGGER break BEFORE INSERT ON compaction_store.{table} FOR EACH ROW EXECUTE FUNCTION break()"
    )
    lines = golden()["bundle-1.jsonl"]
    assert store.load.bundle(lines).added
    assert list(store.audit.export("t-1"))[1:-1] == lines[1:-1]


# ---- memory


def _peak(run: Any) -> int:
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_long_thread_takes_little_memory_on_its_way(url: str, other_url: str, tmp_path: Any) -> None:
    path = tmp_path / "t.jsonl"
    with cs.Store.open(url) as store, cs.Store.open(other_url) as other:
        store.load.messages("t", ({"role": "user", "content": f"{i} " + "x" * 4000} for i in range(3_000)), tokens=1)
        with path.open("wb") as file:
            assert _peak(lambda: file.writelines(store.audit.export("t"))) < 12_000_000
        with path.open("rb") as file:
            assert _peak(lambda: cs.verify_bundle(file)) < 1_000_000
        with path.open("rb") as file:
            assert _peak(lambda: offline.check(file)) < 1_000_000
        with path.open("rb") as file:
            # Above eight megabytes, the prepared rows are in a file.
            assert _peak(lambda: other.load.bundle(file)) < 25_000_000
        assert other.thread("t") == store.thread("t")


@pytest.mark.slow
def test_two_hundred_thousand_messages_with_records(url: str, other_url: str, tmp_path: Any) -> None:
    path = tmp_path / "t.jsonl"
    with cs.Store.open(url) as store, cs.Store.open(other_url) as other:
        for part in range(20):
            store.load.messages(
                "t", ({"role": "user", "content": f"{i}"} for i in range(10_000)), tokens=1, key=f"{part}"
            )
            first = 10_000 * part + 1
            store.compact("t", span(first, first + 5, "s", allow={"larger"}))
        store.custody.redact("t", range(3, 200_000, 7), reason="asked")
        with path.open("wb") as file:
            file.writelines(store.audit.export("t"))
        with path.open("rb") as file:
            assert other.load.bundle(file).added
        assert other.thread("t") == store.thread("t")
        assert other.audit.verify("t").findings == ()
        assert other.view("t") == store.view("t")
