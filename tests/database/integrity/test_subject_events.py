"""The subject of a thread must be that of its newest event about the subject, in the tables and in a bundle."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.paths import ROOT

import compaction_store as cs

OTHER = ["the subject is not that of the newest event about it"]


def says(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"number {number}"}


def found(store: Face, name: str, **more: Any) -> list[str]:
    return [f.what for f in store.audit.verify(name, **more).findings]


def change(superuser: psycopg.Connection[Any], name: str, subject: str | None) -> None:
    superuser.execute(
        "UPDATE compaction_store.heads AS h SET subject = %s FROM compaction_store.threads AS t"
        " WHERE t.thread_uid = h.thread_uid AND t.thread_id = %s",
        (subject, name),
    )


@pytest.fixture
def filled(store: Face) -> Face:
    store.append("t", says(0))
    store.custody.set_subject("t", "person 7")
    store.custody.set_subject("t", "person 8")
    store.append("t", says(1))
    store.append("made", says(0), subject="person 7")
    return store


@pytest.mark.parametrize("subject", ["person 7", "person 9", None])
def test_a_subject_that_was_changed_without_an_event_is_found(
    filled: Face, superuser: psycopg.Connection[Any], subject: str | None
) -> None:
    assert found(filled, "t") == found(filled, "made") == []
    change(superuser, "t", subject)
    change(superuser, "made", subject)
    assert found(filled, "t") == OTHER
    # Without an event, nothing but the column has the subject.
    assert found(filled, "made") == found(filled, "t", level="structure") == []
    change(superuser, "t", "person 8")
    assert found(filled, "t") == []


def test_a_removed_subject_stays_removed(filled: Face, superuser: psycopg.Connection[Any]) -> None:
    filled.custody.set_subject("t", None)
    assert found(filled, "t") == []
    change(superuser, "t", "person 8")
    assert found(filled, "t") == OTHER


def test_forks_and_walks_from_a_kept_entry_find_nothing(filled: Face) -> None:
    filled.fork("t", "fork")
    filled.append("fork", says(2))
    assert found(filled, "fork") == []
    # The walk from here on passes the copy of an event, whose hash has the salt of another thread.
    _, first, *_ = filled.audit.export("fork")
    entry = bytes.fromhex(json.loads(first)["entry"])
    assert found(filled, "fork", since=(1, entry)) == []
    report = filled.audit.verify("fork")
    filled.custody.set_subject("fork", "person 9")
    assert found(filled, "fork", since=report) == found(filled, "fork") == []
    filled.custody.erase("t", reason="asked for")
    assert [f for each in filled.audit.verify() for f in each.findings] == []


def test_a_bundle_has_the_subject_of_its_newest_event(filled: Face, tmp_path: Path) -> None:
    lines = list(filled.audit.export("t"))
    manifest = json.loads(lines[0])
    assert manifest["subject"] == "person 8"
    for subject, expected in (("person 8", []), ("person 7", OTHER), (None, OTHER)):
        changed = [json.dumps(manifest | {"subject": subject}, separators=(",", ":")).encode() + b"\n", *lines[1:-1]]
        end = json.loads(lines[-1]) | {"sha256": sha256(b"".join(changed)).hexdigest()}
        changed.append(json.dumps(end, separators=(",", ":")).encode() + b"\n")
        assert [f.what for f in cs.verify_bundle(changed).findings] == expected
        file = tmp_path / "t.jsonl"
        file.write_bytes(b"".join(changed))
        offline = ROOT / "compaction_store" / "offline.py"
        checked = subprocess.run([sys.executable, offline, file], capture_output=True, text=True, check=False)
        assert (checked.returncode, "the newest event about it" in checked.stdout) == (len(expected), bool(expected))
    withheld = [
        json.dumps(line | {"salt": None, "body": None}, separators=(",", ":")).encode() + b"\n"
        if (line := json.loads(each)).get("kind") == "subject" else each
        for each in changed[:-1]
    ]  # fmt: skip
    end |= {"sha256": sha256(b"".join(withheld)).hexdigest()}
    assert cs.verify_bundle([*withheld, json.dumps(end, separators=(",", ":")).encode() + b"\n"]).findings == ()
