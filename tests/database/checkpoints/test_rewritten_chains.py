"""Nobody who may write to every table gets a rewritten history signed, whatever the tables say at that moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.checkpoints import KEY, contradictions
from support.keys import key_of
from support.rewritten_chains import Rewritten, rewritten
from support.superuser_edits import as_role, columns

import compaction_store as cs

Root = psycopg.Connection[Any]


def said(text: str) -> str:
    return json.dumps({"role": "user", "content": text})


def message(store: Any, name: str) -> None:
    store.append(name, [{"role": "user", "content": f"pay {n} EUR to Ann"} for n in range(3)])


def record(store: Any, name: str) -> None:
    message(store, name)
    store.compact(name, lambda ctx: ctx.compact(1, 2, "paid to Ann"), force=True)


def event(store: Any, name: str) -> None:
    message(store, name)
    store.custody.hold(name, reason="paid to Ann")


def fork(store: Any, name: str) -> None:
    message(store, f"parent of {name}")
    store.fork(f"parent of {name}", name)


#: The ways to begin a thread, with the pos that is rewritten and the body that is put there.
BEGINNINGS: dict[str, tuple[Callable[[Any, str], None], int, str]] = {
    "message": (message, 2, said("pay 99999 EUR to Bob")),
    "record": (record, 4, '{"replacement":[{"role":"user","content":"paid to Bob"}]}'),
    "event": (event, 4, '{"reason":"paid to Bob"}'),
    "fork": (fork, 3, said("pay 99999 EUR to Bob")),
}
#: What an honest program adds before the next checkpoint.
GROWTHS: dict[str, Callable[[Any, str], Any]] = {
    "message": lambda store, name: store.append(name, {"role": "user", "content": "later, honest"}),
    "record": lambda store, name: store.compact(name, lambda ctx: ctx.compact(3, 3, "later"), force=True),
    "event": lambda store, name: store.custody.hold(name, reason="later, honest"),
}


def refused(store: Any, log: cs.CheckpointLog) -> list[str]:
    before, files = log.last(), sorted(log.path.parent.iterdir())
    with pytest.raises(cs.CheckpointRefused) as caught:
        store.audit.checkpoint(KEY, log)
    assert log.last() == before
    assert sorted(log.path.parent.iterdir()) == files
    return list(caught.value.findings)


def end(root: Root, name: str) -> int:
    return max(entry.pos for entry in rewritten(root, name, {}).entries)


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_head_that_is_changed_for_the_moment_is_not_signed(
    store: Any, log: cs.CheckpointLog, root: Root, kind: str, growth: str
) -> None:
    begin, pos, body = BEGINNINGS[kind]
    begin(store, "t")
    store.audit.checkpoint(KEY, log)
    GROWTHS[growth](store, "t")
    forged, honest = rewritten(root, "t", {pos: body}), rewritten(root, "t", {})
    forged.put_head(root)
    [finding] = refused(store, log)
    assert finding == f"thread_uid {forged.uid}: the head is not the last entry"
    forged.put_rows(root)
    assert refused(store, log)
    assert contradictions(store, log)
    honest.put_rows(root)
    honest.put_head(root)
    store.audit.checkpoint(KEY, log)
    assert contradictions(store, log) == []


def decoy(root: Root, forged: Rewritten, table: str, pos: int, entry: bytes) -> None:
    """Puts the old entry where a look-up by pos might find it: into a row that is none of the thread's entries."""
    names = ", ".join(columns(table))
    changed = {"thread_uid": str(forged.uid), "pos": pos, "entry": f"\\x{entry.hex()}"}
    changed |= {"messages": {"seq": 1_000_000}, "compactions": {"number": 1_000_000}, "events": {}}[table]
    root.execute(
        f"INSERT INTO compaction_store.{table} ({names}) SELECT {names} FROM json_populate_record("
        f"(SELECT r FROM compaction_store.{table} AS r WHERE thread_uid = %s LIMIT 1), %s::json)".encode(),
        (key_of(root, "donor"), json.dumps(changed)),
    )


@pytest.mark.parametrize(
    ("kind", "table"),
    # Where the last entry is an event, there cannot be another event at the same pos.
    [(k, t) for k in BEGINNINGS for t in ("messages", "compactions", "events") if (k, t) != ("event", "events")],
)
def test_the_old_entry_in_another_row_does_not_vouch_for_a_rewritten_thread(
    store: Any, log: cs.CheckpointLog, root: Root, kind: str, table: str
) -> None:
    begin, pos, body = BEGINNINGS[kind]
    begin(store, "t")
    event(store, "donor")
    GROWTHS["record"](store, "donor")
    store.audit.checkpoint(KEY, log)
    at = end(root, "t")
    store.append("t", {"role": "user", "content": "later, honest"})
    honest, forged = rewritten(root, "t", {}), rewritten(root, "t", {pos: body})
    forged.put_rows(root)
    forged.put_head(root)
    decoy(root, forged, table, at, honest.at(at))
    assert refused(store, log)
    assert contradictions(store, log)


def test_no_one_of_many_threads_is_signed_unproved(store: Any, log: cs.CheckpointLog, root: Root) -> None:
    """Old threads and new ones, that grew by many entries and by few, some of them rewritten."""
    for n in range(12):
        message(store, f"t{n}")
    store.audit.checkpoint(KEY, log)
    for n in range(12):
        store.append(f"t{n}", [{"role": "user", "content": f"more {i}"} for i in range(n * n)] or {"n": 1}, raw=True)
        store.append(f"new {n}", [{"role": "user", "content": f"new {i}"} for i in range(n * n + 1)])
    for n in (3, 9):
        rewritten(root, f"t{n}", {1: said("forged")}).put_head(root)
        # A thread that no checkpoint knows could be rewritten whole. But not so that it contradicts itself.
        rewritten(root, f"new {n}", {1: said("forged")}).put_rows(root)
    findings = refused(store, log)
    wrong = {str(rewritten(root, name, {}).uid) for name in ("t3", "t9", "new 3", "new 9")}
    assert {finding.split()[1].rstrip(":,") for finding in findings} == wrong
    assert [finding.split(": ")[1] for finding in findings] == ["the head is not the last entry"] * 4


def test_a_history_is_not_rewritten_while_checkpoints_go_on(store: Any, log: cs.CheckpointLog, root: Root) -> None:
    """Lists of heads of some checkpoints are deleted, as a user may. The others still find the change."""
    made = []
    for n in range(6):
        store.append("t", {"role": "user", "content": f"message {n}"})
        made.append(store.audit.checkpoint(KEY, log))
    for n in (0, 2, 3):
        (log.path.parent / f"heads-{made[n].heads}").unlink()
    forged = rewritten(root, "t", {2: said("forged")})
    forged.put_rows(root)
    forged.put_head(root)
    assert "a checkpoint has another entry at this pos" in " ".join(contradictions(store, log))
    # Whatever the newest checkpoint says, the older ones do not change.
    path = log.path.parent / f"heads-{made[5].heads}"
    assert path.is_file()
    found = store.audit.verify("t", level="checkpoint", checkpoints=log).findings
    assert [finding.pos for finding in found if "a checkpoint has" in finding.what] == [2, 5, 6]


def test_an_older_checkpoint_finds_what_a_checkpoint_of_an_earlier_release_signed(
    store: Any, log: cs.CheckpointLog, root: Root
) -> None:
    """A log whose newest checkpoint is of the rewritten thread: a key's holder can sign anything."""
    message(store, "t")
    message(store, "u")
    store.audit.checkpoint(KEY, log)
    store.append("t", {"role": "user", "content": "later, honest"})
    forged = rewritten(root, "t", {2: said("pay 99999 EUR to Bob")})
    forged.put_rows(root)
    forged.put_head(root)
    elsewhere = cs.CheckpointLog(log.path.parent / "elsewhere" / "log", KEY.key)
    signed = store.audit.checkpoint(KEY, elsewhere)
    lines = log.path.read_bytes()
    made = log.last()
    assert made is not None
    with_previous = _signed_again(log, made, signed, elsewhere)
    assert contradictions(store, log) == ["a checkpoint has another entry at this pos"]
    # The other findings are about triggers, which this superuser has disabled.
    findings = {name: store.audit.verify(name, level="checkpoint", checkpoints=log).findings for name in ("t", "u")}
    assert [finding.pos for finding in findings["t"] if finding.pos is not None] == [3]
    assert [finding.pos for finding in findings["u"] if finding.pos is not None] == []
    assert log.path.read_bytes().startswith(lines)
    assert log.last() == with_previous
    # A checkpoint without a thread that an older one has contradicts that one too.
    root.execute("DELETE FROM compaction_store.heads WHERE thread_uid = %s", (forged.uid,))
    assert any("is gone" in what for what in contradictions(store, log))


def _signed_again(
    log: cs.CheckpointLog, previous: cs.Checkpoint, signed: cs.Checkpoint, elsewhere: cs.CheckpointLog
) -> cs.Checkpoint:
    """Appends the heads of another log's checkpoint, as a holder of the key could without this package."""
    from compaction_store.checkpoints import notes  # noqa: PLC0415

    writer = log.writer()
    with elsewhere.heads(signed) as heads:
        for head in heads:
            writer.add(head)
    made = notes.sign(KEY, "default", writer.tree, writer.hash, previous, signed.time)
    writer.keep()
    log.append(made)
    return made


@pytest.mark.one_server("on a cluster, a session has the rights of its login")
def test_an_auditor_makes_a_checkpoint_of_all_that_is_new(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    store, auditor = faces.open(url), faces.open(as_role(url, "compaction_store_auditor"))
    for kind, (begin, _, _) in BEGINNINGS.items():
        begin(store, kind)
    for _ in range(3):
        store.append("long", [{"role": "user", "content": f"message {n}"} for n in range(1000)])
    assert auditor.audit.checkpoint(KEY, log).size == len(list(store.threads()))
    for grow in GROWTHS.values():
        for kind in BEGINNINGS:
            grow(store, kind)
    store.custody.erase("long", reason="asked")
    store.custody.release("record", reason="asked")
    store.custody.redact("record", [1], reason="asked")
    assert auditor.audit.checkpoint(KEY, log).size
    assert contradictions(auditor, log) == []
