"""All threads of a subject are erased, and nothing of the subject is left in any table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces
from support.redactable_thread import dump

import compaction_store as cs
from compaction_store.deploy import roles

SUBJECT = "subject-of-the-test"
TEXTS = [f"planted-{i}-text" for i in range(50)]
DEED: dict[str, Any] = {"reason": "Art. 17"}


@pytest.fixture
def threads(store: Face) -> Face:
    """Threads, forks and records with 50 planted texts, in payloads, metas, metadata, summaries and names."""
    for i, text in enumerate(TEXTS[:40]):
        store.append(
            f"{text[:9]}-{i % 4}", {"role": "user", "content": f"{text} " * 9}, meta={"note": text}, subject=SUBJECT
        )
    names = [thread.thread_id for thread in store.threads(subject=SUBJECT)]
    for name, text in zip(names, TEXTS[40:45], strict=False):
        store.set_metadata(name, {"title": text})
    for name, text in zip(names, TEXTS[45:], strict=False):
        store.append(name, [{"role": "user", "content": f"{text} {i} " * 9} for i in range(4)])
        store.compact(name, _folding(text))
    store.fork(names[0], "planted-fork")
    store.fork(names[1], "another's")
    store.custody.set_subject("another's", "bob")
    store.set_metadata("another's", {"title": "of bob"})
    store.append("another's", {"role": "user", "content": "this stays"})
    store.append("other", {"role": "user", "content": "this stays too"}, subject="bob")
    return store


def _folding(text: str) -> Any:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 3, f"All about {text}.")

    return compact


def test_nothing_of_a_subject_is_left(threads: Face, superuser: psycopg.Connection[Any]) -> None:
    before = dump(superuser)
    assert all(text in before for text in (*TEXTS, SUBJECT))
    would = list(threads.custody.erase_subject(SUBJECT, **DEED, dry_run=True))
    assert dump(superuser) == before
    done = list(threads.custody.erase_subject(SUBJECT, **DEED, actor="dpo", legal_basis="Art. 17 GDPR"))
    assert [(e.thread_uid, e.kept) for e in done] == [(e.thread_uid, None) for e in would]
    assert all(e.messages for e in would)
    after = dump(superuser)
    assert [text for text in (*TEXTS, SUBJECT, "planted-fork") if text in after] == []
    assert [m.payload["content"] for m in threads.replay("other")] == ["this stays too"]
    assert list(threads.replay("another's"))[-1].payload == {"role": "user", "content": "this stays"}
    assert list(threads.threads(subject=SUBJECT)) == list(threads.custody.erase_subject(SUBJECT, **DEED)) == []
    for report in threads.audit.verify():
        assert report.findings == ()
    events = [e for e in threads.audit.events(kind="redaction") if e.body.get("whole")]
    assert {(e.actor, e.reason, e.body["legal_basis"]) for e in events} == {("dpo", "Art. 17", "Art. 17 GDPR")}


def test_threads_under_a_hold_or_a_retention_are_kept(store: Face) -> None:
    for name in ("free", "held", "retained", "the thread is retained "):
        store.append(name, {"role": "user", "content": "hello"}, subject=SUBJECT)
    store.custody.hold("held", reason="claim")
    store.custody.hold("the thread is retained ", reason="claim")
    store.custody.retain("retained", datetime.now(UTC) + timedelta(days=1), reason="law")
    kept = {"free": None, "held": "held", "retained": "retained", "the thread is retained ": "held"}
    for dry_run in (True, False):
        done = store.custody.erase_subject(SUBJECT, **DEED, dry_run=dry_run)
        assert {e.thread_id: e.kept for e in done} == kept
    assert {t.thread_id for t in store.threads(subject=SUBJECT)} == kept.keys() - {"free"}
    assert [e.kind for e in store.audit.events("held")] == ["hold", "refusal"]
    done = store.custody.erase_subject(SUBJECT, **DEED, override="order of the court")
    assert [e.kept for e in done] == [None] * 3
    assert list(store.threads(subject=SUBJECT)) == []


def test_a_run_that_was_stopped_is_repeated(threads: Face) -> None:
    count = len(list(threads.threads(subject=SUBJECT)))
    run = iter(threads.custody.erase_subject(SUBJECT, **DEED))
    first = [next(run).thread_uid, next(run).thread_uid]
    rest = [e.thread_uid for e in threads.custody.erase_subject(SUBJECT, **DEED)]
    assert len({*first, *rest}) == len(first) + len(rest) == count


@pytest.mark.usefixtures("threads")
def test_an_eraser_may_and_an_application_may_not(
    faces: Faces, superuser_url: str, superuser: psycopg.Connection[Any]
) -> None:
    for role, may in (("eraser", True), ("application", False)):
        name = f"cs_subjects_{role}_{superuser.info.backend_pid}"
        superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
        try:
            roles.grant(superuser_url, name, role)  # type: ignore[arg-type]
            login = sa.make_url(superuser_url).set(username=name, password="pw")
            own = faces.open(login.render_as_string(hide_password=False))
            if may:
                assert list(own.custody.erase_subject(SUBJECT, **DEED, dry_run=True))
                assert next(iter(own.custody.erase_subject(SUBJECT, **DEED))).kept is None
            else:
                with pytest.raises(cs.errors.PermissionDenied):
                    list(own.custody.erase_subject(SUBJECT, **DEED))
        finally:
            superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize("wrong", [{"subject": ""}, {"subject": 5}, {"reason": ""}, {"override": " "}, {"dry_run": 1}])
def test_a_bad_argument_is_refused_at_once(store: Face, wrong: dict[str, Any]) -> None:
    with pytest.raises(cs.InvalidInput, match=next(iter(wrong))):
        store.store.custody.erase_subject(**{"subject": "x", "reason": "y", **wrong})
