"""Exporting and importing threads and whole stores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import compaction_store as cs
from cli.program import SECRET, THREAD, Forks, Run
from compaction_store import migrate, offline


@pytest.fixture
def other(forks: Forks, empty_url: str, tmp_path: Path) -> Run:
    migrate.upgrade(empty_url)
    return Run(forks, tmp_path, empty_url)


def test_a_thread_goes_to_another_store_as_it_is(run: Run, other: Run, filled: cs.Store) -> None:
    file = run.folder / "t.jsonl"
    file.write_text(run("export", THREAD).stdout, encoding="utf-8")
    checked = subprocess.run([sys.executable, offline.__file__, str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    [done] = other.json("import", str(file))
    assert (done["thread_id"], done["added"], done["head"]) == (THREAD, 25, filled.thread(THREAD).head.hex())
    assert other("replay", THREAD).stdout == run("replay", THREAD).stdout
    assert other("compactions").stdout == run("compactions").stdout
    assert other("verify", "--all").stdout == run("verify", "--all").stdout
    assert "already imported: 25 messages, 28 entries" in other("import", str(file), "--table").stdout
    withheld = run("export", THREAD, "--no-bodies").stdout
    assert SECRET not in withheld
    (run.folder / "w.jsonl").write_text(withheld)
    assert "withheld" in other("import", str(run.folder / "w.jsonl"), code=2).stderr


@pytest.mark.usefixtures("filled")
def test_files_with_conversations_are_for_their_owner_alone(run: Run) -> None:
    """The permissions of a file that exists stay as they are."""
    mine = run.folder / "mine.html"
    mine.touch(0o640)
    run("export", "--all", "--to", str(run.folder / "store"))
    run("report", THREAD, "--to", str(run.folder / "report.html"))
    run("report", THREAD, "--to", str(mine))
    files = [*(run.folder / "store").iterdir(), run.folder / "report.html"]
    assert len(files) > 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert mine.stat().st_mode & 0o777 == 0o640


def test_a_whole_store_goes_by_a_folder_and_only_what_changed_is_written_again(
    run: Run, other: Run, url: str, filled: cs.Store
) -> None:
    folder = run.folder / "store"
    with cs.Store.open(url, tenant="second") as second:
        second.append(THREAD, {"role": "user", "content": "of the second tenant"})
        second.append("gone", {"role": "user", "content": "to be erased"})
        second.custody.erase("gone", reason="asked for")
    filled.append("t-2/../x", {"role": "user", "content": "a name that is no file's"})
    run("export", "--all-tenants", "--to", str(folder))
    files = sorted(folder.glob("*.jsonl"))
    assert len(files) == 4
    for file in files:
        os.utime(file, (1, 1))
    filled.append("t-2/../x", {"role": "user", "content": "more"})
    run("export", "--all-tenants", "--to", str(folder))
    assert sorted(folder.glob("*.jsonl")) == files
    assert sum(file.stat().st_mtime > 1 for file in files) == 1
    refused = other("import", str(folder), code=2)
    assert refused.stderr.count("give --tenant second") == 2
    assert "second" not in refused.stdout
    assert "--all-tenants" in other("import", str(folder), "--all-tenants", "--tenant", "second", code=2).stderr
    other("import", str(folder), "--tenant", "second", code=2)
    done = other.json("import", str(folder), "--all-tenants")
    assert sorted((d["tenant"], d["thread_id"]) for d in done)[:2] == [("default", THREAD), ("default", "t-2/../x")]
    for tenant in ("default", "second"):
        for arguments in (("threads",), ("verify", "--all")):
            here = run(*arguments, "--tenant", tenant).stdout
            # Only the time at which the thread was created differs.
            assert _undated(other(*arguments, "--tenant", tenant).stdout) == _undated(here)
    assert [d["added"] for d in other.json("import", str(folder), "--all-tenants")] == [0] * 4


def _undated(text: str) -> list[str]:
    return [part for part in text.split(",") if not part.startswith('"created_at"')]


def test_a_bundle_that_is_broken_is_refused_and_the_others_are_stored(run: Run, other: Run, filled: cs.Store) -> None:
    folder = run.folder / "store"
    filled.append("t-2", {"role": "user", "content": "hi"})
    run("export", "--all", "--to", str(folder))
    big, small = sorted(folder.glob("*.jsonl"), key=lambda file: -file.stat().st_size)
    text = big.read_text()
    big.write_text(text.replace("harbour", "harbor", 1))
    (folder / "note.txt").write_text("not a bundle")
    (folder / "empty.jsonl").touch()
    done = other("import", str(folder), code=2)
    assert '"thread_id":"t-2"' in done.stdout
    assert "of the bundle" in done.stderr
    assert SECRET not in done.stderr
    assert [t["thread_id"] for t in other.json("threads")] == ["t-2"]
    assert "tenant" in other("import", str(small), "--tenant", "stranger", code=2).stderr
    for nothing in ("missing", str(folder / "note.txt"), str(folder / "empty.jsonl")):
        other("import", nothing, code=2)
    other("import", str(folder / "note.txt"), "--format", "bundle", code=2)


def test_a_file_that_cannot_be_read_is_named_and_the_bundles_beside_it_are_stored(
    run: Run, other: Run, filled: cs.Store
) -> None:
    folder = run.folder / "store"
    run("export", "--all", "--to", str(folder))
    # Reading this file at its beginning fails, also for a superuser.
    (folder / "a.jsonl").symlink_to("/proc/self/mem")
    done = other("import", str(folder), code=2)
    assert "cannot read" in done.stderr
    assert "a.jsonl: Input/output error" in " ".join(done.stderr.split())
    assert "not a bundle" not in done.stderr
    assert [t["thread_id"] for t in other.json("threads")] == [THREAD]
    for options in ((), ("--format", "bundle"), ("--tenant", "default")):
        alone = other("import", str(folder / "a.jsonl"), *options, code=2)
        assert "Input/output error" in " ".join(alone.stderr.split())
    assert filled.thread(THREAD).last_seq == 25


def test_where_to_write_must_be_clear(run: Run, filled: cs.Store) -> None:
    run("export", code=2)
    run("export", THREAD, "--all", "--to", "x", code=2)
    run("export", "--all", code=2)
    assert "no such thread" in run("export", "nobody", code=1).stderr
    assert "cannot write" in run("export", "--all", "--to", "/proc/nowhere", code=2).stderr
    assert filled.thread(THREAD).last_seq == 25
