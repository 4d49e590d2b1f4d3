"""`export --format markdown` writes transcripts for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import compaction_store as cs
from cli.program import SECRET, THREAD, Run


def test_a_transcript_has_every_message_and_a_block_for_each_compaction(run: Run, filled: cs.Store) -> None:
    filled.custody.hold(THREAD, reason="a claim", actor="legal")
    text = run("export", THREAD, "--format", "markdown").stdout
    messages, records = list(filled.replay(THREAD)), list(filled.compactions(THREAD))
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [f"## {message.seq}: {message.role}" for message in messages]
    blocks = [line for line in text.splitlines() if line.startswith("> **Compaction")]
    assert len(blocks) == len(records)
    for block, record in zip(blocks, records, strict=True):
        assert f"**Compaction {record.number}**: {record.kind}" in block
        assert f"of seqs {record.start_seq} to {record.end_seq}" in block
    assert "> Reason: a claim" in text
    assert "actor legal" in text
    fences = [token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    for message in messages:
        content = (message.payload or {}).get("content")
        assert content is None or any(str(content) in fence for fence in fences)
    assert "<details><summary>call: read_log" in text
    assert text.index(f"## {messages[-1].seq}: ") < text.index("Event at pos")


def test_a_folder_gets_a_private_file_for_each_thread(run: Run, filled: cs.Store, tmp_path: Path) -> None:
    filled.append("../x", {"role": "user", "content": "```\n# hi"})
    uid = filled.thread("../x").thread_uid
    filled.append("gone", {"role": "user", "content": SECRET})
    filled.custody.erase("gone", reason="asked")
    run("export", "--all", "--format", "markdown", "--to", "out")
    files = {file.name: file for file in (tmp_path / "out").iterdir()}
    assert len(files) == 3
    assert files[f"x.{uid}.md"].read_text().count("````") == 2
    assert all(file.stat().st_mode & 0o077 == 0 for file in files.values())
    [erased] = [file.read_text() for name, file in files.items() if name.startswith("erased.")]
    assert "*erased*" in erased
    assert SECRET not in erased


@pytest.mark.parametrize(
    "asked",
    [
        (THREAD, "--format", "markdown", "--no-bodies"),
        (THREAD, "--format", "markdown", "--checkpoints", "log"),
        ("--all", "--format", "markdown"),
        (THREAD, "--format", "html"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_what_does_not_go_together_is_refused(run: Run, asked: tuple[str, ...]) -> None:
    run("export", *asked, code=2)


def test_no_thread_is_no_success(run: Run, tmp_path: Path) -> None:
    run("export", "--all", "--format", "markdown", "--to", "out", code=1)
    assert not list(tmp_path.glob("out/*.md"))


def test_a_session_file_in_which_nothing_is_recognised_is_a_finding(run: Run, tmp_path: Path) -> None:
    whole = tmp_path / "00000000-0000-4000-8000-000000000001.jsonl"
    known = {"sessionId": whole.stem, "uuid": "1"}
    said = {"type": "user", "message": {"role": "user", "content": "hello"}}
    whole.write_text(json.dumps(known | said) + "\n" + json.dumps(known | {"type": "note", "text": "x"}) + "\n")
    odd = tmp_path / "00000000-0000-4000-8000-000000000002.jsonl"
    odd.write_text(json.dumps({"type": "zebra", "sessionId": odd.stem}) + "\n")
    done = run("import", str(tmp_path), "--json", code=1)
    found = {one["source_id"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert (found[whole.stem]["unknown"], found[whole.stem]["is_recognised"]) == ({"note": 1}, True)
    assert (found[odd.stem]["unknown"], found[odd.stem]["is_recognised"]) == ({"zebra": 1}, False)
    assert found[f"{odd.stem}/lines"]["messages"] == 1
    assert f"claude-code:{odd.stem}: no line of the file was recognised" in done.stderr
    assert f"claude-code:{whole.stem}: 1 line of the unknown type 'note'" in done.stderr
    run("import", str(whole))
    assert "no line of the file was recognised" in run("autopsy", str(tmp_path), code=1).stderr
    run("autopsy", str(whole))
