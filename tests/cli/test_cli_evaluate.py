"""The verb `evaluate`: figures of recorded and of other compactions, limits for CI, and a report of one file."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.messages_server import Behaviour, fails, serving
from support.reading_model import reads

import compaction_store as cs
from cli.program import SECRET, THREAD, Run, command, environment

TRY = ("--strategy", "assistant-runs:retain=6,tool_results=true", "--window", "900")


def figures(run: Run, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run("evaluate", *arguments, "--json", code=code)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("filled")
def test_recorded_and_other_compactions_are_compared(run: Run) -> None:
    found = figures(run, *TRY)
    assert found["threads"] == 1
    recorded, tried = found["policies"]
    assert recorded["policy"] == "recorded"
    assert recorded["records"] == {"applied": 2, "rejected": 1}
    assert tried["policy"] == TRY[1]
    assert tried["records"]["applied"] > 1
    assert tried["calls"] == recorded["calls"] == 12
    assert tried["tokens_per_call"] < recorded["tokens_per_call"]
    shown = run("evaluate", *TRY, "--table").stdout
    assert "tokens a call" in shown
    assert "lost in 100 calls" in shown
    assert {one["minus"] for one in found["differences"]} == {"recorded"}
    assert re.search(r"[+-]\d+\.\d \(-?\d+\.\d to -?\d+\.\d\)", shown)
    assert "assistant-runs:retain=6" in shown
    assert "All replies are the recorded replies" in shown
    assert SECRET not in shown


def test_explain_shows_the_losses_that_evaluate_counts(run: Run, store: cs.Store) -> None:
    texts = [f"Never deploy part {n}. Job JOB-{7000 + n} is stuck." for n in range(30)]
    store.append("lossy", [{"role": "user", "content": text} for text in [*texts, "Are you there?"]])
    store.compact("lossy", lambda ctx: ctx.compact(1, 30, "Notes: JOB-7000 is stuck, and so is JOB-9999."))
    store.append("lossy", [{"role": "user", "content": f"What about JOB-{7000 + n}?"} for n in range(30)])
    [recorded] = figures(run, "lossy")["policies"]
    lost = [json.loads(text) for text in run("explain", "lossy", "--lost", "--text").stdout.splitlines()]
    for kind, failed in (("needed_later", 29), ("standing_order", 30), ("invented", 1)):
        rate = recorded["probes"][kind]
        assert rate["asked"] - rate["kept"] == failed
        assert sum(one["type"] == kind for one in lost) == failed
    assert {one["text"] for one in lost if one["type"] == "invented"} == {"JOB-9999"}
    of_one = [json.loads(text) for text in run("explain", "lossy", "2", "--lost", "--json").stdout.splitlines()]
    assert sorted((one["type"], one["place"]["seq"]) for one in of_one) == [("needed_later", 2), ("standing_order", 2)]
    shown = run("explain", "lossy", "--lost", "--table").stdout
    assert "standing_order" in shown
    assert "JOB-" not in shown + run("explain", "lossy", "--lost", "--json").stdout
    store.append("kept", {"role": "user", "content": "hi"})
    assert "nothing was lost" in run("explain", "kept", "--lost", "--table").stdout
    run("explain", "kept", code=2)
    run("explain", "kept", "1", "--lost", "--tools", "x.json", code=2)


@pytest.mark.usefixtures("filled")
def test_several_summarizers_and_windows_are_each_tried(run: Run, store: cs.Store) -> None:
    store.append("t-2", {"role": "user", "content": "hi"})
    found = figures(
        run,
        "--strategy",
        "ladder",
        "--summarizer",
        "none",
        "--summarizer",
        "state",
        "--window",
        "900",
        "--window",
        "1200",
    )
    names = [policy["policy"] for policy in found["policies"]]
    assert names == [
        "recorded", "ladder · none · 900", "ladder · none · 1,200", "ladder · state · 900",
        "ladder · state · 1,200",
    ]  # fmt: skip
    assert found["threads"] == 2
    assert figures(run, "t-2")["threads"] == 1
    assert figures(run, "--sample", "1", "--seed", "3") == figures(run, "--sample", "1", "--seed", "3")


@pytest.mark.usefixtures("filled")
def test_limits_decide_the_exit_code(run: Run) -> None:
    done = run("evaluate", "--fail-over", "re_derivation=0", "--fail-under", "artifact=1", "--json", code=None)
    rates = json.loads(done.stdout)["policies"][0]["probes"]
    kind, rate = next(iter(rates.items()))
    over = f"{kind}={max(0.0, 1 - rate['share'] - 0.01):.3f}"
    if rate["share"] < 1:
        failed = run("evaluate", "--fail-over", over, "--json", code=1)
        assert f"recorded: the failed share of {kind} is" in failed.stderr
    run("evaluate", "--fail-under", f"{kind}=0", "--json", code=0)
    for wrong in ("tea=0.5", "invented=2", "invented", "invented=x"):
        assert "must be TYPE=SHARE" in " ".join(run("evaluate", "--fail-over", wrong, code=2).stderr.split())


@pytest.mark.usefixtures("filled")
def test_the_report_is_one_file_without_a_word_of_a_message(run: Run, tmp_path: Path) -> None:
    file, prices = tmp_path / "report.html", tmp_path / "prices.json"
    prices.write_text(json.dumps({"models": {"m": {"input": 3, "output": 15, "cache_read": 0.3}}}), encoding="utf-8")
    run("evaluate", *TRY, "--prices", str(prices), "--model", "m", "--out", str(file))
    text = file.read_text(encoding="utf-8")
    assert SECRET not in text
    assert "harbour" not in text
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=", text)
    assert "default-src 'none'" in text
    assert "<h2>Needed later</h2>" in text or "<h2>Re derivation</h2>" in text
    assert "lost in 100 calls" in text
    assert "<h2>Money in USD</h2>" in text


@pytest.mark.usefixtures("filled")
def test_a_strategy_with_a_hostile_name_stays_text(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    (tmp_path / "mine.py").write_text("def keep(ctx): ...\n", encoding="utf-8")
    done = run("evaluate", "--strategy", "<script>alert(1)</script>", "--window", "900", "--out", str(file), code=2)
    assert "--strategy" in done.stderr
    assert not file.exists()


def test_misuse_is_refused(run: Run, tmp_path: Path) -> None:
    for arguments, text in (
        (("--strategy", "ladder"), "is required with --strategy"),
        (("--model", "m"), "must be given together"),
        (("t", "--sample", "2"), "must not be given together with names of threads"),
        (("--prices", str(tmp_path / "none.json"), "--model", "m"), "must be a file that can be read"),
        (("--out", str(tmp_path / "no" / "file.html")), "cannot write"),
    ):
        assert text in " ".join(run("evaluate", *arguments, code=2).stderr.split()), arguments
    assert "no such thread" in run("evaluate", "nobody", code=1).stderr


@pytest.mark.usefixtures("filled")
def test_stats_show_the_money_of_each_record(run: Run, tmp_path: Path, store: cs.Store) -> None:
    file = tmp_path / "prices.json"
    price = {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
    file.write_text(json.dumps({"currency": "EUR", "models": {"m": price}}), encoding="utf-8")
    store.append(THREAD, [{"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "And then?"}])
    store.append(THREAD, {"role": "assistant", "content": "Nothing."})
    money = json.loads(run("stats", THREAD, "--prices", str(file), "--model", "m-20260101", "--json").stdout)["money"]
    assert (money["currency"], money["wasted"], money["calls"]["measured"]) == ("EUR", 0, 0)
    taken_off = [
        (record.tokens_before or 0) - (record.tokens_after or 0)
        for record in store.compactions(THREAD, outcome="applied")
    ]
    assert [one["calls"] for one in money["records"]] == [2, 2]
    for one, tokens in zip(money["records"], taken_off, strict=True):
        assert one["saved"] == pytest.approx(2 * tokens * 0.3 / 1e6)
    assert money["modelled"]["net"] == pytest.approx(sum(one["net"] for one in money["records"]))
    shown = run("stats", THREAD, "--prices", str(file), "--model", "m", "--table").stdout
    assert "Money of the compactions in EUR" in shown
    # So few calls do not pay for what is billed anew.
    assert "1 of 2 compactions lost money" in shown
    assert "compact less often, and more at once" in shown
    for arguments, text in (
        (("--prices", str(file), "--model", "m"), "needs a thread"),
        ((THREAD, "--model", "m"), "together"),
        ((THREAD, "--window", "9"), "needs --prices and --model"),
        ((THREAD, "--prices", str(file), "--model", "x"), "has a price: m"),
    ):  # fmt: skip
        assert text in " ".join(run("stats", *arguments, code=2).stderr.split())


@pytest.mark.usefixtures("filled")
def test_losses_of_money_are_red_on_a_terminal_and_on_the_page(run: Run, tmp_path: Path, store: cs.Store) -> None:
    prices, page = tmp_path / "prices.json", tmp_path / "report.html"
    price = {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
    prices.write_text(json.dumps({"models": {"m": price}}), encoding="utf-8")
    store.append(THREAD, [{"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "And then?"}])
    store.append(THREAD, {"role": "assistant", "content": "Nothing."})
    money = ("--prices", str(prices), "--model", "m")
    for arguments in (("stats", THREAD, *money), ("evaluate", *money, "--out", str(page))):
        red = re.findall(r"\x1b\[(?:1;)?31m([^\x1b]*)", run.on_terminal(*arguments, columns=160))
        assert any(re.search(r"-0\.\d{4}", text) for text in red), red
        assert any("1 of 2 compactions lost money" in " ".join(text.split()) for text in red), red
        plain = run.on_terminal(*arguments, columns=160, NO_COLOR="1")
        assert "\x1b[31m" not in plain
        assert re.search(r"-0\.\d{4}", plain)
    html = page.read_text(encoding="utf-8")
    assert re.search(r'<span class="loss">-0\.\d{4}</span>', html)
    assert '<p class="loss">recorded: 1 of 2 compactions lost money' in html


@pytest.mark.usefixtures("filled")
def test_targets_replicates_and_planted_sentences(run: Run) -> None:
    ladder = ("--strategy", "ladder", "--window", "1200", "--target", "0.3", "--target", "0.7", "--replicates", "2")
    found = figures(run, *ladder)
    assert [policy["policy"] for policy in found["policies"]] == ["recorded", "ladder · to 0.3", "ladder · to 0.7"]
    assert [policy["replicates"] for policy in found["policies"]] == [2, 2, 2]
    found = figures(run, "--strategy", "sliding-window:retain=4", "--window", "900", "--plant", "10")
    [tried] = found["policies"]
    assert found["planted"] == 10
    assert any(kind.startswith("planted_") for kind in tried["probes"])
    assert "is required with --plant" in " ".join(run("evaluate", "--plant", "3", code=2).stderr.split())


@pytest.mark.usefixtures("filled")
def test_the_result_is_recorded_only_if_asked(run: Run, store: cs.Store) -> None:
    before = figures(run)
    assert list(store.audit.events(THREAD)) == []
    done = run("evaluate", THREAD, "--record", "the weekly run", "--json")
    assert "recorded in 1 thread" in done.stderr
    [event] = store.audit.events(THREAD)
    assert (event.kind, event.body["reason"]) == ("evaluation", "the weekly run")
    assert event.body["evaluation"]["inputs"] == before["inputs"] == json.loads(done.stdout)["inputs"]
    assert SECRET not in json.dumps(event.body)
    assert "evaluation" in run("events", THREAD, "--table").stdout
    assert store.audit.verify(THREAD).findings == ()


@pytest.mark.usefixtures("filled")
def test_several_processes_find_the_same(run: Run, store: cs.Store) -> None:
    for number in range(41):
        store.append(f"more-{number:02d}", [{"role": "user", "content": f"hi {number}"}] * 2)
    one, two = (figures(run, *TRY, "--processes", n) for n in ("1", "2"))
    assert one["threads"] == 42
    assert one == two


@pytest.mark.usefixtures("filled")
def test_several_processes_end_without_a_word(store: cs.Store, url: str, tmp_path: Path) -> None:
    for number in range(41):
        store.append(f"more-{number:02d}", [{"role": "user", "content": f"hi {number}"}] * 2)
    given = command("evaluate", *TRY, "--processes", "2", "--json")
    done = subprocess.run(given, env=environment(tmp_path, url), capture_output=True, text=True, check=True)
    assert (json.loads(done.stdout)["threads"], done.stderr) == (42, "")


def says(*words: str) -> list[Behaviour]:
    def one(text: str) -> Behaviour:
        answer = {
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 90, "completion_tokens": 1, "total_tokens": 91},
        }  # fmt: skip
        return lambda handler, _body: handler.send(200, json.dumps(answer).encode())

    return [one(word) for word in words]


@pytest.mark.usefixtures("filled")
def test_a_model_judges_the_summaries_and_is_compared_with_people(run: Run, url: str) -> None:
    with cs.Store.open(url, role="compaction_store_reviewer") as reviews:
        for number, verdict in ((1, "good"), (2, "bad")):
            reviews.audit.review(THREAD, number, verdict)  # type: ignore[arg-type]
    with serving() as server:
        server.does(*says("Yes.", "no", "yes", "No."))
        judge = f"openai:model=m,base_url={server.url}/v1"
        found = figures(run, "--judge", judge, "--judge-replicates", "2")
        [judged] = [policy["judge"] for policy in found["policies"]]
        assert (judged["model"], judged["asked"], judged["good"], judged["split"], judged["undecided"]) == (
            "m",
            2,
            0,
            2,
            2,
        )
        assert judged["agreement"]["labelled"] == 0
        asked = [json.loads(body["messages"][1]["content"]) for body in server.requests]
        assert SECRET in asked[0]["notes"]
        assert len(asked) == 4
        server.does(*says("yes", "no"))
        judged = figures(run, "--judge", judge, "--judge-replicates", "1")["policies"][0]["judge"]
        assert judged["agreement"] == {"labelled": 2, "same": 2, "kappa": 1.0}
        server.does(*says("yes"))
        assert "kappa" in run("evaluate", "--judge", judge, "--table").stdout
    for wrong in ("state", "none", "openai", "tea"):
        error = " ".join(run("evaluate", "--judge", wrong, code=2).stderr.split())
        assert "--judge" in error
        assert "--summarizer" not in error


@pytest.mark.usefixtures("filled")
def test_a_model_is_asked_about_each_view_and_the_cost_is_known_before(
    run: Run, store: cs.Store, tmp_path: Path
) -> None:
    orders = [f"ORD-{1000 + n} is the {what}." for n, what in enumerate(("lamp", "chair", "table", "shelf"))]
    store.append("asked", {"role": "user", "content": " ".join(orders)})
    store.append("asked", {"role": "assistant", "content": "I wrote all of it down. " * 20})
    store.append("asked", {"role": "user", "content": "Good."})
    store.compact("asked", lambda ctx: ctx.compact(1, 2, orders[2]))
    store.append("asked", {"role": "assistant", "content": "Yes."})
    store.append("asked", {"role": "user", "content": "Send the table, ORD-1002."})
    with serving() as server:
        server.does(reads)
        model = f"openai:model=m,base_url={server.url}/v1"
        given = ("asked", "--ask", model, "--ask-replicates", "3", "--ask-limit", "2")
        before = json.loads(run("evaluate", *given, "--dry-run", "--json").stdout)
        assert "--ask would make 4 calls" in run("evaluate", *given, "--dry-run", "--table").stdout
        assert server.requests == []
        file = tmp_path / "asked.html"
        found = figures(run, *given, "--out", str(file))
        assert before["calls"] == found["asked"]["calls"] == len(server.requests) == 4
        assert before["input_tokens"] > 100
        rate = found["policies"][0]["probes"]["asked_recall"]
        assert (rate["asked"], rate["kept"]) == (3, 3)
        text = file.read_text(encoding="utf-8")
        assert "<h2>Asked recall</h2>" in text
        assert "asked: m, 4 calls, 0 of them without an answer and 0 with an unclear one, " in text
        assert "lamp" not in text + json.dumps(found)
        server.does(*[fails(400, "invalid_request_error")] * 3, reads)
        shown = " ".join(run("evaluate", *given, "--table").stdout.split())
        assert "asked: m, 4 calls, 3 of them without an answer (3 SummarizerRejected) and" in shown
    assert "--ask" in run("evaluate", "--dry-run", code=2).stderr
    for wrong in ("state", "none", "openai", "tea"):
        assert "--ask" in " ".join(run("evaluate", "--ask", wrong, code=2).stderr.split())
