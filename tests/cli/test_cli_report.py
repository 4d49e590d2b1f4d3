"""`report` writes one file, and `verify` checks it, alone and beside bundles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import compaction_store as cs
from cli.program import THREAD, Run


def test_a_report_is_written_and_verified_with_its_signature(run: Run, filled: cs.Store) -> None:
    filled.append("t-2", {"role": "user", "content": "hi"})
    log, key, file = (str(run.folder / name) for name in ("log.jsonl", "audit.key", "out.html"))
    public = run.json("checkpoint", log, "--key", key, "--new-key", "example.org/audit")[0]["public_key"]
    signed = ("--checkpoints", log, "--public-key", public)
    told = run("report", THREAD, "t-2", "--to", file, *signed).stderr
    assert "2 threads, no findings; SHA-256 " in told
    shown = Path(file).read_text(encoding="utf-8")
    assert told.split()[-1] in shown.splitlines()[-1]
    assert "example.org/audit" in shown
    assert "signed up to pos" in shown
    said = run("verify", file, "--public-key", public, "--table").stdout
    assert said.splitlines()[-1] == "1 report, 0 findings"
    assert said.count("example.org/audit/default signed pos") == 2
    refused = run("verify", file, "--public-key", "ab" * 31 + "cd", "--table", code=1).stdout
    assert refused.splitlines()[-1] == "1 report, 2 findings"
    run("export", THREAD, "--to", str(run.folder / "bundles"))
    [bundle] = (run.folder / "bundles").glob("*.jsonl")
    assert run("verify", str(bundle), file, "--table").stdout.splitlines()[-1] == "2 files, 0 findings"
    found = run.json("verify", file)
    assert [each.get("thread_id") for each in found] == [THREAD, "t-2", None]
    assert found[-1] == {"file": file, "report": True, "findings": [], "notes": []}
    Path(file).write_text(shown.replace("example.org", "example.com"), encoding="utf-8")
    assert "its hash does not match" in run("verify", file, "--table", code=1).stdout


@pytest.mark.usefixtures("filled")
def test_a_report_goes_to_standard_output_as_json_too(run: Run) -> None:
    written = run("report", THREAD, "--json", "--to", "-").stdout
    assert json.loads(written)["report"]["threads"]
    assert run("verify", "-", stdin=written).stdout
    assert run("report", THREAD, "--to", "-").stdout.startswith("<!doctype html>")


@pytest.mark.usefixtures("filled")
def test_a_report_of_nothing_is_refused_and_one_of_a_period_is_not(run: Run) -> None:
    assert "give thread names, or --since" in run("report", code=2).stderr
    assert "no such thread" in run("report", "nobody", "--to", "-", code=1).stderr
    assert "cannot write" in run("report", THREAD, "--to", str(run.folder / "no" / "x.html"), code=2).stderr
    assert "1 thread, no findings" in run("report", "--since", "7d", "--to", str(run.folder / "r.html")).stderr
    assert "0 threads, no findings" in run("report", "--since", "0m", "--to", str(run.folder / "r.html")).stderr
