"""The requests of a coding agent: put together from the lines of its session, and compared with the receipts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import agent_sessions
import psycopg
import pytest
from agent_sessions import REPLIES, REQUESTS, SESSION
from imported import left_out, run_all, sound
from support.faces import Face
from support.superuser_edits import unlock
from web.test_pages import shown, text_of

import compaction_store as cs
from compaction_store.evaluation import read_thread
from compaction_store.evaluation.evaluator import lost_in
from compaction_store.importers import open_source
from compaction_store.models import ToLoad
from compaction_store.rendering import agent_requests

THREAD = f"claude-code:{SESSION}"
LINES = f"{THREAD}/lines"


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / f"{SESSION}.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return written(tmp_path, agent_sessions.lines())


def printed(url: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "compaction_store", *arguments, "--url", url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_each_reply_has_the_messages_of_its_request(store: Face, session: Path) -> None:
    main, _ = run_all(store, session)
    assert left_out(main)["api-request"] == 3
    assert left_out(main)["api-request/title"] == 1
    assert main.unknown == {}
    sound(store, THREAD, LINES)
    replies = {m.seq: m for m in store.replay(THREAD) if m.role == "assistant"}
    assert replies.keys() == REPLIES.keys()
    for seq, number in REPLIES.items():
        seen = store.seen_by(THREAD, seq)
        assert (seen.evidence, seen.where, seen.messages) == ("proved", None, REQUESTS[number])
        assert seen.receipt == replies[seq].meta["request"]
        assert seen.receipt["lines"] == LINES
        assert seen.as_dict()["messages"] == REQUESTS[number]
    # The view is the store's own, with the messages as they are in the lines.
    assert [m["role"] for m in store.seen_by(THREAD, 2).view.messages] == ["user"]


def test_a_message_of_a_person_has_no_request(store: Face, session: Path) -> None:
    run_all(store, session)
    seen = store.seen_by(THREAD, 7)
    assert (seen.evidence, seen.messages, seen.receipt) == ("reconstructed", None, None)


def test_without_the_lines_nothing_is_proved(store: Face, session: Path) -> None:
    run_all(store, session, lines=False)
    seen = store.seen_by(THREAD, 2)
    assert (seen.evidence, seen.messages, seen.where) == ("reconstructed", None, f"the thread {LINES} is missing")


def test_a_redacted_line_is_no_proof_and_the_message_is_named(store: Face, session: Path) -> None:
    run_all(store, session)
    note = next(line.seq for line in store.replay(LINES) if "output_config" in line.payload["text"])
    store.custody.redact(LINES, [note], reason="a secret")
    seen = store.seen_by(THREAD, 8)
    assert (seen.evidence, seen.where) == ("differs", "message 4 is missing")
    assert seen.messages == REQUESTS[1][:3]
    assert store.seen_by(THREAD, 2).evidence == "proved"


def test_a_fork_has_the_requests_of_its_replies(store: Face, session: Path) -> None:
    run_all(store, session)
    store.fork(THREAD, "copy")
    seen = store.seen_by("copy", 8)
    assert (seen.evidence, seen.messages) == ("proved", REQUESTS[1])


@pytest.mark.parametrize("given", [{"request": 1}, {"request": {"lines": "x"}}, {"request": {"format": "f"}}])
def test_a_request_in_an_applications_own_meta_is_no_receipt(store: Face, given: dict[str, Any]) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    store.append("t", {"role": "assistant", "content": "hello"}, meta=given)
    seen = store.seen_by("t", 2)
    assert (seen.evidence, seen.messages, seen.where) == ("reconstructed", None, None)


def test_a_receipt_of_a_format_that_is_not_known_differs(store: Face, session: Path) -> None:
    run_all(store, session)
    request = {"format": "new", "lines": LINES, "sha256": "0", "first": -1, "line": "x"}
    store.append("t", {"role": "user", "content": "hi"})
    store.append("t", {"role": "assistant", "content": "hello"}, meta={"request": request})
    seen = store.seen_by("t", 2)
    assert (seen.evidence, seen.messages) == ("differs", [])


def test_an_edited_line_is_no_proof(store: Face, session: Path, superuser: psycopg.Connection[Any]) -> None:
    run_all(store, session)
    assert store.seen_by(THREAD, 2).evidence == "proved"
    unlock(superuser)
    superuser.execute(
        "UPDATE compaction_store.messages AS m SET payload = replace(payload::text, 'are late', 'are paid')::json"
        " FROM compaction_store.threads AS t WHERE t.thread_uid = m.thread_uid AND t.thread_id = %s", [LINES],
    )  # fmt: skip
    superuser.commit()
    seen = store.seen_by(THREAD, 2)
    assert (seen.evidence, seen.where) == ("differs", "message 1 does not fit its hash")


def receipts(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    [main] = open_source(path, lines=False).threads()
    metas = [item.meta or {} for item in main.items if isinstance(item, ToLoad)]
    found = [meta["request"] for meta in metas if "request" in meta]
    return list(zip(found, (REQUESTS[number] for number in REPLIES.values()), strict=True))


def test_a_change_of_any_byte_of_a_line_that_has_the_request_is_no_proof(session: Path) -> None:
    """Every byte of every line of a request is changed: blobs, hashes, the shape, own lines, the request itself."""
    lines = [line.decode() for line in session.read_bytes().splitlines()]
    for receipt, wanted in {receipt["id"]: (receipt, wanted) for receipt, wanted in receipts(session)}.values():
        assert agent_requests.sent(receipt, _stored(lines)) == (wanted, None)
        tried = 0
        for number in _carrying(lines, receipt):
            line = lines[number]
            for at in range(len(line)):
                changed = [*lines]
                changed[number] = f"{line[:at]}{'y' if line[at] == 'x' else 'x'}{line[at + 1 :]}"
                assert agent_requests.sent(receipt, _stored(changed)).where is not None, (number, at)
                tried += 1
        assert tried > 900


def _stored(lines: list[str]) -> list[tuple[int, dict[str, Any]]]:
    return [(seq, {"type": "line", "text": text}) for seq, text in enumerate(lines, 1)]


def _carrying(lines: list[str], receipt: dict[str, Any]) -> list[int]:
    """Returns the indexes of the lines without which the request cannot be proved."""
    found = []
    for index in range(len(lines)):
        without = [*lines[:index], "", *lines[index + 1 :]]
        if agent_requests.sent(receipt, _stored(without)).where is not None:
            found.append(index)
    return found


def test_an_adopted_compaction_gives_the_view_of_the_next_request(store: Face, session: Path) -> None:
    """The view has the messages as they are in the lines: the summary, what was kept, and what followed."""
    lines = agent_sessions.lines()
    boundary = next(number for number, line in enumerate(lines) if line.get("subtype") == "compact_boundary")
    [kept] = [line["uuid"] for line in lines[:boundary] if line.get("message", {}).get("id") == "m2"]
    lines[boundary]["compactMetadata"] |= {"preservedMessages": {"uuids": [kept]}}
    written(session.parent, lines[:-1])
    run_all(store, session, adopt=True)
    said = [message["content"] for message in store.view(THREAD).messages]
    request = REQUESTS[2]
    assert said == [request[1]["content"], request[0]["content"], "And now?"]
    [observed, adopted] = store.compactions(THREAD)
    assert (observed.outcome, adopted.outcome, adopted.inputs) == ("observed", "applied", (observed.number,))
    sound(store, THREAD)
    # The file grows, and is imported again: nothing is adopted twice.
    written(session.parent, lines)
    run_all(store, session, adopt=True)
    assert len(list(store.compactions(THREAD))) == 2
    assert store.seen_by(THREAD, 11).evidence == "proved"
    second = {"type": "system", "subtype": "compact_boundary", "uuid": "second", "sessionId": SESSION}
    lines += [second, lines[boundary + 1] | {"uuid": "third"}]
    written(session.parent, lines)
    run_all(store, session, adopt=True)
    assert [(record.outcome, record.kind) for record in store.compactions(THREAD)][2:] == [
        ("observed", "summary"), ("applied", "adoption"),
    ]  # fmt: skip


def test_a_page_and_the_history_of_a_reply_have_its_request(store: Face, session: Path, url: str) -> None:
    run_all(store, session)
    page = text_of(shown(url, "/reply", id=THREAD, seq=8))
    assert "proved: the agent sent exactly these 4 messages" in page
    assert "message 1 user" in page
    assert "A-17 🙂" in page
    found = store.audit.explain(THREAD, 8, tools=agent_sessions.SHAPE["tools"], system="another")
    assert (found.same_tools, found.same_system) == (True, False)
    note = next(line.seq for line in store.replay(LINES) if "output_config" in line.payload["text"])
    store.custody.redact(LINES, note, reason="a secret")
    page = text_of(shown(url, "/reply", id=THREAD, seq=8))
    assert "differs: these are the 3 messages" in page
    assert "message 4 is missing" in page


def test_the_command_line_prints_the_request_of_a_reply(store: Face, session: Path, url: str) -> None:
    run_all(store, session)
    found = json.loads(printed(url, "view", THREAD, "--seen-by", "8", "--json"))
    assert (found["evidence"], found["messages"], found["thread_id"]) == ("proved", REQUESTS[1], THREAD)
    assert "where" not in found
    text = printed(url, "view", THREAD, "--seen-by", "8", "--table")
    assert text.startswith(f"the request for seq 8 of {THREAD}: proved")
    assert len(text.splitlines()) == 5
    assert "<system-reminder>Stop!" in printed(url, "view", THREAD, "--seen-by", "8", "--full", "--table")
    explained = " ".join(printed(url, "explain", THREAD, "8", "--table").split())
    assert "written from the request of the agent in line 13 of" in explained


def test_a_name_that_the_next_request_had_is_not_lost(store: Face, session: Path, url: str) -> None:
    """The summary has no name of the file, but the program read it again. A name that a person repeats is lost."""
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(agent_sessions.lines()):
        line["timestamp"] = f"2026-05-04T09:{number:02d}:00.000Z"
        lines.append(line)
    first = next(line for line in lines if line["type"] == "user")
    first["message"]["content"] = "See src/shop/orders.py and src/shop/billing.py about TICKET-4711."
    reminder = agent_sessions.text("user", "<system-reminder>src/shop/orders.py: total()</system-reminder>")
    blob = {"type": "api-request-blob", "hash": agent_sessions.hashed(reminder), "message": reminder}
    last = next(number for number, line in enumerate(lines) if line.get("id") == "r3")
    again = {"type": "user", "sessionId": SESSION, "uuid": "again"}
    asked = "Change src/shop/orders.py and src/shop/billing.py now."
    lines[last]["tail"].append(blob["hash"])
    lines.insert(last, blob | {"sessionId": SESSION})
    lines.append(again | {"message": {"role": "user", "content": asked}, "timestamp": "2026-05-04T10:00:00.000Z"})
    written(session.parent, lines)
    run_all(store, session)
    assert store.seen_by(THREAD, 11).evidence == "proved"
    with cs.Store.open(url) as reader:
        lost = {probe.text for probe in lost_in(read_thread(reader, THREAD)) if probe.type == "needed_later"}
    assert lost == {"src/shop/billing.py"}
    found = json.loads(printed(url, "autopsy", str(session), "--json"))
    assert found["sessions"] == 1
    assert {loss["text"] for loss in found["losses"] if loss["type"] == "needed_later"} == lost
    assert {
        loss["text"] for loss in map(json.loads, printed(url, "explain", THREAD, "--lost", "--text").splitlines())
    } >= lost


def test_a_request_is_found_where_a_rewritten_file_has_its_lines(store: Face, session: Path) -> None:
    """The seqs in a receipt only save reading: here they are those of the lines in a file that had fewer lines."""
    lines = [json.dumps(line, ensure_ascii=False) for line in agent_sessions.lines()]
    for receipt, wanted in receipts(session):
        stored = [{"type": "line", "text": text} for text in ["{}", "{}", *lines]]
        name = f"moved-{receipt['line']}-{len(wanted)}"
        if next(store.threads(prefix=f"{name}/lines"), None) is None:
            store.load.messages(f"{name}/lines", stored, raw=True)
        store.append(name, {"role": "user", "content": "hi"})
        meta = {"request": receipt | {"lines": f"{name}/lines"}}
        [reply] = store.append(name, {"role": "assistant", "content": "hello"}, meta=meta)
        seen = store.seen_by(name, reply.seq)
        assert (seen.evidence, seen.messages) == ("proved", wanted)
