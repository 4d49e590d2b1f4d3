"""Verification against a checkpoint finds threads that are gone, rolled back or forked."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.checkpoints import KEY, contradictions, cut
from support.keys import key_of
from support.superuser_edits import WITH_NAMES

import compaction_store as cs


def drop(root: psycopg.Connection[Any], thread_id: str) -> None:
    uid = key_of(root, thread_id)
    for table in WITH_NAMES:
        root.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", (uid,))


def refusal(store: Any, log: cs.CheckpointLog) -> str:
    before = log.last()
    files = sorted(log.path.parent.iterdir())
    with pytest.raises(cs.CheckpointRefused) as caught:
        store.audit.checkpoint(KEY, log)
    assert log.last() == before
    assert sorted(log.path.parent.iterdir()) == files
    [finding] = caught.value.findings
    return str(finding)


def test_a_thread_that_is_gone_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    uid = key_of(root, "b")
    drop(root, "b")
    assert refusal(checked, log).endswith("the thread is gone")
    [what] = contradictions(checked, log)
    assert what.startswith(f"thread_uid {uid}: the thread was at pos 5 at the checkpoint of ")
    assert what.endswith("and is gone")
    # The name was the only way to the key, so that one thread cannot be told from one that never was.
    for name in ("b", "never there"):
        with pytest.raises(cs.ThreadNotFound):
            checked.audit.verify(name, level="checkpoint", checkpoints=log)


def test_a_rollback_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    cut(root, "b", 4)
    assert refusal(checked, log).endswith("the thread ends at pos 4 now")
    assert contradictions(checked, log) == ["a checkpoint covers pos 5, but the chain ends at pos 4"]


@pytest.mark.parametrize("more", [1, 2, 5])
def test_a_fork_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any, more: int) -> None:
    """A failover lost an acknowledged message, and another took its place."""
    cut(root, "b", 4)
    with pytest.raises(cs.ThreadWentBack):
        checked.append("b", [{"other": n} for n in range(more)], raw=True)
    assert checked.audit.verify("b").findings == ()
    assert refusal(checked, log).endswith("another entry is there now")
    [what] = contradictions(checked, log)
    assert "a checkpoint has another entry at this pos" in what


def test_what_is_newer_than_the_checkpoint_is_not_held_by_it(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    cut(root, "a", 5)
    with pytest.raises(cs.ThreadWentBack):
        checked.append("a", {"other": 1}, raw=True)
    assert contradictions(checked, log) == []
    assert checked.audit.checkpoint(KEY, log).size == 3


def test_a_grown_thread_is_found_by_whatever_stands_at_its_old_pos(store: Any, log: cs.CheckpointLog) -> None:
    """Messages have no index by pos: records and events before it are counted."""
    for name in ("message", "record", "event"):
        store.append(name, [{"role": "user", "content": "some words to be made shorter"} for _ in range(4)])
        store.custody.hold(name, reason="r")
        store.compact(name, lambda ctx: ctx.compact(1, 2, "s"), force=True)
        store.append(name, {"n": 1}, raw=True)
    store.compact("record", lambda ctx: ctx.compact(3, 4, "s"), force=True)
    store.custody.release("event", reason="r")
    store.audit.checkpoint(KEY, log)
    for name in ("message", "record", "event"):
        store.custody.hold(name, reason="r")
        store.append(name, [{"n": 2}, {"n": 3}], raw=True)
    assert store.audit.checkpoint(KEY, log).size == 3
    assert contradictions(store, log) == []
    for name in ("message", "record", "event"):
        assert store.audit.verify(name, level="checkpoint", checkpoints=log).covered == store.thread(name).last_pos


def test_an_erased_thread_is_still_held_by_a_checkpoint(checked: Any, log: cs.CheckpointLog) -> None:
    stub = checked.custody.erase("b", reason="asked").thread_id
    assert contradictions(checked, log) == []
    assert checked.audit.checkpoint(KEY, log).size == 3
    report = checked.audit.verify(stub, level="checkpoint", checkpoints=log)
    assert (report.findings, report.level, report.covered) == ((), "checkpoint", 6)
    with pytest.raises(cs.ThreadNotFound):
        checked.audit.verify("b", level="checkpoint", checkpoints=log)


def test_a_new_thread_under_a_free_name_is_not_the_one_that_had_it(
    checked: Any, log: cs.CheckpointLog, root: Any
) -> None:
    """An erasure frees a name, and so does a superuser who deletes a thread. Only the second is a contradiction."""
    checked.custody.erase("b", reason="asked")
    gone = key_of(root, "c")
    drop(root, "c")
    checked.append("b", {"n": 1}, expected_seq=0, raw=True)
    with pytest.raises(cs.ThreadWentBack):
        checked.append("c", {"n": 1}, expected_seq=0, raw=True)
    for name in ("b", "c"):
        report = checked.audit.verify(name, level="checkpoint", checkpoints=log)
        assert report.notes[-1] == "no checkpoint covers the thread yet"
        assert checked.audit.verify(name).findings == ()
    [what] = contradictions(checked, log)
    assert what.startswith(f"thread_uid {gone}: ")
    assert what.endswith("and is gone")
    assert refusal(checked, log).endswith("the thread is gone")
