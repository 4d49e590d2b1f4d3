"""`verify` on bundles and on everything that is stored: one closing line, the signature, files and threads."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from support import cluster

import compaction_store as cs
from cli.program import THREAD, Run
from compaction_store import offline
from compaction_store.reporting import ReportDocument, envelope
from compaction_store.reporting.page import render


@pytest.fixture
def exported(run: Run, filled: cs.Store) -> tuple[str, Path]:
    """The public key, and a folder of two bundles with a checkpoint."""
    filled.append("t-2", {"role": "user", "content": "hi"})
    log, key = str(run.folder / "log.jsonl"), str(run.folder / "audit.key")
    public = run.json("checkpoint", log, "--key", key, "--new-key", "example.org/audit")[0]["public_key"]
    run("export", "--all", "--to", str(run.folder / "out"), "--checkpoints", log, "--public-key", public)
    return public, run.folder / "out"


def test_bundles_are_verified_several_at_once_with_the_signature_of_their_checkpoint(
    run: Run, exported: tuple[str, Path]
) -> None:
    public, folder = exported
    files = [str(file) for file in sorted(folder.glob("*.jsonl"))]
    told = run("verify", *files, "--public-key", public, "--table").stdout
    assert told.splitlines()[-1] == "2 bundles, 0 findings"
    assert told.count("example.org/audit/default signed pos") == 2
    reports = run.json("verify", *files, "--public-key", public)
    assert [report["file"] for report in reports] == files
    assert {report["thread_id"] for report in reports} == {THREAD, "t-2"}
    assert all(report["covered"] for report in reports)
    assert "bundle" not in run("verify", files[0], "--table").stdout.splitlines()[-1]
    refused = run("verify", *files, "--public-key", "ab" * 31 + "cd", "--table", code=1).stdout
    assert refused.splitlines()[-1] == "2 bundles, 2 findings"
    changed = Path(files[0]).read_bytes().replace(b'"role":"user"', b'"role":"User"', 1)
    Path(files[0]).write_bytes(changed)
    told = run("verify", *files, "--table", code=1).stdout
    assert "line " in told
    assert run("verify", "-", code=1, stdin=changed.decode()).stdout


def test_everything_that_is_stored_ends_with_one_line(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[object]
) -> None:
    filled.append("t-2", {"role": "user", "content": "hi"})
    assert run("verify", "--all", "--table").stdout.splitlines()[-1] == "2 threads, 0 findings"
    assert run("verify", THREAD, "t-2", "--table").stdout.splitlines()[-1] == "2 threads, 0 findings"
    assert "threads, " not in run("verify", THREAD, "--table").stdout
    everything = run("verify", "--all", "--level", "schema", "--table").stdout
    assert everything.splitlines()[-1] == "2 threads, 0 findings"
    superuser.execute("ALTER TABLE compaction_store.threads DISABLE TRIGGER USER")
    superuser.execute(
        "UPDATE compaction_store.threads SET thread_id = E'x: no findings\\nledger' WHERE thread_id = 't-2'"
    )
    told = run("verify", "--all", "--table", code=1).stdout
    # On a cluster, the new name leads nowhere, and the old one to a thread of another name.
    assert told.splitlines()[-1] == f"2 threads, {'3 findings' if cluster.given() else '1 finding'}"
    assert not any(line.startswith("ledger") for line in told.splitlines())
    first, second = [r for r in run.json("verify", "--all", code=1) if r["thread_id"] != "compaction-store:log"]
    assert first["thread_uid"] < second["thread_uid"]
    uids = [report["thread_uid"] for report in (first, second) if report["thread_id"] == THREAD]
    after = run("verify", "--all", "--after", THREAD, code=None).stdout
    assert (second["thread_uid"] in after) == (uids == [first["thread_uid"]])


def test_a_file_in_which_nothing_could_be_checked_is_said_to_be_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    told = run("verify", "empty.jsonl", "--table", code=1).stdout
    assert told.splitlines()[0] == "empty.jsonl: 0 entries, none checked: 1 finding"


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_verified(
    run: Run, exported: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = exported
    first, second = (str(file) for file in sorted(folder.glob("*.jsonl")))
    (run.folder / "folder.jsonl").mkdir()
    for missing in ("gone.jsonl", "folder.jsonl"):
        done = run("verify", first, missing, second, "--table", code=2)
        assert done.stdout.splitlines()[-1] == "2 bundles, 0 findings, 1 file not read"
        assert f"cannot read {missing}" in done.stderr
    assert [line["file"] for line in run.json("verify", first, "gone.jsonl", second, "--json", code=2)] == [
        first,
        second,
    ]
    assert offline.main([first, "gone.jsonl", second]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "2 bundles, 0 findings, 1 file not read"


def test_threads_and_files_are_not_mixed(run: Run, exported: tuple[str, Path]) -> None:
    public, folder = exported
    file = str(next(folder.iterdir()))
    assert "is not a file" in run("verify", file, THREAD, code=2).stderr
    assert "cannot read" in run("verify", "gone.jsonl", code=2).stderr
    assert "given for files" in run("verify", file, "--level", "schema", code=2).stderr
    log = str(run.folder / "log.jsonl")
    assert "given for files" in run("verify", file, "--checkpoints", log, "--public-key", public, code=2).stderr
    assert "small order" in run("verify", file, "--public-key", "00" * 32, code=2).stderr


@pytest.mark.usefixtures("filled")
def test_a_name_that_is_neither_a_thread_nor_a_file_is_said_to_be_neither(run: Run) -> None:
    told = run("verify", "nofile.html", code=1).stderr
    assert "no such thread" in told
    assert "no file of this name either" in told


@pytest.mark.usefixtures("filled")
def test_a_page_that_another_build_made_is_said_at_the_end_not_to_be_compared(run: Run) -> None:
    file = run.folder / "report.html"
    run("report", THREAD, "--to", str(file))
    assert run("verify", str(file), "--table").stdout.splitlines()[-1] == "1 report, 0 findings"
    data = json.loads(envelope.unpacked(envelope.carried_data(file.read_bytes()) or ""))
    page = render(ReportDocument.model_validate(data | {"build": "f" * 64}))
    file.write_bytes(envelope.ended(page.rsplit(b"\n", 2)[0].replace(b"<h1>Audit", b"<h1>An audit") + b"\n"))
    # A forger of a page can also name another build, so this is no success.
    told = run("verify", str(file), "--table", code=1).stdout.splitlines()[-1]
    run("verify", str(file), "--json", code=1)
    assert told == "1 report, 0 findings; not checked: whether the page shows what its bundles say"


def test_two_names_that_look_alike_are_told_apart(run: Run, store: cs.Store) -> None:
    names = ("t\u202egpj.exe", r"t\u202egpj.exe", "a\nb", r"a\nb", "a  b", "a b")
    for name in names:
        store.append(name, {"role": "user", "content": "hello"})
    listed = run("threads", "--table").stdout
    verified = run("verify", *names, "--table").stdout
    for told in (r"t\u202egpj.exe ", r"t\\u202egpj.exe ", r"a\nb ", r"a\\nb ", "a  b ", "a b "):
        assert f"\n{told}" in listed
        assert f"{told.strip()}: 1 entries" in verified
