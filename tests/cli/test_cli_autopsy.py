"""The verb `autopsy`: what compactions in other programs' transcripts lost, and a report that says no word of them."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from cli.program import Run

ORDER = "Never touch the file migrations/0001.sql."


def session(folder: Path, *, compactions: int = 2) -> Path:
    """Writes a session of Claude Code in which each summary forgets nearly everything and invents a ticket."""
    own = uuid.UUID(int=7, version=4)
    lines: list[str] = []
    parent = None

    def add(**fields: Any) -> None:
        nonlocal parent
        identity = str(uuid.UUID(int=len(lines) + 1, version=4))
        known = {"uuid": identity, "parentUuid": parent, "sessionId": str(own), "isSidechain": False}
        known |= {"timestamp": f"2026-11-01T10:{len(lines) % 60:02d}:00.000Z", "version": "2.0.0"}
        lines.append(json.dumps(known | fields))
        parent = identity

    for turn in range(10 * compactions + 5):
        file, ticket = f"src/app/module_{turn % 4}.py", f"TICKET-{1000 + turn % 6}"
        rule = f" {ORDER}" if turn == 2 else ""
        add(type="user", message={"role": "user", "content": f"Look into {ticket}, it is about {file}.{rule}"})
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Read", "input": {"file_path": file}}
        add(type="assistant", message={"role": "assistant", "id": f"a{turn}", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": "marmalade = 1\n" * 40}
        add(type="user", message={"role": "user", "content": [result]})
        reply = [{"type": "text", "text": f"{ticket} is caused by {file}."}]
        add(type="assistant", message={"role": "assistant", "id": f"b{turn}", "content": reply})
        if turn % 10 == 9:
            add(type="system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 9000})
            text = "This session is being continued. Worked on TICKET-1001 and TICKET-9999."
            add(type="user", isCompactSummary=True, message={"role": "user", "content": text})
    path = folder / "projects" / f"{own}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.parent


def test_it_says_what_every_compaction_lost(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("autopsy", str(session(tmp_path)), "--json").stdout)
    assert (found["sessions"], len(found["with_compactions"])) == (1, 1)
    [one] = found["with_compactions"]
    assert one["compactions"] == 2
    assert one["messages_folded"] == [[1, 40], [1, 81]]
    failed = {kind: counts["failed"] for kind, counts in one["probes"].items()}
    by_type: dict[str, list[dict[str, Any]]] = {}
    for loss in found["losses"]:
        by_type.setdefault(loss["type"], []).append(loss)
    assert {kind: len(losses) for kind, losses in by_type.items()} == {k: n for k, n in failed.items() if n}
    assert {loss["text"] for loss in by_type["invented"]} == {"TICKET-9999"}
    assert {loss["text"] for loss in by_type["standing_order"]} == {ORDER}
    assert "TICKET-1000" in {loss["text"] for loss in by_type["needed_later"]}
    assert "TICKET-1001" not in {loss["text"] for loss in by_type["needed_later"] if loss["record"] == 1}
    assert one["tokens_repeated"] == sum(loss["tokens"] for loss in by_type["re_derivation"]) > 500


def test_a_terminal_gets_a_table_and_some_losses_of_each_type(run: Run, tmp_path: Path) -> None:
    shown = run("autopsy", str(session(tmp_path)), "--table").stdout
    assert "1 session, 1 of them with 2 compactions" in shown
    assert "record 1 has “TICKET-9999”, and no message has it" in shown
    assert f"the order “{ORDER}” of seq 9 is not in record 1" in shown
    assert "more: --json has all of them, and --out the first 1,000" in shown


def test_it_shows_each_span_the_growth_of_summaries_and_the_money(run: Run, tmp_path: Path) -> None:
    folder, prices, file = session(tmp_path), tmp_path / "prices.json", tmp_path / "report.html"
    price = {"input": 3, "output": 15_000, "cache_read": 0.3, "cache_write": 3.75}
    prices.write_text(json.dumps({"models": {"m": price}}), encoding="utf-8")
    money = ("--prices", str(prices), "--model", "m")
    [one] = json.loads(run("autopsy", str(folder), "--json", *money).stdout)["with_compactions"]
    assert len(one["sizes"]) == 2
    text = run("autopsy", str(folder), "--table", "--out", str(file), *money).stdout
    rows = [line.split()[-4:] for line in text.splitlines() if line.startswith("claude-code:") and "-" in line[50:]]
    for record, (span, sizes) in enumerate(zip(one["messages_folded"], one["sizes"], strict=True), 1):
        cells = [str(record), f"{span[0]}-{span[1]}", *(f"{size:,}" for size in sizes)]
        assert cells in rows
        assert "</td><td>".join(cells) in file.read_text(encoding="utf-8")
    assert "money in USD" in text
    assert "modelled" in text
    assert "lost money" in text
    assert '<p class="loss">recorded: ' in file.read_text(encoding="utf-8")
    assert "money in" not in run("autopsy", str(folder), "--table").stdout


def test_again_it_imports_nothing_and_says_the_same(run: Run, tmp_path: Path) -> None:
    folder = session(tmp_path)
    first, again = (run("autopsy", str(folder), "--json").stdout for _ in range(2))
    assert first == again
    assert json.loads(run("threads", "--tenant", "autopsy", "--json").stdout.splitlines()[0])["last_seq"] == 102
    assert run("threads", "--json").stdout == ""


def test_several_processes_find_the_same(run: Run, tmp_path: Path) -> None:
    folder = session(tmp_path)
    [whole] = folder.glob("*.jsonl")
    text = whole.read_text(encoding="utf-8")
    for number in (8, 9):
        other = str(uuid.UUID(int=number, version=4))
        (folder / f"{other}.jsonl").write_text(text.replace(whole.stem, other), encoding="utf-8")
    # A copy of a session under another name is the same session.
    (folder / "copy.jsonl").write_text(text, encoding="utf-8")
    (folder / "chat.jsonl").write_text('{"role": "user", "content": "Hello."}\n[1]\n', encoding="utf-8")
    one, two = (run("autopsy", str(folder), "--tenant", f"in-{n}", "--processes", str(n), "--json") for n in (1, 2))
    assert one.stdout == two.stdout
    assert one.stderr == two.stderr
    assert json.loads(one.stdout)["sessions"] == 4
    assert "1 line is left out" in one.stderr


@pytest.mark.parametrize("share", [True, False])
def test_the_report_to_share_has_no_word_of_the_transcript(run: Run, tmp_path: Path, share: bool) -> None:
    folder, file = session(tmp_path), tmp_path / "report.html"
    done = run("autopsy", str(folder), "--out", str(file), "--table", *(["--share"] if share else []))
    words = set(re.findall(r"[\w/-]{4,}", " ".join(_texts(folder))))
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text
    own = ["TICKET-9999", "migrations/0001", "marmalade", "TICKET-1000", "src/app/module_0"]
    assert set(own) <= words
    for said in (text, done.stdout):
        assert any(word in said for word in own) is not share
        if share:
            # Words that the report's own sentences have prove nothing.
            report = set(re.findall(r"[\w/-]{4,}", said)) & words
            assert report <= {"file", "session", "never", "from", "this", "This", "that", "about", "said"}
            assert str(uuid.UUID(int=7, version=4)) not in said


def _texts(folder: Path) -> list[str]:
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if key not in ("type", "role", "name"):
                    walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)
        elif isinstance(value, str):
            found.append(value)

    for path in folder.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            walk(json.loads(line).get("message"))
    return found


def test_a_hostile_transcript_stays_text(run: Run, tmp_path: Path) -> None:
    folder, file = session(tmp_path), tmp_path / "report.html"
    [path] = folder.glob("*.jsonl")
    hostile = path.read_text(encoding="utf-8").replace("TICKET-9999", "<img/src=x/onerror=alert(1)>_9x")
    path.write_text(hostile, encoding="utf-8")
    run("autopsy", str(folder), "--out", str(file))
    assert "<img" not in file.read_text(encoding="utf-8")


def test_what_cannot_be_read_is_named_in_one_line_and_the_rest_is_examined(run: Run, tmp_path: Path) -> None:
    folder = session(tmp_path)
    [whole] = folder.glob("*.jsonl")
    text = whole.read_text(encoding="utf-8")
    other = str(uuid.UUID(int=8, version=4))
    lines = text.replace(whole.stem, other).splitlines()
    lines[1], lines[5] = '{"broken', "[1, 2]"
    (folder / f"{other}.jsonl").write_text("\n".join(lines)[:-9], encoding="utf-8")
    header = {"timestamp": "2026-11-01T10:00:00Z", "type": "session_meta", "payload": {"id": "rollout-1", "cwd": "/a"}}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
    item = {"timestamp": "2026-11-01T10:00:01Z", "type": "response_item", "payload": said}
    deep = folder / "deeper" / "codex.jsonl"
    deep.parent.mkdir()
    deep.write_text(f"{json.dumps(header)}\n{json.dumps(item)}\n", encoding="utf-8")
    (folder / "empty.jsonl").touch()
    (folder / "blank.jsonl").write_text("\n\n", encoding="utf-8")
    (folder / "bytes.jsonl").write_bytes(bytes(range(256)) * 9)
    (folder / "nested.jsonl").write_text("[" * 100_000, encoding="utf-8")
    (folder / "link.jsonl").symlink_to(whole)
    (folder / "lost.jsonl").symlink_to(tmp_path / "nowhere")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.jsonl")

    # A file in which nothing is recognised is a finding.
    done = run("autopsy", str(folder), str(whole), "--json", code=1)
    found = json.loads(done.stdout)
    assert {one["thread_id"] for one in found["with_compactions"]} == {f"claude-code:{n}" for n in (whole.stem, other)}
    assert found["sessions"] == 3
    said_of = {
        name.split("/")[-1]: why for name, _, why in (n.partition(" is left out: ") for n in _notes(done.stderr))
    }
    assert {name: said_of.get(f"{name}.jsonl") for name in ("empty", "pipe", "lost", "blank", "bytes", "nested")} == {
        "empty": "the file is empty", "pipe": "this is not a regular file",
        "lost": "the file cannot be read: No such file or directory",
        **dict.fromkeys(("blank", "bytes", "nested"), "it has no line that is a JSON object"),
    }  # fmt: skip
    assert said_of["link.jsonl"].startswith("this is the same file as ")
    [skipped] = [note for note in _notes(done.stderr) if "lines are left out" in note]
    assert skipped.startswith(f"3 lines are left out of claude-code:{other}: line 2 of {other}.jsonl: it is not JSON")


def _notes(stderr: str) -> list[str]:
    return [line.removeprefix("compaction-store: ") for line in stderr.splitlines()]


def test_a_report_to_share_has_no_name_of_anything(run: Run, tmp_path: Path) -> None:
    """Neither of tools, models, projects and branches, nor titles, errors, or the text of an odd field."""
    folder = session(tmp_path / "zebra_project")
    [path] = folder.glob("*.jsonl")
    text = path.read_text(encoding="utf-8").replace('"Read"', '"zebra_tool"').replace("src/app", "zebra/path")
    odd = {"cwd": "/home/zebra", "gitBranch": "zebra-branch", "version": "zebra-1", "zebra_field": "zebra"}
    lines = []
    for line in text.splitlines():
        found = json.loads(line) | odd
        if found["type"] == "assistant":
            found["message"] |= {"model": "zebra-model", "usage": {"input_tokens": 5, "zebra_tokens": 7}}
        if found["type"] == "system":
            found["compactMetadata"] |= {"trigger": "zebra", "error": "zebra"}
        lines.append(json.dumps(found))
    lines.insert(0, json.dumps({"type": "summary", "summary": "zebra title", "leafUuid": "zebra"}))
    failed = {"type": "error", "error": {"type": "zebra_error", "message": "zebra"}}
    lines.append(json.dumps({**json.loads(lines[-1]), **odd, "isApiErrorMessage": True, "error": failed}))
    path.write_text("\n".join(lines), encoding="utf-8")
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"models": {"zebra-model": {"input": 3, "output": 15}}}), encoding="utf-8")
    file = tmp_path / "report.html"
    money = ("--prices", str(prices), "--model", "zebra-model")
    shared = run("autopsy", str(folder), "--share", "--out", str(file), "--table", *money)
    assert "session 1" in shared.stdout
    listed = run("autopsy", str(folder), "--share", "--json", *money).stdout
    for said in (shared.stdout, listed, file.read_text(encoding="utf-8")):
        assert "zebra" not in said.lower()
        assert path.stem not in said
    assert "zebra" in run("autopsy", str(folder), "--json").stdout


def test_misuse_is_refused(run: Run, tmp_path: Path) -> None:
    assert "there are no transcripts in ~/.claude/projects or ~/.codex/sessions" in " ".join(
        run("autopsy", code=2).stderr.split()
    )
    assert "does not exist" in " ".join(run("autopsy", str(tmp_path / "no"), code=2).stderr.split())
    assert "must be given together" in run("autopsy", str(tmp_path), "--model", "m", code=2).stderr
