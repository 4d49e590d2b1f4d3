"""What the pages say of forks, holds, costs, checkpoints and revocations, so that nobody is misled."""

from __future__ import annotations

import csv
import html
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from support.compactable_thread import span

import compaction_store as cs
from compaction_store.arguments import DATABASE, LOG
from compaction_store.checkpoints import CheckpointLog, SigningKey
from compaction_store.evaluation import Prices
from compaction_store.summarizers import FallbackSummarizer
from compaction_store.web import app
from compaction_store.web.routes import FORMS, PARAMETERS
from web.audited import THREAD, Client, visit
from web.test_pages import shown, text_of


def test_every_level_verifies_with_a_log_of_checkpoints(url: str, store: cs.Store, tmp_path: Path) -> None:
    key = SigningKey.generate("auditor.example")
    log = CheckpointLog(tmp_path / "log", key.key)

    async def steps(client: Client) -> None:
        assert "--checkpoints" not in (await client.get("/integrity")).text
        store.audit.checkpoint(key, log)
        page = await client.get("/integrity")
        assert key.key.hex() in page.text
        assert "--level checkpoint --checkpoints LOG --public-key HEX" in page.text
        offered = re.findall(r"<option(?: selected)?>(\w+)</option>", page.text)
        assert "checkpoint" in offered
        assert len(offered) == 4
        for level in offered:
            answer = await client.get("/integrity", params={"id": "other", "level": level})
            assert answer.status_code == 200, answer.text
            assert f"at level {level}" in answer.text
        certificate = text_of((await client.get("/certificate", params={"id": THREAD, "pos": 20})).text)
        assert "compaction-store export --checkpoints LOG --public-key HEX ticket/8812 > thread.jsonl" in certificate
        assert "thread.jsonl --public-key HEX" in certificate

    visit(url, steps, checkpoints=log)
    # Without a log, no command names one.
    assert "--public-key" not in shown(url, "/integrity")
    assert "--public-key" not in shown(url, "/certificate", id=THREAD, pos=20)


def test_no_link_of_a_fork_is_dead(url: str, store: cs.Store) -> None:
    store.fork(THREAD, "fork")
    store.append("short", {"role": "user", "content": "hello"})
    store.fork("short", "short fork")

    async def steps(client: Client) -> None:
        for name in ("fork", "short fork"):
            links: set[str] = set()
            for page in ("/thread", "/view"):
                answer = await client.get(page, params={"id": name})
                links |= {html.unescape(each) for each in re.findall(r'href="(/[^"]*)"', answer.text)}
            assert any("beside" in link for link in links)
            for link in links:
                assert (await client.get(link)).status_code == 200, link

    visit(url, steps)


def test_a_copied_record_names_the_thread_that_it_comes_from(url: str, store: cs.Store) -> None:
    store.fork(THREAD, "fork")
    store.compact("fork", _fails, actor="nightly")
    listed = shown(url, "/records", outcome="failed")
    assert listed.count("copied from") == 1
    assert text_of(listed).count("RuntimeError") == 3
    assert "copied from" in shown(url, "/thread", id="fork")
    assert "copied from" not in shown(url, "/thread", id=THREAD)
    assert "It was copied from" in shown(url, "/record", id="fork", number=4)
    assert "It was copied from" not in shown(url, "/record", id="fork", number=5)
    assert "1 attempt: 1 failed" in text_of(shown(url, "/records", id="fork"))


def _fails(_: cs.CompactionContext) -> None:
    raise RuntimeError("the model is away")


def test_a_hold_and_a_retention_are_a_state(url: str, store: cs.Store) -> None:
    store.custody.retain("other", datetime(2100, 1, 1, tzinfo=UTC), reason="law")
    assert "<dd>held, since " in shown(url, "/thread", id=THREAD)
    listed = shown(url, "/threads")
    assert listed.count(">held, since ") == 1
    assert listed.count("retained until 2100-01-01") == 1
    store.custody.release(THREAD, reason="settled")
    assert ">held" not in shown(url, "/threads")
    assert "<dd>not held</dd>" in shown(url, "/thread", id=THREAD)


def test_a_revoked_record_and_a_revocation_are_not_superseded(url: str, store: cs.Store) -> None:
    store.append("undone", [{"role": "user", "content": f"message {n} " * 40} for n in range(9)])
    store.compact("undone", lambda ctx: ctx.compact(2, 3, "first"))
    store.revoke("undone", 1, reason="wrong")
    store.compact("undone", lambda ctx: ctx.compact(1, 6, "second"))
    assert [record.superseded_by for record in store.compactions("undone")] == [None, None, None]
    first = text_of(shown(url, "/record", id="undone", number=1))
    assert "Revoked by record 2" in first
    for number in (1, 2):
        assert "uperseded by" not in text_of(shown(url, "/record", id="undone", number=number))


def test_a_thread_says_what_its_summaries_cost_and_what_is_not_counted(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(9)])
        for start, model in ((1, "one"), (3, "two"), (5, "two")):
            made = cs.Summary(
                "short", summarizer="mine", model=model, usage={"input_tokens": 1000, "output_tokens": 20}, duration=1.5
            )
            store.compact("t", span(start, start + 1, made))
        store.compact("t", lambda ctx: ctx.compact(7, 8, "its own words"))
        store.custody.redact("t", 3, reason="asked for")
    rows = re.findall(r'<tr><td data-head="Model">(one|two)</td>(.*)</tr>', shown(url, "/records", id="t"))
    cells = [(model, *re.findall(r">([^<]+)</td>", row)) for model, row in rows]
    assert cells == [("one", "1", "0", "1,000", "20", "1.5"), ("two", "1", "0", "1,000", "20", "1.5")]
    page = text_of(shown(url, "/records", id="t"))
    assert "4 attempts: 4 applied" in page
    assert "Not counted: the cost of 1 attempt, which was erased with the record" in page
    assert "1 attempt without a summarizer on record" in page


def test_records_say_what_all_of_them_cost_and_where_the_newest_cost_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cells(page: str) -> list[tuple[str, ...]]:
        rows = re.findall(r"<tr><t[dh][^>]*>(one|two|all)</t[dh]>(.*?)</tr>", page)
        return [(model, *re.findall(r">([^<]+)</td>", row)) for model, row in rows]

    with cs.Store.open(url) as store:
        for name, model, count in (("a", "one", 2), ("b", "two", 60)):
            store.append(name, [{"role": "user", "content": f"message {n} " * 40} for n in range(2 * count + 1)])
            for at in range(1, 2 * count, 2):
                made = cs.Summary(
                    "short", summarizer="mine", model=model, usage={"input_tokens": 1000, "output_tokens": 20},
                    duration=1.5,
                )  # fmt: skip
                store.compact(name, span(at, at + 1, made))
        # Copies cost nothing, and a revocation is no attempt.
        store.fork("b", "b-fork")
        store.revoke("b", 1, reason="wrong")
    page = shown(url, "/records", costs="1")
    assert cells(page) == [
        ("one", "2", "0", "2,000", "40", "3"), ("two", "60", "0", "60,000", "1,200", "90"),
        ("all", "62", "0", "62,000", "1,240", "93"),
    ]  # fmt: skip
    text = text_of(page)
    assert "62 attempts: 62 applied" in text
    assert "The newest cost is that of record 60 of b," in text
    assert "costs=1" in shown(url, "/")
    # Not all records are on the page, so the sum is one link away, with the same filters.
    assert "model=two" in shown(url, "/records", model="two").partition("Sum the costs")[0].rpartition("costs=1")[2]
    assert cells(shown(url, "/records", model="two", costs="1")) == [("two", "60", "0", "60,000", "1,200", "90")]
    # All records are on the page.
    assert cells(shown(url, "/records", id="a")) == [("one", "2", "0", "2,000", "40", "3")]
    monkeypatch.setattr(app, "_LONGEST_SEARCH", 0.0)
    text = text_of(shown(url, "/records", costs="1"))
    assert "The search stopped after ten seconds" in text
    assert "the sum stopped after ten seconds" in text


def test_records_say_what_each_actor_cost_with_money_where_prices_are_known(url: str) -> None:
    def cells(row: str) -> list[str]:
        return [html.unescape(each) for each in re.findall(">([^<]+)<", row)]

    made = cs.Summary("short", summarizer="mine", model="one", usage={"input_tokens": 1000, "output_tokens": 20})
    unpriced = cs.Summary("short", summarizer="mine", model="two", usage={"input_tokens": 9})
    actors = [*["sæm & co"] * 3, None, None, *(f"bot {n:02}" for n in range(51))]
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(len(actors) + 1)])
        for seq, actor in enumerate(actors, 1):
            store.compact("t", span(seq, seq, unpriced if actor == "bot 50" else made), actor=actor)
        # A revocation is no attempt.
        store.revoke("t", 1, reason="wrong", actor="sæm & co")
    prices = Prices.of_json({"currency": "EUR", "models": {"one": {"input": 1, "output": 5}}})

    async def steps(client: Client) -> None:
        page = (await client.get("/records", params={"costs": "1", "since": "7d"})).text
        head, *rows = re.findall("<tr>.*?</tr>", page.partition("Costs by actor</caption>")[2].partition("</table>")[0])
        assert cells(head) == ["Actor", "Attempts", "Calls", "Tokens in", "out", "EUR"]
        assert cells(rows[0]) == ["sæm & co", "3", "3", "3,000", "60", "0.0033"]
        assert cells(rows[1]) == ["no actor given", "2", "2", "2,000", "40", "0.0022"]
        assert len(rows) == 51
        assert cells(rows[50]) == ["3 others", "3", "3", "2,009", "40", "0.0022 and 1 unknown"]
        [link] = re.findall('href="([^"]*)"', rows[0])
        assert "since=7d" in link
        one = (await client.get(html.unescape(link))).text
        assert "4 records match." in one
        assert "bot 01" not in one.partition("Costs by actor</caption>")[2].partition("</table>")[0]

    visit(url, steps, prices=prices)
    assert "EUR" not in shown(url, "/records", costs="1")


def test_no_record_took_most_tokens_if_none_were_used(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "message " * 40}] * 3)
        store.compact("t", span(1, 2, cs.Summary("short", summarizer="mine")))
    page = text_of(shown(url, "/records"))
    assert "The newest cost is that of record 1 of t" in page
    assert "Most tokens" not in page


def test_a_record_names_the_replies_that_were_appended_while_it_was_in_the_view(url: str) -> None:
    def turn() -> None:
        store.append("t", [{"role": "user", "content": "message " * 40}, {"role": "assistant", "content": "yes"}])

    def said(number: int) -> tuple[list[str], str]:
        page = shown(url, "/record", id="t", number=number)
        line = re.findall("<p>[^\n]*receipt proves.</p>", page)
        return (re.findall(r"/reply\?id=t&amp;seq=(\d+)", line[0]), text_of(line[0])) if line else ([], "")

    with cs.Store.open(url) as store:
        turn()
        turn()
        store.compact("t", span(1, 1))
        turn()
        store.compact("t", span(2, 2, "much too long " * 90))
        turn()
        store.compact("t", span(1, 3))
        store.revoke("t", 3, reason="wrong")
        turn()
        store.compact("t", span(5, 5))
        store.custody.redact("t", [5], reason="asked for")
        assert store.compaction("t", 2).outcome == "rejected"
        for _ in range(30):
            turn()
        store.compact("t", span(7, 7))
        assert said(1)[0] == ["6", "8"]
        assert "until pos 11, and is there again" in said(1)[1]
        # An attempt that changed nothing, and a revocation, are in no view.
        assert said(2) == said(4) == ([], "")
        assert said(3)[0] == said(5)[0] == said(6)[0] == []
        assert "until pos 12. The" in said(3)[1]
        assert "until pos 16" in said(5)[1]
        assert "No reply" in said(6)[1]
        store.append("t", [{"role": "user", "content": "more"}] * 50)
        assert "None of the next 50 entries is a reply; the conversation goes on" in said(6)[1]


def test_an_erased_thread_says_that_its_name_is_gone(url: str, store: cs.Store) -> None:
    store.custody.erase("other", reason="asked for")
    [stub] = [found for found in store.threads(hidden=True) if found.erased_pos]
    for page in (shown(url, "/thread", id=stub.thread_id),
                 shown(url, "/certificate", id=stub.thread_id, pos=stub.erased_pos)):  # fmt: skip
        assert "is not in this database any more" in page
    assert "is not in this database any more" not in shown(url, "/certificate", id=THREAD, pos=20)


@pytest.mark.usefixtures("store")
def test_without_content_nothing_can_be_guessed(url: str) -> None:
    async def steps(client: Client) -> None:
        answer = await client.get("/records", params={"authority": '{"ticket":"QA-118"}'})
        assert answer.status_code == 400
        assert 'name="authority"' not in (await client.get("/records")).text
        failed = (await client.get("/record", params={"id": THREAD, "number": 4})).text
        assert "RuntimeError" in failed
        assert "the model is away" not in failed
        assert "The messages that it would have replaced" not in failed or "nothing: the attempt failed" in failed
        made = text_of((await client.get("/record", params={"id": "priced", "number": 1})).text)
        for hidden in ("mine", "input_tokens", "duration"):
            assert hidden not in made

    with cs.Store.open(url) as store:
        store.append(
            "priced",
            [
                {"role": "user", "content": "a " * 99},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
        )
        made = cs.Summary("short", summarizer="mine", usage={"input_tokens": 9}, duration=2.0)
        store.compact("priced", lambda ctx: ctx.compact(1, 2, made))
    visit(url, steps, content=False)


@pytest.mark.usefixtures("store")
def test_a_parameter_that_a_page_does_not_know_is_refused(url: str) -> None:
    async def steps(client: Client) -> None:
        for page, known in PARAMETERS.items():
            if page in FORMS:
                continue
            others = {name for names in PARAMETERS.values() for name in names} - {*known} | {"outcom"}
            for name in others:
                answer = await client.get(page, params={name: "failed"})
                assert answer.status_code == 400, (page, name)
                text = text_of(answer.text)
                assert repr(name) in text, (page, name)
                assert f"a parameter must be one of {', '.join(known)};" in text or not known

    visit(url, steps)


@pytest.mark.parametrize(
    ("seconds", "said"), [(6.33e-05, "< 0.001 s"), (1.5, "1.5 s"), (0.0421, "0.0421 s"), (1234.5, "1,234 s")]
)
def test_a_duration_is_read_without_an_exponent(url: str, seconds: float, said: str) -> None:
    with cs.Store.open(url) as store:
        store.append(
            "t",
            [
                {"role": "user", "content": "a " * 99},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
        )
        store.compact("t", lambda ctx: ctx.compact(1, 2, cs.Summary("short", summarizer="mine", duration=seconds)))
    assert said in text_of(shown(url, "/record", id="t", number=1))


@pytest.mark.usefixtures("store")
def test_amounts_are_marked_and_the_legend_says_what_is_not(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("money", [
            {"role": "user", "content": "I paid EUR 19.00. " * 20}, {"role": "assistant", "content": "sorry"},
            {"role": "user", "content": "thanks"},
        ])  # fmt: skip
        store.compact("money", lambda ctx: ctx.compact(1, 2, "A refund of EUR 412.00 was promised."))
    page = shown(url, "/record", id="money", number=1)
    assert '<mark class="new">EUR 412.00' in page
    assert '<mark class="lost">EUR 19.00' in page
    assert "Not marked are short numbers" in page


def test_a_tool_s_result_is_no_reply(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("tools", [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "found"},
        ])  # fmt: skip
    page = text_of(shown(url, "/reply", id="tools", seq=3))
    assert "What reply" not in page
    assert "role tool" in page
    assert "What reply 2" in text_of(shown(url, "/reply", id="tools", seq=2))


@pytest.mark.parametrize("forks", [True, False])
def test_the_certificate_of_an_erasure_names_the_forks(url: str, *, forks: bool) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(4)])
        store.fork("t", "fork of t")
        store.custody.redact("t", 2, reason="asked for", forks=forks)
        [erasure] = store.audit.events("t", kind="redaction")
    page = shown(url, "/certificate", id="t", pos=erasure.pos)
    said = "The copies in these forks were erased too:" if forks else "These forks still have copies:"
    assert f"{said} fork of t." in text_of(page)


def test_two_moments_have_the_tokens_of_both(url: str, store: cs.Store) -> None:
    left, right = (store.view(THREAD, at=at) for at in (16, 20))
    counts = [f"{len(view.elements)} elements and {view.tokens} tokens" for view in (left, right)]
    said = f"The view has {counts[0]} at pos 16, and {counts[1]} at pos 20."
    page = text_of(shown(url, "/view", id=THREAD, at=16, beside=20))
    assert said in page, page


def test_a_record_says_which_calls_failed_before_it_and_the_dearest_is_named(url: str) -> None:
    def away(_: Sequence[cs.Element]) -> cs.Summary:
        raise TimeoutError("away")

    def spare(_: Sequence[cs.Element]) -> cs.Summary:
        return cs.Summary("short", summarizer="spare", model="two", usage={"input_tokens": 90, "output_tokens": 9})

    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(8)])
        made = cs.Summary("short", summarizer="mine", model="one", usage={"input_tokens": 70, "output_tokens": 7})
        store.compact("t", lambda ctx: ctx.compact(1, 2, made))
        store.compact("t", lambda ctx: ctx.compact(3, 4, FallbackSummarizer(away, spare)))
        store.compact("t", lambda ctx: ctx.compact(5, 6, made))
    for page in (shown(url, "/thread", id="t"), shown(url, "/records")):
        assert text_of(page).count("(after 1 failed call)") == 1
    said = "Most tokens were taken by record 2 of t: 90 in and 9 out, failed calls included."
    assert said in text_of(shown(url, "/records"))


def test_the_page_of_integrity_names_the_entries_that_no_checkpoint_signs(
    url: str, store: cs.Store, tmp_path: Path
) -> None:
    key = SigningKey.generate("auditor.example")
    log = CheckpointLog(tmp_path / "log", key.key)
    store.audit.checkpoint(key, log)
    last = store.thread(THREAD).last_pos

    async def steps(client: Client) -> None:
        async def text() -> str:
            return text_of((await client.get("/integrity", params={"id": THREAD})).text)

        assert "not signed" not in await text()
        store.append(THREAD, [{"role": "user", "content": "hello"}] * 2)
        assert f"pos {last + 1} to {last + 2}: only the chain covers these entries" in await text()

    visit(url, steps, checkpoints=log)


def test_events_without_any_optional_field_are_shown(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(8)])
        store.compact("t", lambda ctx: ctx.compact(1, 2, "short"))
        store.audit.review("t", 1, "good")
        store.custody.hold("t", reason="a lawsuit")
        with pytest.raises(cs.Held):
            store.custody.redact("t", 3, reason="asked for")
        store.custody.release("t", reason="settled")
        store.custody.retain("t", datetime(2020, 1, 1, tzinfo=UTC), reason="law")
        store.fork("t", "fork")
        store.custody.redact("t", 3, reason="asked for")
        store.audit.record_evaluation("t", {"policies": {}}, reason="a trial")
        events = [*store.audit.events("t"), *store.audit.events("fork")]
        kinds = {event.kind for event in events}
    assert kinds >= {
        "verdict", "hold", "refusal", "release", "retention", "fork", "origin", "redaction", "evaluation",
    }  # fmt: skip
    for event in events:
        assert event.kind in shown(url, "/certificate", id=event.thread_id, pos=event.pos).lower()
    for page in ("/thread", "/erasures"):
        for name in ("t", "fork"):
            shown(url, page, id=name)
    shown(url, "/record", id="t", number=1)
    assert "good: record 1" in text_of(shown(url, "/thread", id="t"))


def test_the_csv_of_threads_says_what_is_held_and_retained_as_the_page_does(url: str, store: cs.Store) -> None:
    store.append("kept", {"role": "user", "content": "hello"})
    store.custody.retain("kept", datetime(2036, 1, 1, 12, tzinfo=UTC), reason="tax law", actor="records")
    hold = store.custody.hold(THREAD, reason="a lawsuit", actor="counsel")
    store.append("let go", {"role": "user", "content": "hello"})
    store.custody.hold("let go", reason="a lawsuit")
    store.custody.release("let go", reason="it is settled")
    page = text_of(shown(url, "/threads"))
    assert re.search(r"retained until 2036-01-01 12:00:00, since [-0-9]{10} [:0-9]{8} by records", page)
    assert f"held, since {hold.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} by counsel" in page
    assert page.count("held,") == 1
    assert "until 2036-01-01 12:00:00 UTC" in text_of(shown(url, "/thread", id="kept"))
    program = [sys.executable, "-m", "compaction_store", "threads", "--hidden", "--csv", "--url", url]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    rows = {row["thread_id"]: (row["held"], row["retained_until"]) for row in csv.DictReader(StringIO(done.stdout))}
    assert rows == {
        THREAD: ("true", ""), "other": ("false", ""), "kept": ("false", "2036-01-01T12:00:00.000000Z"),
        "let go": ("false", ""),
    }  # fmt: skip


def test_the_list_of_erasures_has_the_legal_basis_and_why_a_hold_was_overridden(url: str, store: cs.Store) -> None:
    store.custody.redact(THREAD, [2], override="order 9", reason="case 5", legal_basis="Art. 17", actor="privacy desk")
    store.append("t", {"role": "user", "content": "hello"})
    store.custody.erase("t", reason="case 6")
    page = text_of(shown(url, "/erasures"))
    assert "case 5; legal basis: Art. 17; override: order 9" in page
    assert "case 6; " not in page

    async def steps(client: Client) -> None:
        assert "order 9" not in (await client.get("/erasures")).text

    visit(url, steps, content=False)


def test_the_events_of_the_logs_are_listed_and_put_in_words(url: str, store: cs.Store) -> None:
    store.custody.set_retention(older_than=timedelta(days=180), prefix="ticket/", reason="policy 7")
    list(store.custody.apply_retention(older_than=timedelta(days=9000), reason="policy 8"))
    with cs.Store.open(url, tenant="acme") as acme:
        acme.append("a", {"role": "user", "content": "hello"})
        removal = acme.custody.remove_tenant(SigningKey.generate("auditor.example"), reason="contract 9")
    rule = "threads whose names begin with ticket/ are erased 180 days after their last message"
    ended = "run ended: erased 0 threads, 0 messages and 0 records"
    gone = "tenant acme: 1 thread, 1 message and 0 records erased, 0 keys destroyed"
    for tenant, pos, said in (("default", 1, rule), ("default", 3, ended), (DATABASE, removal.pos, gone)):

        async def steps(client: Client, pos: int = pos, said: str = said) -> None:
            assert said in text_of((await client.get("/erasures")).text)
            page = (await client.get("/certificate", params={"id": LOG, "pos": pos})).text
            assert said in text_of(page)
            # The log of the database has no threads, and is not red for that.
            assert "not as it should be" not in page

        visit(url, steps, tenant=tenant)


def test_erasures_are_found_by_time_and_actor(url: str, store: cs.Store) -> None:
    store.custody.redact(THREAD, [1], reason="the second", actor="dpo", override="a court order")
    [first, second] = [event for event in store.audit.events() if event.kind == "redaction"]
    for given, reasons in (
        ({}, {"asked for", "the second"}), ({"actor": "dpo"}, {"the second"}), ({"actor": "nobody"}, set()),
        ({"since": second.created_at.isoformat()}, {"the second"}), ({"until": "7d"}, set()),
        ({"until": first.created_at.isoformat()}, {"asked for"}),
        ({"id": THREAD, "actor": "privacy desk"}, {"asked for"}),
    ):  # fmt: skip
        page = shown(url, "/erasures", kind="redaction", **given)
        assert {reason for reason in ("asked for", "the second") if reason in page} == reasons, given
        for name, value in given.items():
            assert name == "id" or f'value="{value}"' in page
        assert ("--actor=dpo" in page) is (given.get("actor") == "dpo")


def test_the_authority_the_settings_and_the_usage_of_a_record_are_tables(url: str, store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": "word " * 300}] * 4)
    made = cs.Summary("short", model="m", settings={"<b>": [1, None], "mode": "inline"}, usage={"input_tokens": 12345})
    store.compact("t", lambda ctx: ctx.compact(1, 2, made), authority={"ticket": "X-1", "approved": True})
    page = shown(url, "/record", id="t", number=1)
    assert re.findall(r'<th scope="row">([^<]*)</th><td class="why">([^<]*)</td>', page) == [
        ("ticket", "X-1"), ("approved", "true"), ("&lt;b&gt;", "[1,null]"), ("mode", "inline"),
        ("input_tokens", "12,345"),
    ]  # fmt: skip


def test_no_table_of_a_record_is_shown_without_content(url: str, store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": "word " * 300}] * 4)
    store.compact("t", lambda ctx: ctx.compact(1, 2, "short"), authority={"ticket": "X-1"})
    pages: list[str] = []

    async def steps(client: Client) -> None:
        pages.append((await client.get("/record", params={"id": "t", "number": 1})).text)

    visit(url, steps, content=False)
    assert "X-1" not in pages[0]
