"""The verbs that read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compaction_store as cs
from cli.program import SECRET, THREAD, Run
from compaction_store.models.state import State, StateLine


def test_threads_are_listed_by_name_with_where_they_stand(run: Run, filled: cs.Store) -> None:
    filled.append("t-0", {"role": "user", "content": "hi"})
    filled.set_metadata("t-0", {"title": "tides"})
    first, second = run.json("threads")
    stand = filled.thread(THREAD)
    assert (first["thread_id"], second["thread_id"]) == ("t-0", THREAD)
    assert second["view_tokens"] == stand.view_tokens
    assert second["head"] == stand.head.hex()
    assert "metadata" not in first
    assert [t["thread_id"] for t in run.json("threads", "--after", "t-0")] == [THREAD]
    [only] = run.json("threads", "--limit", "1", "--metadata")
    assert only["metadata"] == {"title": "tides"}
    table = run("threads", "--table").stdout
    assert "messages" in table.splitlines()[0]
    assert f"{THREAD}  " in table
    assert run("threads", "--tenant", "other").stdout == ""
    assert run("threads", "--tenant", "other", "--table").stdout == "no threads of tenant 'other'\n"


def test_a_view_is_shown_now_at_a_pos_after_a_record_and_as_a_reply_saw_it(run: Run, filled: cs.Store) -> None:
    [now] = run.json("view", THREAD)
    assert now["tokens"] == filled.view(THREAD).tokens
    assert [e["messages"] for e in now["elements"]] == [list(e.messages) for e in filled.view(THREAD).elements]
    assert {e["kind"] for e in now["elements"]} == {None, "summary"}
    [early] = run.json("view", THREAD, "--at", "6")
    assert (early["pos"], len(early["elements"])) == (6, 6)
    [after] = run.json("view", THREAD, "--at", "compaction:1")
    assert after["pos"] == filled.compaction(THREAD, 1).pos
    [seen] = run.json("view", THREAD, "--seen-by", "12")
    assert (seen["pos"], seen["evidence"]) == (11, "proved")
    moment = filled.message(THREAD, 3).created_at.isoformat()
    assert run.json("view", THREAD, "--at", moment)[0]["pos"] >= 3
    assert run.json("view", THREAD, "--for", "openai") == [dict(filled.view(THREAD).for_openai())]
    assert run.json("view", THREAD, "--for", "anthropic")[0]["messages"]
    table = run("view", THREAD, "--table").stdout.splitlines()
    assert table[0] == f"{THREAD} at pos {now['pos']}: {now['tokens']:,} tokens"
    assert any(line.split()[:3] == ["2-6", "summary", "1"] for line in table)
    assert f"The tide, {SECRET}." in run("view", THREAD, "--full", "--table").stdout


def test_what_is_no_point_in_time_is_said_so(run: Run, filled: cs.Store) -> None:
    for at in ("soon", "compaction:x", "2026-13-01"):
        assert "must be a time" in run("view", THREAD, "--at", at, code=2).stderr
    assert "pos" in run("view", THREAD, "--at", "99999", code=1).stderr
    assert "compaction 77" in run("view", THREAD, "--at", "compaction:77", code=1).stderr
    assert "no entry up to that time" in run("view", THREAD, "--at", "2w", code=1).stderr
    run("view", THREAD, "--at", "3", "--seen-by", "3", code=2)
    assert filled.thread(THREAD).last_seq == 25


def test_replay_is_byte_for_byte_what_is_stored(run: Run, store: cs.Store) -> None:
    texts = [
        '{"role":"user","content":"größe 会話 🔒 \\u0000 \\ud83d"}',
        '{"b":1.0,"a":[1e-7,-0.0],"content":"x\\u009b"}',
    ]
    for text in texts:
        store.append("t", json.loads(text), raw=True)
    stored = [m.text for m in store.replay("t")]
    assert run("replay", "t", "--payloads").stdout.splitlines() == stored
    lines = run("replay", "t").stdout.splitlines()
    assert all(line.endswith(f',"payload":{text}}}') for line, text in zip(lines, stored, strict=True))
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def test_parts_of_a_replay_can_be_asked_for(run: Run, filled: cs.Store) -> None:
    def seqs(*options: str) -> list[int]:
        return [m["seq"] for m in run.json("replay", THREAD, *options)]

    assert seqs("--after", "20") == [21, 22, 23, 24, 25]
    assert seqs("--after", "3", "--until", "5") == [4, 5]
    assert seqs("--last", "2") == [24, 25]
    assert run("replay", THREAD, "--last", "2", "--after", "3", code=2).stderr.startswith("compaction-store: last must")
    table = run("replay", THREAD, "--last", "1", "--table").stdout
    assert "and now?" in table
    assert "and now?" in run("replay", THREAD, "--last", "1", "--table", "--full").stdout
    filled.custody.redact(THREAD, 25, reason="asked for")
    assert run("replay", THREAD, "--last", "1", "--payloads").stdout == "null\n"
    assert "(erased)" in run("replay", THREAD, "--last", "1", "--table").stdout


def test_compaction_records_are_found_by_every_filter(run: Run, filled: cs.Store) -> None:
    filled.revoke(THREAD, 2, actor="somebody")
    run_id = str(filled.compaction(THREAD, 1).run_id)

    def numbers(*options: str) -> list[int]:
        return [r["number"] for r in run.json("compactions", *options)]

    every = [1, 2, 3, 4]
    assert numbers() == numbers(THREAD) == every
    assert numbers("--newest-first", "--limit", "2") == [4, 3]
    assert numbers(THREAD, "--covering", "3") == [1]
    assert numbers("--kind", "revocation") == [4]
    assert numbers("--outcome", "rejected") == [3]
    assert numbers("--actor", "nightly") == [1, 2]
    assert numbers("--callback", "too-long") == [3]
    assert numbers("--model", "none") == []
    assert numbers("--run", run_id) == [1, 2]
    assert numbers("--since", "1h") == every
    assert numbers("--until", "2020-01-01") == []
    assert numbers("--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02") == []
    why = (filled.compaction(THREAD, 3).error or {})["text"]
    assert why in " ".join(run("compactions", "--outcome", "rejected", "--table").stdout.split())
    table = run("compactions", "--table", "--kind", "summary").stdout
    assert "revoked by 4" in table
    assert run("compactions", "--actor", "nobody", "--table").stdout == "no records found in tenant 'default'\n"


def test_a_record_is_shown_beside_its_originals(run: Run, filled: cs.Store) -> None:
    [shown] = run.json("show", THREAD, "1")
    assert shown["compaction"]["body"]["summary_text"] == f"The tide, {SECRET}."
    assert [m["seq"] for m in shown["originals"]] == [2, 3, 4, 5, 6]
    assert [m["payload"] for m in shown["originals"]] == [m.payload for m in filled.replay(THREAD, after=1, until=6)]
    for columns in ("60", "140"):
        text = run("show", THREAD, "1", "--table", COLUMNS=columns).stdout
        assert "compaction 1 of thread t-1: seqs 2-6" in text
        assert "replacement" in text
        assert "nightly" in text
    rejected = run("show", THREAD, "3", "--table").stdout
    assert "NotSmaller" in rejected
    assert "compaction 9" in run("show", THREAD, "9", code=1).stderr


def test_the_parts_of_a_summary_are_data(run: Run, store: cs.Store) -> None:
    state = State({"task": [StateLine(f"Mend {SECRET}", (1,))], "todos": [StateLine("test it", (2, 3))]})
    store.append("t", [{"role": "user", "content": "It is long and says nothing. " * 60}] * 5)
    made = cs.Summary(state.text, coverage=state.coverage)
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 4, made)).records
    parts = {"task": [{"text": f"Mend {SECRET}", "seqs": [1]}], "todos": [{"text": "test it", "seqs": [2, 3]}]}
    assert record.as_dict()["parts"] == parts
    assert run.json("show", "t", "1")[0]["compaction"]["parts"] == parts
    assert run.json("compactions", "t", "--text")[0]["parts"] == parts
    assert run.json("explain", "t", "2", "--text")[0]["records"][0]["parts"] == parts
    assert run.json("tree", "t", "1", "--text")[0]["records"][0]["parts"] == parts
    assert store.audit.explain("t", 2).records[0].parts == state
    for verb in ("compactions", "explain"):
        words = [verb, "t", *(["2"] if verb == "explain" else [])]
        assert SECRET not in run(*words, "--json").stdout
        assert '"parts"' not in run(*words, "--json").stdout
    assert "1 task, 1 todos" in run("show", "t", "1", "--table").stdout
    assert "in todos of record 1" in run("explain", "t", "2", "--table").stdout
    assert "of record 1" not in run("explain", "t", "4", "--table").stdout


def test_a_message_is_explained(run: Run, filled: cs.Store) -> None:
    [told] = run.json("explain", THREAD, "3")
    assert told["message"]["seq"] == 3
    assert [r["number"] for r in told["records"]] == [1]
    assert (told["element"]["seq"], told["element"]["kind"]) == (2, "summary")
    assert SECRET not in json.dumps(told)
    assert SECRET in json.dumps(run.json("explain", THREAD, "3", "--text"))
    assert "summary 1, for seqs 2-6" in run("explain", THREAD, "3", "--table").stdout
    assert "the message itself" in run("explain", THREAD, "25", "--table").stdout
    filled.custody.redact(THREAD, 25, reason="asked for", actor="dpo")
    [erased] = run.json("explain", THREAD, "25")
    assert erased["redaction"]["actor"] == "dpo"
    assert "by dpo" in run("explain", THREAD, "25", "--table").stdout


def test_events_are_listed(run: Run, filled: cs.Store) -> None:
    assert run("events", THREAD, "--table").stdout == f"no events of thread {THREAD!r} in tenant 'default'\n"
    filled.custody.hold(THREAD, reason="a lawsuit", actor="legal")
    filled.custody.release(THREAD, reason="settled", actor="legal")
    held, released = run.json("events", THREAD)
    assert (held["kind"], held["body"]["reason"], released["kind"]) == ("hold", "a lawsuit", "release")
    assert [e["kind"] for e in run.json("events", THREAD, "--after", str(held["pos"]))] == ["release"]
    assert "a lawsuit" in run("events", THREAD, "--table").stdout


def test_the_course_of_a_thread_ends_at_its_view_and_falls_at_its_compactions(
    run: Run, filled: cs.Store, tmp_path: Path
) -> None:
    filled.revoke(THREAD, 1)
    filled.custody.redact(THREAD, 15, reason="asked for")
    filled.append(THREAD, {"role": "user", "content": "and then?"})
    [figures] = run.json("stats", THREAD)
    course: list[tuple[int, int]] = [tuple(point) for point in figures["course"]]
    by_pos = {pos: filled.view(THREAD, at=pos).tokens for pos, _ in course}
    assert dict(course) == by_pos
    assert course[-1] == (filled.thread(THREAD).last_pos, filled.thread(THREAD).view_tokens)
    groups: list[dict[str, Any]] = figures["groups"]
    assert {g["callback"]: g["rejected"] for g in groups}["too-long"] == 1
    picture = tmp_path / "t.svg"
    assert f"written to {picture}" in run("stats", THREAD, "--svg", str(picture)).stderr
    assert picture.read_text().startswith("<svg ")
    assert "█" in run("stats", THREAD, "--table").stdout
    [total] = run.json("stats")
    assert (total["threads"], total["messages"]) == (1, 26)
    assert "1 thread, 26 messages" in run("stats", "--table").stdout
    assert "cannot write" in run("stats", THREAD, "--svg", str(tmp_path / "no" / "t.svg"), code=2).stderr
    run("stats", "--svg", str(picture), code=2)


def test_how_a_summary_was_made_is_shown_with_its_record(run: Run, store: cs.Store) -> None:
    def house(_elements: Any) -> cs.Summary:
        settings = {"temperature": 0.2, "system": SECRET}
        return cs.Summary("They talked.", model="m-1", settings=settings, usage={"input_tokens": 9}, duration=1.25)

    store.append("t", [{"role": "user", "content": "About the move. " * 20} for _ in range(6)])
    store.compact("t", lambda ctx: ctx.compact(1, 4, house))
    [listed] = run.json("compactions")
    made = (listed["summarizer"].split(".")[-1], listed["settings"], listed["usage"], listed["duration"])
    assert made == ("house", {"temperature": 0.2}, {"input_tokens": 9}, 1.25)
    [shown] = run.json("show", "t", "1")
    assert shown["compaction"]["settings"] == {"temperature": 0.2, "system": SECRET}
    lines = {line.split()[0]: line for line in run("show", "t", "1", "--table").stdout.splitlines() if line.strip()}
    assert lines["summarizer"].endswith(".house")
    assert '{"temperature":0.2,' in lines["settings"]
    assert lines["usage"].endswith('{"input_tokens":9}')
    assert lines["duration"].endswith("1.25 s")


def test_explain_says_from_which_request_a_reply_was_written(run: Run, store: cs.Store, tmp_path: Path) -> None:
    tools, prompt = [{"name": "find_order", "input_schema": {}}], f"Be brief. {SECRET}\n"
    store.append("t", {"role": "user", "content": "Where is order 4711?"})
    for system in (prompt, [{"type": "text", "text": prompt}]):
        request = store.view("t").for_anthropic(tools=tools, system=system)
        store.append("t", {"role": "assistant", "content": "In Lisbon."}, view=request)
    for name, text in (("tools", json.dumps(tools, indent=1)), ("system", prompt + "\n"), ("none", "{}")):
        (tmp_path / name).write_text(text)
    (tmp_path / "blocks").write_text(json.dumps([{"type": "text", "text": prompt}]))
    given = ("--tools", str(tmp_path / "tools"), "--system", str(tmp_path / "system"))
    [plain], [judged], [blocks] = (
        run.json("explain", "t", "2"), run.json("explain", "t", "2", *given),
        run.json("explain", "t", "3", "--system", str(tmp_path / "blocks")),
    )  # fmt: skip
    receipt = store.seen_by("t", 2).receipt
    assert plain["receipt"] == receipt
    assert receipt is not None
    assert (plain["same_tools"], plain["same_system"]) == (None, None)
    assert (judged["same_tools"], judged["same_system"]) == (True, True)
    assert blocks["same_system"] is True
    table = run("explain", "t", "2", "--table", *given[:3], str(tmp_path / "tools")).stdout
    assert "the view at pos 1, rendered as anthropic/1" in table
    assert f"sha256 {receipt['tools']} (those of {tmp_path / 'tools'})" in " ".join(table.split())
    assert f"sha256 {receipt['system']} (not those of {tmp_path / 'tools'})" in " ".join(table.split())
    assert "written from" not in run("explain", "t", "1", "--table").stdout
    assert "no hash in a receipt" in run("explain", "t", "1", "--table", *given).stdout
    assert "must have a JSON list" in run("explain", "t", "2", "--tools", str(tmp_path / "none"), code=2).stderr
    assert "cannot read" in run("explain", "t", "2", "--system", str(tmp_path / "nothing"), code=2).stderr
    assert SECRET not in table + json.dumps(judged)
