"""A tenant is removed on the command line, and the statement is checked without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

import compaction_store as cs
from cli.program import SECRET, Run

WHY = ("--reason", "contract 9 has ended", "--legal-basis", "Art. 28 GDPR", "--actor", "ops")


@pytest.fixture
def key(run: Run, tmp_path: Path) -> tuple[str, str]:
    """The file of the signing key, and the public key."""
    file = str(tmp_path / "audit.key")
    made = run.json("checkpoint", str(tmp_path / "log.jsonl"), "--key", file, "--new-key", "example.org/audit")
    return file, made[0]["public_key"]


def test_a_tenant_is_removed_and_the_statement_is_verified(
    run: Run, filled: cs.Store, key: tuple[str, str], tmp_path: Path
) -> None:
    file, public = key
    statement, remove = str(tmp_path / "default.txt"), ("remove", "--key", file, *WHY)
    would = run("remove", "--key", file, "--dry-run", "--table").stdout
    assert would == "tenant default: would erase 1 thread with 25 messages and 3 records (dry run: nothing is erased)\n"
    assert run.json(*remove, "--dry-run")[0]["threads"] == 1
    # Without a terminal, nobody can confirm.
    assert run(*remove, code=None).returncode != 0
    assert not any(thread.erased_pos for thread in filled.threads())
    said = run(*remove, "--to", statement, "--yes", "--table").stdout
    assert said.startswith("tenant default: erased 1 thread with 25 messages and 3 records at 20")
    assert [bool(thread.erased_pos) for thread in filled.threads()] == [True]
    assert SECRET not in run("search", SECRET).stdout
    assert "exists" in run(*remove, "--to", statement, "--yes", code=2).stderr

    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    checked = ("verify", statement, "--public-key", public)
    assert "3 records at 20" in run(*checked, "--table", COMPACTION_STORE_URL=nowhere).stdout
    [found] = run.json(*checked)
    removal = found["removal"]
    assert (removal["tenant"], removal["reason"], removal["actor"]) == ("default", WHY[1], "ops")
    assert run.json(*remove, "--yes")[0]["heads"] == removal["heads"]
    assert run(*remove, "--yes", "--table").stdout.startswith("example.org/audit/default\nremoval\n{")
    assert "is required" in run("verify", statement, code=2).stderr
    assert "no known key signed" in run("verify", statement, "--public-key", "ab" * 32, "--table", code=1).stdout
    Path(statement).write_text(Path(statement).read_text(encoding="utf-8").replace("ops", "eve"), encoding="utf-8")
    [changed] = run.json(*checked, code=1)
    assert (changed["removal"], changed["findings"]) == (None, ["no known key signed the note"])


@pytest.mark.usefixtures("filled")
def test_a_held_thread_is_kept_with_all_others(run: Run, filled: cs.Store, key: tuple[str, str]) -> None:
    filled.append("t-2", {"role": "user", "content": "hello"})
    filled.custody.hold("t-2", reason="claim 7")
    remove = ("remove", "--key", key[0], *WHY)
    for more in ("--yes", "--dry-run"):
        assert "1 of the 2 threads must be kept (1 held)" in run(*remove, more, code=1).stderr
    assert not any(thread.erased_pos for thread in filled.threads())
    assert "is required" in run("remove", "--key", key[0], "--yes", code=2).stderr
    assert "cannot read" in run("remove", "--key", "missing.key", *WHY, "--yes", code=2).stderr
