"""The verbs that write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.chat_server import says
from support.messages_server import Handler, serving

import compaction_store as cs
from cli.program import SECRET, THREAD, Run
from compaction_store.models import Payload


def _said(store: cs.Store, thread: str) -> list[str]:
    return [(m.payload or {})["content"] for m in store.replay(thread)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"role":"user","content":"one"}', ["one"]),
        ('{\n  "role": "user",\n  "content": "one"\n}\n', ["one"]),
        ('[{"content":"one"},{"content":"two"}]', ["one", "two"]),
        ('{"content":"one"}\n\n{"content":"two"}\r\n', ["one", "two"]),
        ('\ufeff{"content":"größe 🔒"}', ["größe 🔒"]),
    ],
)
def test_messages_are_appended_as_an_object_a_list_or_lines(
    run: Run, store: cs.Store, given: str, said: list[str]
) -> None:
    written = run.json("append", "t", "--raw", stdin=given)
    assert [m["seq"] for m in written] == list(range(1, len(said) + 1))
    assert "content" not in written[0]
    assert _said(store, "t") == said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "at least one message"),
        ("[]", "at least one message"),
        ('{"content":"one"}\n{"content":\n', "line 2 must be JSON"),
        (b'{"content":"\xff"}', "not UTF-8"),
        ('{"content":"a","content":"b"}', "an object has the same name twice"),
        ('{"content":NaN}', "NaN"),
        ("[" * 100_000, "deep"),
        ('"text"', "must be a JSON object"),
        ('{"a":1}\n{"content":"abc"\n', "line 2 must be JSON: expecting ',' delimiter at column 17"),
        ("\0", "line 1 must be JSON"),
        ('{"content":"one', "unterminated string starting at column 12"),
        ('{"role":"user","content":"one"}\n' * 1001, "1,000"),
        ('[{"role":"user","content":"one"},{"role":"user"}]', "message 2, content: is missing"),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_appended(
    run: Run, store: cs.Store, given: str | bytes, told: str
) -> None:
    assert told in run("append", "t", stdin=given, code=2).stderr
    assert list(store.threads()) == []


def test_a_key_makes_a_repetition_harmless_and_a_seq_guards(run: Run, store: cs.Store, tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"role":"user","content":"one"}\n')
    for _ in range(2):
        [written] = run.json("append", "t", str(file), "--key", "k", "--meta", '{"source":"web"}')
        assert written["seq"] == 1
    assert store.message("t", 1).meta == {"source": "web"}
    assert (
        "the key was used" in run("append", "t", "--key", "k", stdin='{"role":"user","content":"other"}', code=1).stderr
    )
    assert "t" in run("append", "t", str(file), "--expected-seq", "7", code=1).stderr
    assert "cannot read" in run("append", "t", "missing.jsonl", code=2).stderr
    assert "must be a JSON object" in run("append", "t", str(file), "--meta", "[]", code=2).stderr
    assert run("append", "t", str(file), "--table").stdout == "appended seq 2: 4 tokens\n"
    assert store.thread("t").last_seq == 2


def test_an_append_says_if_it_is_not_durable(run: Run) -> None:
    assert [m["durable"] for m in run.json("append", "t", "--raw", stdin='[{"n":1},{"n":2}]')] == [True, True]
    assert [m["durable"] for m in run.json("append", "t", "--not-durable", "--raw", stdin='{"n":3}')] == [False]
    assert [m["durable"] for m in run.json("append", "t", "--not-durable", "--raw", "--each", stdin='{"n":4}')] == [
        False
    ]
    seen = run("append", "t", "--not-durable", "--raw", "--table", stdin='{"n":5}').stdout
    assert seen.endswith("tokens, not yet durable\n")


def test_each_line_may_be_appended_by_itself(run: Run, store: cs.Store) -> None:
    lines = "".join(f'{{"role":"user","content":"{i}"}}\n' for i in range(3))
    done = run("append", "t", "--each", stdin=f"{lines}broken\n", code=2)
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == [1, 2, 3]
    assert "line 4 must be JSON" in done.stderr
    assert _said(store, "t") == ["0", "1", "2"]
    run("append", "t", "--each", "--key", "k", stdin=lines, code=2)


def test_a_dry_run_shows_the_plan_and_writes_nothing_and_the_run_does_it(run: Run, filled: cs.Store) -> None:
    before = filled.thread(THREAD)
    what = ("compact", THREAD, "--strategy", "assistant-runs:tool_results=true,retain=2", "--actor", "cli")
    [plan] = run.json(*what, "--dry-run")
    assert filled.thread(THREAD) == before
    assert plan["dry_run"] is True
    assert plan["tokens_before"] == before.view_tokens
    applied = [a for a in plan["attempts"] if a["outcome"] == "applied"]
    table = run(*what, "--dry-run", "--table").stdout
    assert f"{plan['tokens_before']:,} tokens now, {plan['tokens_after']:,} then" in table
    [done] = run.json(*what)
    assert done["tokens"] == plan["tokens_after"] == filled.view(THREAD).tokens
    spans = [(r["start_seq"], r["end_seq"]) for r in done["records"] if r["outcome"] == "applied"]
    assert spans == [(a["start_seq"], a["end_seq"]) for a in applied]
    assert {r.actor for r in filled.compactions(THREAD, actor="cli")} == {"cli"}
    assert SECRET not in json.dumps([plan, done])


def test_a_compaction_with_a_budget_is_done_when_it_is_due_or_forced(run: Run, filled: cs.Store) -> None:
    big = ("compact", THREAD, "--window", "100000")
    [left] = run.json(*big)
    assert (left["reason"], left["records"]) == ("the view is within its budget", [])
    # The last attempt made no progress, so the thread is due again only when it has grown.
    filled.append(THREAD, {"role": "user", "content": "and then? " * 80})
    small = ("compact", "--due", "--window", "400", "--strategy", "ladder:keep_recent=2", "--summarizer", "none")
    [done] = run.json(*small)
    assert done["thread_id"] == THREAD
    assert done["tokens"] == filled.thread(THREAD).view_tokens
    assert done["tokens"] <= 400
    assert run.json(*small) == []
    [record] = run.json("compact", THREAD, "--window", "9000", "--force", "--dry-run", code=0)
    assert record["dry_run"] is True


@pytest.mark.usefixtures("filled")
def test_strategies_run_in_order_and_a_users_own_callback_by_its_name(run: Run) -> None:
    module = run.folder / "ours.py"
    module.write_text(
        "def first_two(ctx):\n    ctx.compact(14, 18, 'five in one')\n\n"
        "async def waits(ctx): ...\n\n"
        "def summarize(elements):\n    return f'{len(elements)} in one'\n\n"
        "def broken(elements):\n    raise ValueError(str(elements[0].message))\n"
    )
    [done] = run.json("compact", THREAD, "--strategy", "ours.first_two", "--dry-run")
    assert [a["callback"] for a in done["attempts"]] == ["ours.first_two"]
    two = ("--strategy", "clear-tool-results:keep=1", "--strategy", "assistant-runs:tool_results=true,retain=2")
    [done] = run.json("compact", THREAD, *two, "--summarizer", "ours.summarize", "--dry-run")
    assert {a["callback"].partition("(")[0] for a in done["attempts"]} == {"ClearToolResults", "AssistantRuns"}
    runs = ("--strategy", "assistant-runs:tool_results=true,retain=2")
    failed = run("compact", THREAD, *runs, "--summarizer", "ours.broken", "--table", code=1)
    assert SECRET not in failed.stdout + failed.stderr
    [saved] = run.json("compact", THREAD, *runs, "--summarizer", "ours.broken", "--summarizer", "state")
    assert any(r["outcome"] == "applied" for r in saved["records"])
    assert "AsyncStore" in run("compact", THREAD, "--strategy", "ours.waits", code=2).stderr


def test_a_model_fills_the_parts_of_a_state(run: Run, filled: cs.Store) -> None:
    def answer(handler: Handler, body: Payload) -> None:
        seq = json.loads(body["messages"][1]["content"])["messages"][0]["seq"]
        says(json.dumps({"facts": [{"text": "Pages were read.", "seqs": [seq]}]}))(handler, body)

    with serving() as server:
        server.does(answer)
        model = f"state:openai:model=m,base_url={server.url}/v1"
        strategy = ("--strategy", "assistant-runs:tool_results=true,retain=2")
        [done] = run.json("compact", THREAD, *strategy, "--summarizer", model)
        assert server.requests[0]["response_format"]["json_schema"]["name"] == "state"
    applied = [record for record in done["records"] if record["outcome"] == "applied"]
    assert {record["summarizer"] for record in applied} == {"StateSummary(OpenAISummarizer)"}
    parts = filled.compaction(THREAD, applied[0]["number"]).parts
    assert parts is not None
    assert "Pages were read." in {line.text for line in parts["facts"]}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--strategy", "magic"], "or package.module.name, not 'magic'"),
        (["--strategy", "ladder:magic=1"], "an option of ladder must be one of"),
        (["--strategy", "ladder:keep_recent"], "must be NAME=VALUE"),
        (["--strategy", "ladder:keep_recent=some"], "keep_recent must"),
        (["--strategy", "no.such.thing"], "cannot load"),
        (["--strategy", "assistant-runs", "--summarizer", "none"], "needs a summarizer"),
        (["--summarizer", "magic"], "must be state,"),
        (["--summarizer", "state:share=7"], "share must"),
        (["--summarizer", "anthropic"], "needs a model"),
        (["--summarizer", "anthropic:model=m"], "ANTHROPIC_API_KEY"),
        (["--summarizer", "state:anthropic:model=m"], "ANTHROPIC_API_KEY"),
        (["--summarizer", "state:openai"], "openai needs a model"),
        (["--window", "100", "--trigger", "much"], "must be a number of tokens or a fraction"),
        (["--window", "100", "--trigger", "0.2"], "target must"),
        (["--due"], "THREADS"),
    ],
)
def test_a_wrong_choice_is_said_to_be_one(run: Run, options: list[str], told: str) -> None:
    assert told in " ".join(run("compact", "t", *options, code=2).stderr.split())


def test_a_compaction_is_revoked(run: Run, filled: cs.Store) -> None:
    [done] = run.json("revoke", THREAD, "1", "--reason", "the page was lost", "--actor", "me")
    assert (done["kind"], done["revokes"], done["actor"]) == ("revocation", 1, "me")
    assert done["view_tokens"] == filled.view(THREAD).tokens
    assert (filled.compaction(THREAD, 1).status, filled.compaction(THREAD, 1).revoked_by) == ("revoked", done["number"])
    assert "compaction-store: " in run("revoke", THREAD, "1", code=1).stderr
    assert "is revoked by" in run("revoke", THREAD, "2", "--table").stdout


def test_messages_are_redacted_and_a_thread_erased_unless_it_is_held(run: Run, filled: cs.Store) -> None:
    run("hold", THREAD, "--reason", "a lawsuit", "--actor", "legal")
    refused = run("redact", THREAD, "3", "--reason", "asked for", "--yes", code=1)
    assert refused.stderr.startswith("compaction-store: ")
    run("release", THREAD, "--reason", "settled")
    assert "--yes" in run("redact", THREAD, "3", "--reason", "asked for", code=2).stderr
    [done] = run.json("redact", THREAD, "3", "5-6,7", "--reason", "asked for", "--legal-basis", "Art. 17", "--yes")
    assert done["seqs"] == [3, 5, 6, 7]
    assert 1 in done["records"]
    assert [m.redacted for m in filled.replay(THREAD, until=7)] == [False, False, True, False, True, True, True]
    again = run("redact", THREAD, "3", "--reason", "asked for", "--yes", "--table").stdout
    assert "already erased" in again
    assert "no seq 99" in run("redact", THREAD, "90-99", "--reason", "x", "--yes", code=1).stderr
    for wrong in ("x", "0", "5-3", "1-", ""):
        run("redact", THREAD, wrong, "--reason", "x", "--yes", code=2)
    run("retain", THREAD, "--until", "2099-01-01", "--reason", "tax law")
    run("erase", THREAD, "--reason", "the contract has ended", "--yes", code=1)
    erased = run("erase", THREAD, "--reason", "it has ended", "--yes", "--override", "the court says so", "--table")
    assert "erased 21 messages" in erased.stdout
    [stub] = run.json("threads")
    assert stub["thread_id"] == f"erased:{stub['thread_uid']}"
    assert f"the stub is {stub['thread_id']}" in erased.stdout
    assert run.json("verify", stub["thread_id"])[0]["findings"] == []
    assert "was erased" in run("append", stub["thread_id"], stdin='{"role":"user","content":"more"}', code=1).stderr
    assert "no such thread" in run("view", THREAD, code=1).stderr
    [anew] = run.json("append", THREAD, stdin='{"role":"user","content":"more"}')
    assert (anew["seq"], run.json("view", THREAD)[0]["pos"]) == (1, 1)
    assert {t["thread_id"] for t in run.json("threads")} == {THREAD, stub["thread_id"]}


def test_verify_finds_what_was_changed_behind_the_stores_back(run: Run, filled: cs.Store, superuser: object) -> None:
    filled.append("t-2", {"role": "user", "content": "hi"})
    every = sorted(run.json("verify", "--all"), key=lambda report: str(report["thread_id"]))
    assert [(r["thread_id"], r["findings"]) for r in every] == [(THREAD, []), ("t-2", [])]
    assert every[0]["head"] == filled.thread(THREAD).head.hex()
    execute = superuser.execute  # type: ignore[attr-defined]
    execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
    execute("UPDATE compaction_store.messages SET payload = '{}' WHERE seq = 5")
    [report] = run.json("verify", THREAD, code=1)
    assert [f["pos"] for f in report["findings"]] == [5]
    told = run("verify", "--all", "--table", code=1).stdout
    assert "1 finding" in told
    assert "t-2: 1 entries by content: no findings" in told
    assert run.json("verify", THREAD, "--level", "structure")[0]["findings"] == []
    assert "level must be one of" in run("verify", THREAD, "--level", "magic", code=2).stderr
    run("verify", code=2)
    run("verify", "nobody", code=1)


def test_a_message_that_no_api_takes_is_refused_with_the_option_that_stores_it(run: Run, store: cs.Store) -> None:
    given = '{"role": "user", "contents": "hi"}'
    done = run("append", "t", stdin=given, code=2)
    assert done.stderr == (
        "compaction-store: message 1, content: is missing; raw=True (--raw) stores the message as it is\n"
    )
    assert list(store.threads()) == []
    run("append", "t", "--raw", stdin=given)
    assert store.thread("t").last_seq == 1


def test_the_message_is_stored_as_it_was_sent(run: Run, store: cs.Store) -> None:
    sent: Payload = {"role": "user", "content": ["\x1b[31m", 1.5, None, {"ä": "\u2028"}]}
    run("append", "t", "--raw", stdin=json.dumps(sent))
    assert store.message("t", 1).payload == sent


def test_what_was_in_vain_exits_with_1_and_what_was_not_tried_with_0(run: Run, store: cs.Store) -> None:
    store.append("t", [{"role": role, "content": "the boat leaves at nine " * 9} for role in ("user", "assistant") * 4])
    (run.folder / "ours.py").write_text(
        "def longer(elements):\n    return 'and so it went on ' * 999\n\n"
        "def broken(elements):\n    raise ValueError(str(elements[0].message))\n"
    )
    [done] = run.json("compact", "t", "--summarizer", "ours.broken", code=1)
    assert [(r["error"], r["error_at"]) for r in done["records"]] == [("ValueError", "ours:5 in broken")]
    told = run("compact", "t", "--summarizer", "ours.broken", "--table", code=1)
    assert "ValueError, at ours:5 in broken" in told.stderr
    assert "the boat" not in told.stdout + told.stderr
    [done] = run.json("compact", "t", "--summarizer", "ours.longer", code=1)
    assert (done["reason"], {*done["errors"]}) == ("every attempt was rejected", {"NotSmaller"})
    [done] = run.json("compact", "t", "--summarizer", "ours.longer")
    assert (done["records"], {*done["errors"]}) == ([], {"NoProgress"})
    store.append("t", {"role": "user", "content": "and then?"})
    run("compact", "t")
    [done] = run.json("compact", "t")
    assert (done["reason"], done["records"]) == ("the callbacks found nothing to compact", [])


@pytest.mark.usefixtures("filled")
def test_a_module_that_fails_and_a_callback_that_ends_the_program_are_reported_in_a_line(run: Run) -> None:
    for name, text, told in (
        ("fails", "raise RuntimeError('the secret')", "fails.py:1"),
        ("syntax", "def f(:", "syntax.py:1"),
        ("leaves", "import sys; sys.exit('bye')", "leaves.py:1"),
    ):
        (run.folder / f"{name}.py").write_text(text + "\n")
        for option in ("--strategy", "--summarizer"):
            done = run("compact", THREAD, option, f"{name}.f", code=2)
            assert told in " ".join(done.stderr.split())
            assert "the secret" not in done.stderr
    (run.folder / "ends.py").write_text("import sys\n\ndef f(ctx):\n    sys.exit(3)\n")
    assert "ended the program" in run("compact", THREAD, "--strategy", "ends.f", code=1).stderr
    for option in ("--trigger", "--target"):
        assert "needs --window" in run("compact", THREAD, option, "0.4", code=2).stderr
