"""First use of the program: advice that can be followed, and answers that fit the question."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compaction_store as cs
from cli.program import SECRET, THREAD, Run, command, environment
from compaction_store.cli import operate as docs
from compaction_store.cli.program import PANELS, VERBS
from compaction_store.errors import MissingExtra, SummaryRefused
from compaction_store.summarizers import FallbackSummarizer, StateSummary

ROOT = Path(__file__).parent.parent.parent
LONG_NAMES = {"actor": "the worker of the night shift", "model": "claude-of-a-long-name-5-20260101"}


def refuses(_elements: Any) -> str:
    error = SummaryRefused("the model refused")
    error.attempted = cs.Summary("", model="claude-x", usage={"input_tokens": 70, "output_tokens": 9})
    raise error


refuses.name = "anthropic"  # type: ignore[attr-defined]


@pytest.fixture
def covered(store: cs.Store) -> cs.Store:
    """Makes a record whose first summarizer refused and was replaced, and one of a failed attempt."""
    talk = [
        {"role": "user", "content": "The boat leaves at nine. " * 20},
        {"role": "assistant", "content": "So. " * 90},
    ]
    store.append(THREAD, talk * 4)
    store.compact(THREAD, lambda ctx: ctx.compact(1, 4, FallbackSummarizer(refuses, StateSummary())), actor="anna")
    store.compact(THREAD, lambda ctx: ctx.compact(5, 6, refuses), actor="anna")
    return store


@pytest.mark.usefixtures("covered")
def test_a_refusal_that_was_covered_shows_wherever_one_looks(run: Run) -> None:
    shown = run("show", THREAD, "1", "--table").stdout
    assert "anthropic, claude-x: SummaryRefused" in shown
    assert re.search(r"summarizer +StateSummary", shown)
    listed = run("compactions", THREAD, "--table").stdout
    assert "SummaryRefused (covered)" in listed
    [record, failed] = run.json("compactions", THREAD)
    assert record["failed_before"] == [{"type": "SummaryRefused", "summarizer": "anthropic", "model": "claude-x"}]
    assert (record["summarizer"], failed["summarizer"], failed["model"]) == (
        "StateSummary",
        "anthropic",
        "claude-x",
    )
    assert [r["number"] for r in run.json("compactions", "--outcome", "failed", "--model", "claude-x")] == [2]


@pytest.mark.usefixtures("covered")
def test_stats_say_what_summarizers_cost(run: Run) -> None:
    for arguments in (("stats",), ("stats", THREAD)):
        [told] = run.json(*arguments)
        costs = {one["summarizer"]: one for one in told["costs"]}
        assert costs["anthropic"] | {"week": ""} == {
            "week": "", "summarizer": "anthropic", "model": "claude-x", "actor": "anna", "calls": 2, "failed": 2,
            "tokens_in": 140, "tokens_out": 18,
        }  # fmt: skip
        assert (costs["StateSummary"]["calls"], costs["StateSummary"]["failed"]) == (1, 0)
        assert re.fullmatch(r"\d{4}-W\d\d", costs["anthropic"]["week"])
    assert "Calls of summarizers" in run("stats", "--table").stdout


def test_stats_say_which_costs_are_not_on_record(run: Run, store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(5)])
    store.compact("t", lambda ctx: ctx.compact(1, 2, cs.Summary("short", summarizer="mine", usage={"input_tokens": 9})))
    store.compact("t", lambda ctx: ctx.compact(3, 4, "its own words"))
    store.custody.redact("t", 1, reason="asked for")
    assert run.json("stats", "t")[0]["not_counted"] == {
        "attempts_erased": 1, "attempts_without_summarizer": 1, "calls_without_tokens": 0,
    }  # fmt: skip
    for arguments in (("stats", "t"), ("stats",)):
        told = run(*arguments, "--table").stdout
        assert "not counted: the cost of 1 attempt, which was erased with the record" in told


def test_records_fit_a_terminal_of_eighty_columns_and_say_why_they_failed(run: Run, store: cs.Store) -> None:
    store.append("a thread of some length", [{"role": "user", "content": "the boat leaves at nine " * 9}] * 5)
    summary = cs.Summary("They spoke.", model=LONG_NAMES["model"])
    store.compact("a thread of some length", lambda ctx: ctx.compact(1, 2, summary), actor=LONG_NAMES["actor"])
    store.compact("a thread of some length", lambda ctx: ctx.compact(1, 3, summary), actor=LONG_NAMES["actor"])
    store.compact("a thread of some length", lambda ctx: ctx.compact(4, 4, ""), actor=LONG_NAMES["actor"])
    for thread in ((), ("a thread of some length",)):
        told = run.on_terminal("compactions", *thread, columns=80)
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in told.splitlines()) <= 80
        flat = " ".join(told.split())
        for part in (*LONG_NAMES.values(), "EmptySummary", "superseded by 2", "seqs 1-3", "<lambda>"):
            assert part in flat, part
    wide = run("compactions", "--table").stdout
    assert " error" in wide.splitlines()[0]
    assert "EmptySummary" in wide


@pytest.mark.parametrize("verb", [("show", THREAD, "1"), ("compactions", THREAD), ("threads",), ("events", THREAD)])
def test_no_line_in_a_pipe_is_filled_with_spaces(run: Run, store: cs.Store, verb: tuple[str, ...]) -> None:
    store.append(THREAD, [{"role": "user", "content": "the boat leaves at nine " * 9}] * 3)
    summary = cs.Summary("They spoke.", model="m", prompt="Write notes on what was said. " * 60)
    store.compact(THREAD, lambda ctx: ctx.compact(1, 2, summary))
    store.custody.hold(THREAD, reason="a long reason for a claim " * 40)
    for line in run(*verb, "--table").stdout.splitlines():
        assert line == line.rstrip()
        assert len(line) <= 330


@pytest.mark.usefixtures("filled")
def test_text_and_table_contradict_each_other(run: Run) -> None:
    for verb in (("compactions",), ("explain", THREAD, "3")):
        assert "--text" in run(*verb, "--text", "--table", code=2).stderr
        assert SECRET in run(*verb, "--text").stdout


def test_a_wrong_call_is_reported_in_one_line(run: Run) -> None:
    wrong: list[tuple[str, ...]] = [
        ("compactions", "--outcome", "bad"), ("compctions",), ("view",), ("threads", "--limit", "0"),
        ("show", "t", "x"), ("--tenant", "a"), ("redact", "t", "7"), ("compact",), ("append", "t", "--nope"),
        ("docs", "nothing"),
    ]  # fmt: skip
    for arguments in wrong:
        done = run(*arguments, code=2)
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("compaction-store: ")
        assert done.stderr.rstrip().endswith("--help")
        assert "Value error" not in done.stderr
    assert "Did you mean 'compactions'" in run("compctions", code=2).stderr


def test_the_help_is_grouped_and_names_every_verb_once(run: Run) -> None:
    told = run("--help").stdout
    for panel, verbs in PANELS.items():
        section = told.split(f"\n{panel}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == [verb.name for verb in verbs]
    assert len({verb.name for verb in VERBS}) == len(VERBS)


def test_what_help_texts_refer_to_is_installed_and_printed(run: Run) -> None:
    texts = [run(verb.name, "--help").stdout for verb in VERBS]
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "compaction_store" / "cli").glob("*.py"))
    pages = set(re.findall(r"compaction-store docs ([a-z/-]+[a-z])", " ".join(" ".join(texts).split()) + source))
    assert {"erasure", "threats", "how-to/citus", "embedded"} <= pages
    for page in pages:
        assert run("docs", page).stdout.startswith("# ")
    listed = run("docs").stdout
    assert set(docs.pages()) == {line.split("  ")[0].strip() for line in listed.splitlines()}
    assert run("docs", "docs/erasure.md").stdout == run("docs", "erasure").stdout
    assert not re.search(r"(?<!compaction-store )docs/[a-z-]+\.md", " ".join(texts))


def test_a_missing_extra_is_installed_from_where_the_package_came(tmp_path: Path) -> None:
    told = str(MissingExtra("it", "audit"))
    assert re.search(r"pip install '(/.*)\[audit\]'$", told), told
    site = tmp_path / "compaction_store-0.1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: compaction-store\nVersion: 0.1.0\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom compaction_store import errors\n"
    code += "print(errors.install('cli', 'audit'))"

    def advice() -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        return done.stdout.strip()

    assert advice() == "pip install 'compaction-store[cli,audit]'"
    (site / "direct_url.json").write_text(json.dumps({"url": "file:///opt/a%20wheel.whl", "archive_info": {}}))
    assert advice() == "pip install '/opt/a wheel.whl[cli,audit]'"


@pytest.mark.usefixtures("filled")
def test_a_picture_is_drawn_although_nobody_reads_the_table(run: Run, tmp_path: Path) -> None:
    program = subprocess.Popen(
        command("stats", THREAD, "--svg", "t.svg", "--table"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(tmp_path, run.url), cwd=tmp_path,
    )  # fmt: skip
    assert program.stdout is not None
    program.stdout.close()
    program.wait(timeout=120)
    assert program.stderr is not None
    program.stderr.close()
    assert (tmp_path / "t.svg").read_text(encoding="utf-8").startswith("<svg")


def test_one_is_not_several(run: Run, store: cs.Store) -> None:
    store.append("t", {"role": "user", "content": "hello"})
    told = run("stats", "--table").stdout
    assert told.startswith("1 thread, 1 message, ")
    assert "erased 1 message, " in run("redact", "t", "1", "--reason", "asked for", "--yes", "--table").stdout


def test_the_tenant_is_named_where_a_thread_is_not_there_and_may_come_from_the_environment(
    run: Run, url: str, store: cs.Store
) -> None:
    with cs.Store.open(url, tenant="shop") as shop:
        shop.append("t", {"role": "user", "content": "hello"})
    assert "no such thread (thread 't') of tenant 'default'" in run("view", "t", code=1).stderr
    assert run("view", "t", COMPACTION_STORE_TENANT="shop").stdout
    assert run.json("tenants") == [{"tenant": "shop"}]
    store.append("t", {"role": "user", "content": "hello"})
    assert run("tenants", "--table").stdout.split() == [
        "tenant",
        *run("tenants", "--table").stdout.split()[1:2],
        "default",
        "shop",
    ]


def test_the_url_is_printed(run: Run) -> None:
    assert run("url").stdout == f"{run.url}\n"
    assert run("url", "--wait", stdin=b"").stdout == f"{run.url}\n"


def test_an_exported_thread_is_found_by_its_name(run: Run, url: str, store: cs.Store) -> None:
    for thread in ("orders/2026 #7", "ÄÖ", "gone"):
        store.append(thread, {"role": "user", "content": "hello"})
    with cs.Store.open(url, tenant="shop") as shop:
        shop.append("orders/2026 #7", {"role": "user", "content": "hello"})
    folder = run.folder / "out"
    run("export", "--all-tenants", "--to", str(folder))
    with (folder / "index.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    listed = {(row["tenant"], row["thread"]): row["file"] for row in rows}
    for row in rows:
        bundle = (folder / row["file"]).read_bytes()
        assert (row["sha256"], row["bytes"]) == (hashlib.sha256(bundle).hexdigest(), str(len(bundle)))
        assert (row["messages"], row["compactions"], row["entries"]) == ("1", "0", "1")
        assert f'"head":"{row["head"]}"'.encode() in bundle
        assert f'"thread_uid":"{row["thread_uid"]}"'.encode() in bundle
    assert set(listed) == {
        ("default", "orders/2026 #7"),
        ("default", "gone"),
        ("default", "ÄÖ"),
        ("shop", "orders/2026 #7"),
    }
    assert listed["default", "orders/2026 #7"].startswith("orders-2026-7.")
    assert {file.name for file in folder.glob("*.jsonl")} == set(listed.values())
    store.custody.erase("gone", reason="asked for")
    run("export", "--all", "--to", str(folder))
    left = [file.name for file in folder.iterdir()]
    assert not [name for name in left if name.startswith("gone")]
    assert "gone" not in (folder / "index.csv").read_text(encoding="utf-8")
    assert len([name for name in left if name.startswith("erased.")]) == 1


def test_a_worker_serves_several_tenants_in_turn(run: Run, url: str) -> None:
    talk = [{"role": "user", "content": "Where is it? " * 9}, {"role": "assistant", "content": "In Lyon. " * 30}] * 6
    for tenant in ("a", "b", "c"):
        with cs.Store.open(url, tenant=tenant) as opened:
            for thread in ("t-1", "t-2"):
                opened.append(thread, talk)
    what = ("worker", "--once", "--window", "600", "--parallel", "1", "--strategy", "sliding-window:retain=2")
    done = run.json(*what, "--tenant", "a", "--tenant", "b")
    assert sorted((d["tenant"], d["thread_id"]) for d in done) == [(t, f"t-{i}") for t in "ab" for i in (1, 2)]
    assert [d["tenant"] for d in done] == ["a", "b", "a", "b"]
    assert {d["tenant"] for d in run.json(*what, "--all-tenants")} == {"c"}
    assert "1 failed summary replaced by another summarizer" not in run(*what).stderr


def test_a_worker_says_when_it_covered_for_a_summarizer_that_failed(run: Run, store: cs.Store) -> None:
    (run.folder / "house.py").write_text(
        "from compaction_store.errors import SummaryRefused\n\ndef refuses(elements):\n    raise SummaryRefused('no')\n"
    )
    talk = [{"role": "user", "content": "Where is it? " * 9}, {"role": "assistant", "content": "In Lyon. " * 30}] * 6
    store.append("t", talk)
    what = ("worker", "--once", "--window", "600", "--strategy", "sliding-window:retain=2", "--table")
    done = run(*what, "--summarizer", "house.refuses", "--summarizer", "state")
    assert "instead of house.refuses: SummaryRefused" in done.stdout
    assert "replaced by another summarizer" in done.stderr


def test_events_tell_an_erased_message_from_an_erased_thread(run: Run, filled: cs.Store) -> None:
    filled.custody.redact(THREAD, [1, 2, 4], reason="asked for", actor="dpo")
    stub = filled.custody.erase(THREAD, reason="the contract has ended", actor="dpo").thread_id
    told = run("events", stub, "--table").stdout
    assert re.search(r"redaction +messages 1-2, 4 and record 1 ", told)
    assert re.search(r"redaction +the whole thread: messages 3, 5-25", told)


def test_an_erasure_says_first_what_goes_with_it(run: Run, filled: cs.Store) -> None:
    [would] = run.json("redact", THREAD, "1-3", "--dry-run")
    assert (would["dry_run"], would["seqs"], would["records"]) == (True, [1, 2, 3], [1])
    told = run("redact", THREAD, "1-3", "--dry-run", "--table").stdout
    assert "would erase 3 messages and 1 record (dry run" in told
    assert "seqs 1-3" in told
    assert "Erase 3 messages and 1 record of thread" in run("redact", THREAD, "1-3", "--reason", "x", code=2).stderr
    [would] = run.json("erase", THREAD, "--dry-run")
    assert (len(would["seqs"]), would["records"]) == (25, [1, 2, 3])
    assert "25 messages and 3 records permanently?" in run("erase", THREAD, "--reason", "x", code=2).stderr
    assert list(filled.audit.events(THREAD)) == []


@pytest.mark.usefixtures("filled")
def test_a_text_is_searched_for(run: Run) -> None:
    found = run.json("search", "HARBOUR  master")
    assert {(f["thread_id"], f["kind"]) for f in found} == {(THREAD, "message")}
    assert len(found) == 8
    assert all(f["excerpt"] is None for f in found)
    assert {f["kind"] for f in run.json("search", SECRET, "--thread", THREAD)} == {"message", "compaction"}
    assert "harbour master" in run("search", "harbour", "--text", "--table").stdout
    assert run("search", "nothing of the kind", "--table").stdout == "no matches in tenant 'default'\n"
    assert "text must be" in run("search", "", code=2).stderr


def test_calls_are_shown_as_calls(run: Run, store: cs.Store) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"p": 0}'}}
    store.append(THREAD, [
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "the page"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u1", "name": "find", "input": {"q": "tide"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u1", "content": "at nine"}]},
        {"type": "function_call", "call_id": "f1", "name": "list", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "f1", "output": "a, b"},
    ])  # fmt: skip
    for verb in ("view", "replay"):
        told = run(verb, THREAD, "--full", "--table").stdout
        for text in ('call: read({"p": 0})', "the page", 'call: find({"q": "tide"})', "result: at nine",
                     "call: list({})", "result: a, b"):  # fmt: skip
            assert text in told, text
        assert 'call: read({"p": 0})' in run(verb, THREAD, "--table").stdout


def test_show_prints_no_more_of_the_originals_than_can_be_read(run: Run, store: cs.Store) -> None:
    talk = [{"role": ("assistant", "user")[i % 2], "content": f"part {i} " * 300} for i in range(40)]
    store.append(THREAD, talk)
    store.compact(THREAD, lambda ctx: ctx.compact(1, 38, "They spoke."))
    short = run("show", THREAD, "1", "--table").stdout
    assert "18 more; --full shows them" in short
    assert len(short) < 60_000
    assert " ".join(run("show", THREAD, "1", "--table", "--full").stdout.split()).count("part 20") == 300


def test_show_has_what_the_summarizer_was_given_where_earlier_records_stood_there(run: Run, store: cs.Store) -> None:
    store.append(THREAD, [{"role": ("user", "assistant")[i % 2], "content": f"part {i} " * 50} for i in range(12)])
    store.compact(THREAD, lambda ctx: ctx.compact(2, 5, "They spoke of parts."))
    store.compact(THREAD, lambda ctx: ctx.compact(1, 6, "They met and spoke."))
    [first] = run.json("show", THREAD, "1")
    assert "made_from" not in first["compaction"]
    [second] = run.json("show", THREAD, "2")
    made_from = second["compaction"]["made_from"]
    assert [(e["start_seq"], e["end_seq"], e["compaction"]) for e in made_from] == [
        (1, 1, None),
        (2, 5, 1),
        (6, 6, None),
    ]
    assert "They spoke of parts." in json.dumps(made_from[1]["messages"])
    assert [m["seq"] for m in second["originals"]] == [1, 2, 3, 4, 5, 6]
    for columns in ("70", "150"):
        told = run("show", THREAD, "2", "--table", COLUMNS=columns).stdout
        assert "input of the summarizer" in told
        assert "2-5 compaction 1" in told
    assert "input of the summarizer" not in run("show", THREAD, "1", "--table").stdout
