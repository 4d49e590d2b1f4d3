"""A tenant is removed: nothing of it is left, and a signed statement says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.checkpoints import KEY, OTHER
from support.faces import Face, Faces
from support.redactable_thread import dump

import compaction_store as cs
from compaction_store.arguments import DATABASE, LOG
from compaction_store.checkpoints import Removal, check_removal, notes
from compaction_store.deploy import roles
from compaction_store.errors import CheckpointRefused, InvalidCheckpoint, NotConfigured, PermissionDenied
from compaction_store.sealing.keys import Keys, owner_of
from compaction_store.sealing.seals import Seals

TEXTS = [f"planted-{i}-text" for i in range(40)]
DEED: dict[str, Any] = {
    "reason": "contract 9 has ended", "legal_basis": "Art. 28 GDPR", "authority": {"ticket": "X-1"}, "actor": "ops",
}  # fmt: skip


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(2, 4, f"All about {TEXTS[-1]}.")


@pytest.fixture
def acme(faces: Faces, url: str) -> Face:
    """A tenant of threads, forks and records with 40 planted texts, beside another tenant with a thread."""
    faces.open(url, tenant="other").append("planted", {"role": "user", "content": "this stays"})
    store = faces.open(url, tenant="acme")
    plant(store)
    return store


def plant(store: Face) -> None:
    for i, text in enumerate(TEXTS):
        name = f"{text[:9]}-{i % 4}"
        subject = "subject-of-acme" if i % 4 == 0 else None
        store.append(name, {"role": "user", "content": f"{text} " * 9}, meta={"note": text}, subject=subject)
    store.set_metadata("planted-1-1", {"title": TEXTS[0]})
    store.compact("planted-2-2", fold)
    store.fork("planted-2-2", "planted-fork")
    store.fork("planted-fork", "planted-fork-of-fork")
    store.custody.erase("planted-3-3", reason="earlier")


def sums(store: Face) -> tuple[int, int, int]:
    stubs = list(store.threads(hidden=True))
    return len(stubs), sum(t.last_seq for t in stubs), sum(t.last_number for t in stubs)


def test_nothing_of_a_tenant_is_left_and_the_statement_says_what_was_there(
    acme: Face, faces: Faces, url: str, superuser: psycopg.Connection[Any], tmp_path: Path
) -> None:
    expected = sums(acme)
    before = dump(superuser)
    would = acme.custody.remove_tenant(KEY, **DEED, dry_run=True)
    assert dump(superuser) == before
    # A dry run counts what is left to erase, without the thread that was erased earlier.
    assert (would.threads, would.note) == (expected[0] - 1, "")
    seen: list[tuple[int, int]] = []
    done = acme.custody.remove_tenant(KEY, **DEED, progress=lambda *now: seen.append(now))
    after = dump(superuser)
    assert [text for text in (*TEXTS, "planted-fork", "subject-of-acme") if text in after] == []
    assert [m.payload["content"] for m in faces.open(url, tenant="other").replay("planted")] == ["this stays"]
    assert all(thread.erased_pos for thread in acme.threads(hidden=True))
    assert (done.threads, done.messages, done.records) == expected == sums(acme)
    assert seen[-1] == (would.threads, would.threads)
    assert [report.findings for report in acme.audit.verify() if report.findings] == []
    # The statement, the event and a checkpoint over the tenant agree.
    assert check_removal(done.note, KEY.key) == done
    [event] = [e for e in faces.open(url, tenant=DATABASE).audit.events(LOG, kind="removal") if e.pos == done.pos]
    assert event.body.items() <= done.as_dict().items()
    assert (event.actor, event.login, event.created_at) == (done.actor, done.login, done.created_at)
    assert {name: getattr(done, name) for name in DEED} == DEED
    made = acme.audit.checkpoint(KEY, cs.CheckpointLog(tmp_path / "log.jsonl", KEY.key))
    assert (done.heads, done.root) == (made.heads, made.root.hex())


def test_a_repeated_removal_erases_nothing_and_says_the_same(acme: Face) -> None:
    first = acme.custody.remove_tenant(KEY, **DEED)
    events = len(list(acme.audit.events()))
    again = acme.custody.remove_tenant(KEY, **DEED)
    assert len(list(acme.audit.events())) == events
    assert (again.threads, again.messages, again.heads) == (first.threads, first.messages, first.heads)
    assert again.pos > first.pos


@pytest.mark.parametrize("kept", ["held", "retained", "locked"])
def test_nothing_is_erased_while_a_thread_is_held_or_retained(
    acme: Face, superuser: psycopg.Connection[Any], kept: str
) -> None:
    if kept == "held":
        acme.custody.hold("planted-fork", reason="claim 7")
    else:
        end = datetime.now(UTC) + timedelta(days=3)
        acme.custody.retain("planted-0-0", end, reason="law", locked=kept == "locked")
    before = dump(superuser)
    word = "held" if kept == "held" else "retained"
    for dry_run in (True, False):
        with pytest.raises(
            cs.Conflict, match=rf"^1 of the 20 threads must be kept \(1 {word}\), so nothing was erased"
        ):
            acme.custody.remove_tenant(KEY, **DEED, dry_run=dry_run)
        assert dump(superuser) == before


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", range(1, 6))
def test_a_removal_that_was_stopped_is_repeated(acme: Face, superuser: psycopg.Connection[Any], at: int) -> None:
    expected = sums(acme)

    def stop(done: int, _total: int) -> None:
        if done == at:
            raise Stopped

    with pytest.raises(Stopped):
        acme.custody.remove_tenant(KEY, **DEED, progress=stop)
    assert len([t for t in acme.threads(hidden=True) if t.erased_pos]) == at + 1
    done = acme.custody.remove_tenant(KEY, **DEED)
    assert (done.threads, done.messages, done.records) == expected
    assert [text for text in TEXTS if text in dump(superuser)] == []


def test_a_tenant_without_threads_is_refused(faces: Faces, url: str) -> None:
    for tenant in ("mistyped", DATABASE):
        with pytest.raises(CheckpointRefused, match="the tenant has no threads; nothing was signed"):
            faces.open(url, tenant=tenant).custody.remove_tenant(KEY, **DEED)


def test_a_thread_that_is_opened_meanwhile_is_not_signed_away(acme: Face, faces: Faces, url: str) -> None:
    other = cs.Store.open(url, tenant="acme")

    def write(done: int, _total: int) -> None:
        if done == 1:
            other.append("a-new-one", {"role": "user", "content": "I am late"})

    with other, pytest.raises(cs.Conflict, match="1 threads were opened meanwhile"):
        acme.custody.remove_tenant(KEY, **DEED, progress=write)
    assert "removal" not in {event.kind for event in faces.open(url, tenant=DATABASE).audit.events()}
    assert acme.custody.remove_tenant(KEY, **DEED).threads == len(list(acme.threads(hidden=True)))


def test_a_stub_whose_rows_were_changed_is_not_signed(acme: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    acme.custody.erase("planted-0-0", reason="earlier")
    superuser.execute(
        "UPDATE compaction_store.messages SET commitment = sha256(commitment) WHERE tenant = 'acme' AND seq = 3"
    )
    with pytest.raises(CheckpointRefused, match="nothing was signed"):
        acme.custody.remove_tenant(KEY, **DEED)


@pytest.fixture
def login(superuser: psycopg.Connection[Any], superuser_url: str) -> Iterator[str]:
    name = f"cs_remover_{superuser.info.backend_pid}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
    try:
        yield sa.make_url(superuser_url).set(username=name, password="pw").render_as_string(hide_password=False)
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_the_login_needs_the_roles_eraser_and_auditor(
    acme: Face, faces: Faces, superuser_url: str, superuser: psycopg.Connection[Any], login: str
) -> None:
    before, name = dump(superuser), sa.make_url(login).username
    assert name is not None
    for role, missing in (("auditor", "eraser"), ("eraser", "auditor")):
        roles.grant(superuser_url, name, role)  # type: ignore[arg-type]
        with pytest.raises(PermissionDenied, match=f"compaction_store_{missing}"):
            faces.open(login, tenant="acme").custody.remove_tenant(KEY, **DEED)
        roles.revoke(superuser_url, name, role)  # type: ignore[arg-type]
    assert [text for text in TEXTS if text not in dump(superuser)] == [text for text in TEXTS if text not in before]
    for role in ("auditor", "eraser"):
        roles.grant(superuser_url, name, role)  # type: ignore[arg-type]
    done = faces.open(login, tenant="acme").custody.remove_tenant(KEY, **DEED)
    assert (done.login, done.threads) == (name, len(list(acme.threads(hidden=True))))


def test_the_keys_of_a_sealed_tenant_are_destroyed(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], tmp_path: Path
) -> None:
    keys = Keys.make(tmp_path / "keys")
    other = faces.open(url, tenant="other", seal=keys)
    other.append("planted", {"role": "user", "content": "this stays"})
    store = faces.open(url, tenant="acme", seal=keys)
    plant(store)
    names = [t.thread_id for t in store.threads(hidden=True) if t.subject is None and not t.erased_pos]
    copies = [m.payload for m in faces.open(url, tenant="acme").replay("planted-0-0")]
    assert Seals(keys, "acme").opened_message(json.dumps(copies[0])) is not None

    def stop(done: int, _total: int) -> None:
        if done == 4:
            raise Stopped

    with pytest.raises(Stopped):
        store.custody.remove_tenant(KEY, **DEED, progress=stop)
    with pytest.raises(NotConfigured, match="seal=Keys"):
        faces.open(url, tenant="acme").custody.remove_tenant(KEY, **DEED)
    (tmp_path / "others").mkdir()
    with pytest.raises(NotConfigured, match="does not have"):
        faces.open(url, tenant="acme", seal=Keys.make(tmp_path / "others")).custody.remove_tenant(KEY, **DEED)
    done = store.custody.remove_tenant(KEY, **DEED)
    # The subject has one key, and each of the other threads has its own, but for the last fork, which only has copies.
    assert done.keys == 1 + len(names) - 1
    assert [Seals(keys, "acme").opened_message(json.dumps(copy)) for copy in copies] == [None] * len(copies)
    assert keys.id_of(owner_of("acme", "subject-of-acme")) is None
    assert [text for text in TEXTS if text in dump(superuser)] == []
    assert [m.payload["content"] for m in other.replay("planted")] == ["this stays"]
    # Those of the other tenant, and of the thread that was erased earlier without its key.
    assert len(list((tmp_path / "keys").glob("*.owner"))) == 2


def test_no_forged_event_destroys_the_key_of_another_tenant(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], tmp_path: Path
) -> None:
    keys = Keys.make(tmp_path / "keys")
    other = faces.open(url, tenant="other", seal=keys)
    other.append("planted", {"role": "user", "content": "this stays"})
    store = faces.open(url, tenant="acme", seal=keys)
    found = keys.id_of(owner_of("other", thread_id="planted"))
    assert found is not None
    other.custody.hold("planted", reason="claim")
    for number, name in enumerate((f"{found.hex()}.{'0' * 64}", found.hex(), "zz", 5, None, ["x"])):
        store.append(f"t{number}", {"role": "user", "content": "hello"})
        superuser.execute(
            "SELECT compaction_store.erase(NULL, 'acme', %s, NULL, %s, %s, false)",
            (f"t{number}", bytes([number]) * 16, json.dumps({"reason": "r", "key": name})),
        )
    store.append("last", {"role": "user", "content": "hello"})
    assert store.custody.remove_tenant(KEY, **DEED).keys == 1
    assert [m.payload["content"] for m in other.replay("planted")] == ["this stays"]


def test_a_statement_that_was_changed_or_that_another_key_signed_is_refused(acme: Face) -> None:
    done = acme.custody.remove_tenant(KEY, **DEED)
    assert check_removal(done.note, OTHER.key, KEY.key.hex()) == done
    for wrong in (
        done.note.replace('"threads":', '"threads":1'),
        done.note.replace("acme", "acne"),
        "",
        done.note[:-1],
    ):
        with pytest.raises(InvalidCheckpoint):
            check_removal(wrong, KEY.key)
    with pytest.raises(InvalidCheckpoint, match="no known key"):
        check_removal(done.note, OTHER.key)
    # A checkpoint is no statement, and a statement no checkpoint.
    with pytest.raises(InvalidCheckpoint, match="not the note of a checkpoint"):
        notes.read(done.note, KEY.key)


@pytest.mark.parametrize(
    "text",
    [
        "example.org/audit/acme\nremoval\n{}\n",
        "example.org/audit/acme\nremoval\n[]\n",
        "example.org/audit/acme\nremoval\nnull\n",
        "example.org/audit/acme\n5\nx\n",
        'example.org/audit/acme\nremoval\n{"tenant":"acme"}\n',
    ],
)
def test_a_signed_text_that_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="not the statement of a removal"):
        check_removal(notes.with_signature(KEY, text), KEY.key)


def test_a_statement_of_another_tenant_than_its_origin_is_refused() -> None:
    said = Removal("acme", 1, 1, 0, created_at=datetime.now(UTC)).as_dict()
    text = json.dumps({name: said[name] for name in said if name not in ("note", "name", "key")}, separators=(",", ":"))
    with pytest.raises(InvalidCheckpoint, match="another tenant"):
        check_removal(notes.with_signature(KEY, f"example.org/audit/other\nremoval\n{text}\n"), KEY.key)


@pytest.mark.parametrize(
    "wrong", [{"signer": "key"}, {"signer": cs.SigningKey}, {"reason": ""}, {"legal_basis": " "}, {"dry_run": 1},
              {"progress": 5}, {"authority": []}, {"actor": ""}],
)  # fmt: skip
def test_a_bad_argument_is_refused(acme: Face, superuser: psycopg.Connection[Any], wrong: dict[str, Any]) -> None:
    before = dump(superuser)
    given = {"signer": KEY, **DEED, **wrong}
    with pytest.raises(cs.InvalidInput, match=next(iter(wrong))):
        acme.custody.remove_tenant(given.pop("signer"), **given)
    assert dump(superuser) == before
