"""What the pages show of a thread that has something of everything."""

from __future__ import annotations

import csv
import html
import os
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.compactable_thread import span as planned
from support.later_releases import POS, add_event, add_record, folded

import compaction_store as cs
from compaction_store.audit import charts
from web.audited import ADDRESSES, SUMMARY, THREAD, Client, visit

_MOST_BYTES = 300_000


def text_of(page: str) -> str:
    """Returns the text of a page without its elements."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


def positions(page: str) -> list[int]:
    """Returns the pos of each entry on the page of a thread."""
    return [int(pos) for pos in re.findall(r'id="pos-(\d+)"', page)]


def marks(page: str, mark: str) -> set[str]:
    found = re.findall(rf'<mark class="{mark}">([^<]*)<span', page)
    return {html.unescape(each) for each in found}


def shown(url: str, page: str, **options: Any) -> Any:
    """Returns a function that reads one page as text."""
    found: list[str] = []

    async def steps(client: Client) -> None:
        answer = await client.get(page, params=options)
        assert answer.status_code == 200, answer.text
        found.append(answer.text)

    visit(url, steps)
    return found[0]


@pytest.mark.usefixtures("store")
def test_every_page_is_shown(url: str) -> None:
    async def steps(client: Client) -> None:
        for address, parameters in ADDRESSES:
            answer = await client.get(address, params=parameters)
            assert answer.status_code == 200, (address, parameters, answer.text)

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_links_of_every_page_lead_to_pages(url: str) -> None:
    async def steps(client: Client) -> None:
        links: set[str] = set()
        for address, parameters in ADDRESSES:
            links |= {html.unescape(each) for each in re.findall(r'href="([^"]*)"', (await client.get(
                address, params=parameters)).text)}  # fmt: skip
        assert len(links) > 40
        for link in links - {"#main"}:
            # There is no message after the last.
            is_last = link.startswith("/message?") and link.endswith("seq=17")
            assert (await client.get(link)).status_code == (404 if is_last else 200), link

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_a_record_says_what_was_kept_lost_and_is_new(url: str) -> None:
    page = shown(url, "/record", id=THREAD, number=1)
    assert {"#44910", "ZX-990-AA", "/srv/orders/0.json"} <= marks(page, "kept")
    assert {"#44911", "/srv/orders/2.json", "ZX-992-AA"} <= marks(page, "lost")
    assert marks(page, "new") == {"$999.99"}
    text = text_of(page)
    assert "actor nightly" in text.replace("actornightly", "actor nightly")
    assert "superseded by" in text


def test_a_number_and_a_folder_are_not_new_if_an_original_has_them_otherwise(url: str, store: cs.Store) -> None:
    store.append("forms", [
        {"role": "user", "content": "Look at the parcels. " * 20},
        {"role": "assistant", "content": '{"order": 44917, "scan": "/srv/scans/lisbon/44917.pdf"}'},
        {"role": "user", "content": "Thanks."},
    ])  # fmt: skip
    store.compact("forms", lambda ctx: ctx.compact(1, 2, "Order #44917, scanned in /srv/scans/lisbon, not /srv/faro."))
    page = shown(url, "/record", id="forms", number=1)
    assert marks(page, "new") == {"/srv/faro"}
    assert {"44917", "#44917", "/srv/scans/lisbon"} <= marks(page, "kept")
    assert marks(page, "lost") == {"/srv/scans/lisbon/44917.pdf"}


@pytest.mark.usefixtures("store")
def test_failed_and_rejected_attempts_are_listed_with_the_reason(url: str) -> None:
    text = text_of(shown(url, "/records"))
    assert "rejected" in text
    assert "NotSmaller" in text
    assert "failed" in text
    assert "RuntimeError" in text
    only = text_of(shown(url, "/records", outcome="failed"))
    assert "NotSmaller" not in only


def test_a_view_is_that_of_its_pos_and_differences_are_marked(url: str, store: cs.Store) -> None:
    first = next(record for record in store.compactions(THREAD) if record.outcome == "applied")
    page = shown(url, "/view", id=THREAD, at=first.pos)
    assert SUMMARY in text_of(page)
    assert "Order #44910 is not" not in text_of(page)
    before = text_of(shown(url, "/view", id=THREAD, at=first.pos - 1))
    assert "Order #44910 is not" in before
    both = shown(url, "/view", id=THREAD, at=first.pos - 1, beside=first.pos)
    assert both.count("element fold came") == 1
    assert both.count("element  gone") == 6
    assert "7 elements differ" in text_of(both)


@pytest.mark.usefixtures("store")
def test_a_reply_is_proved_or_not(url: str) -> None:
    assert "proved: the receipt" in text_of(shown(url, "/reply", id=THREAD, seq=4))
    assert "nothing proves that the model was sent them" in text_of(shown(url, "/reply", id=THREAD, seq=3))


def test_erasures_and_holds_have_certificates(url: str, store: cs.Store) -> None:
    listed = text_of(shown(url, "/erasures"))
    assert "redaction" in listed
    assert "hold" in listed
    event = next(event for event in store.audit.events(THREAD) if event.kind == "redaction")
    certificate = text_of(shown(url, "/certificate", id=THREAD, pos=event.pos))
    assert "Certificate of erasure" in certificate
    assert "privacy desk" in certificate
    assert store.thread(THREAD).head.hex() in certificate
    assert "erased" in text_of(shown(url, "/message", id=THREAD, seq=16))


def test_a_record_without_a_text_says_what_became_of_its_span(url: str, store: cs.Store) -> None:
    store.revoke(THREAD, 3, reason="it promises a refund", actor="ines")
    store.rewind(THREAD, 14, reason="a wrong answer", actor="ines")
    records = list(store.compactions(THREAD))
    assert [(record.outcome, record.kind) for record in records[-3:]] == [
        ("failed", "summary"), ("applied", "revocation"), ("applied", "rewind"),
    ]  # fmt: skip
    texts = {r.number: text_of(shown(url, "/record", id=THREAD, number=r.number)) for r in records}
    assert "The messages that it would have replaced" in texts[2]
    assert "the view stayed as it was" in texts[2]
    revocation, rewind = (texts[record.number] for record in records[-2:])
    assert "what the view showed before record 3" in revocation
    assert "the span was removed from the view" in rewind
    assert sum("was removed from the view" in text for text in texts.values()) == 1


def test_a_record_says_who_undid_it_when_why_and_on_whose_authority(url: str, store: cs.Store) -> None:
    assert "Superseded by record 3" in text_of(shown(url, "/record", id=THREAD, number=1))
    store.revoke(THREAD, 3, reason="it promises a refund", actor="ines", authority={"ticket": "T-9"})
    page = shown(url, "/record", id=THREAD, number=3)
    undone = text_of(page).partition("Revoked by record 5")[2]
    assert re.search(r"time[-0-9]{10} [0-9:]{8}\.\d{3} UTC", undone)
    for part in (
        "actorines",
        "reasonit promises a refund",
        'authority{"ticket":"T-9"}',
        f"login{store.compaction(THREAD, 5).login}",
    ):
        assert part in undone
    assert re.search(r'<h2>Revoked by <a href="/record\?[^"]*number=5">', page)


def test_a_rejected_attempt_shows_the_reason_that_was_stated_and_that_its_text_was_not_kept(
    url: str, store: cs.Store
) -> None:
    store.compact(THREAD, lambda ctx: ctx.compact(9, 10, "so long " * 900, reason="the nightly run"))
    number = store.thread(THREAD).last_number
    page = text_of(shown(url, "/record", id=THREAD, number=number))
    assert "Reason the nightly run" in page.replace("Reasonthe", "Reason the")
    assert "its text was not kept" in page
    assert "NotSmaller" in page
    assert "asked for: the nightly run" in text_of(shown(url, "/records", outcome="rejected"))
    assert f"record {number}" in text_of(shown(url, "/search", q="the nightly run"))


def test_a_hold_shows_its_release(url: str, store: cs.Store) -> None:
    pos = next(event.pos for event in store.audit.events(THREAD, kind="hold"))
    assert "Nothing has ended this hold" in text_of(shown(url, "/certificate", id=THREAD, pos=pos))
    done = store.custody.release(THREAD, reason="settled", actor="legal", authority={"case": "815"})
    store.custody.hold(THREAD, reason="another", actor="legal")
    store.custody.release(THREAD, reason="over", actor="legal")
    page = shown(url, "/certificate", id=THREAD, pos=pos)
    told = text_of(page).partition("The release")[2].partition("The entry")[0]
    assert f"ended at pos {done.pos}." in told
    for part in ("actorlegal", "reasonsettled", 'authority{"case":"815"}'):
        assert part in told
    assert html.escape(f"pos={done.pos}") in page


def test_a_certificate_says_what_was_verified(url: str, store: cs.Store) -> None:
    pos = next(event.pos for event in store.audit.events(THREAD, kind="redaction"))

    async def steps(client: Client) -> None:
        async def told() -> str:
            return text_of((await client.get("/certificate", params={"id": THREAD, "pos": pos})).text)

        assert "is proved" not in await told()
        assert "have not verified the thread since they were started" in await told()
        await client.get("/integrity", params={"id": THREAD})
        entries = store.thread(THREAD).last_pos
        assert re.search(
            rf"No findings: these pages verified the thread at .* {entries} entries up to its head", await told()
        )
        store.append(THREAD, {"role": "user", "content": "one more"})
        assert f"{entries} entries; entries were added since" in await told()
        await client.get("/integrity", params={"id": THREAD})
        assert f"{entries + 1} entries up to its head" in await told()
        listed = text_of((await client.get("/integrity")).text)
        assert listed.count(THREAD) == 1

    visit(url, steps)


def test_a_failed_attempt_did_not_change_the_view(url: str, store: cs.Store) -> None:
    def fails(_: Any) -> str:
        raise TimeoutError

    store.compact("other", lambda ctx: ctx.compact(1, 1, fails, allow={"last_user"}))
    page = text_of(shown(url, "/record", id="other", number=1))
    assert "the attempt failed, and the view stayed as it was" in page


def test_a_receipt_over_what_was_erased_since_is_said_to_be_no_proof_any_more(url: str, store: cs.Store) -> None:
    page = shown(url, "/reply", id=THREAD, seq=4)
    pos = store.seen_by(THREAD, 4).view.pos
    assert f"at pos {pos}" in text_of(page)
    assert f"at={pos}" in page
    store.custody.redact(THREAD, [2], override="settled", reason="asked for", actor="privacy desk")
    after = text_of(shown(url, "/reply", id=THREAD, seq=4))
    assert "so the receipt cannot be compared any more" in after
    assert "has the hash of other elements" not in after


def test_a_user_s_message_is_not_said_to_be_written_from_a_view(url: str, store: cs.Store) -> None:
    assert "What it was written from" in shown(url, "/message", id=THREAD, seq=4)
    assert "What it was written from" not in shown(url, "/message", id=THREAD, seq=3)
    assert store.message(THREAD, 3).role == "user"


def test_an_erased_record_leads_to_its_certificate(url: str, store: cs.Store) -> None:
    done = store.custody.redact(
        THREAD, [2], override="settled", reason="asked for", legal_basis="Art. 17 GDPR", actor="privacy desk"
    )
    assert 3 in done.records
    page = shown(url, "/record", id=THREAD, number=3)
    assert html.escape(f"pos={done.pos}") in page
    assert f"erased at pos {done.pos}" in text_of(page)
    assert "legal basisArt. 17 GDPR" in text_of(shown(url, "/certificate", id=THREAD, pos=done.pos))


def test_a_certificate_says_whether_the_newest_checkpoint_covers_it(url: str, store: cs.Store, tmp_path: Path) -> None:
    key = cs.SigningKey.generate("example.org/audit")
    log = cs.CheckpointLog(tmp_path / "log.jsonl", key.key)
    store.audit.checkpoint(key, log)
    signed = store.thread(THREAD).last_pos
    later = store.custody.redact(THREAD, [2], override="settled", reason="asked for", actor="privacy desk")
    first = next(event.pos for event in store.audit.events(THREAD, kind="redaction"))
    store.append("new", [{"role": "user", "content": "hello"}])
    hold = store.custody.hold("new", reason="a lawsuit", actor="legal")

    async def steps(client: Client) -> None:
        async def text(page: str, **options: Any) -> str:
            return text_of((await client.get(page, params=options)).text)

        covered = f"it covers this threadup to pos {signed}"
        assert covered in await text("/certificate", id=THREAD, pos=first)
        assert f"{covered}, and not this entry" not in await text("/certificate", id=THREAD, pos=first)
        assert f"{covered}, and not this entry" in await text("/certificate", id=THREAD, pos=later.pos)
        assert "it covers this threadnot at all" in await text("/certificate", id="new", pos=hold.pos)
        assert f"signed up to pos{signed}" in await text("/integrity", id=THREAD)

    visit(url, steps, checkpoints=log)


def test_the_chart_of_a_thread_marks_the_newest_checkpoint(url: str, store: cs.Store, tmp_path: Path) -> None:
    key = cs.SigningKey.generate("example.org/audit")
    log = cs.CheckpointLog(tmp_path / "log.jsonl", key.key)
    store.audit.checkpoint(key, log)
    store.append(THREAD, [{"role": "user", "content": "hello"}])
    signed = store.audit.checkpoint(key, log)
    last = store.thread(THREAD).last_pos
    store.append(THREAD, [{"role": "user", "content": "hello again"}])
    store.append("new", [{"role": "user", "content": "hello"}] * 2)

    async def steps(client: Client) -> None:
        async def page(thread_id: str) -> str:
            return (await client.get("/thread", params={"id": thread_id})).text

        mark = f"newest checkpoint, of {signed.time:%Y-%m-%d %H:%M:%S} UTC, signs the thread up to pos {last}"
        found = await page(THREAD)
        assert f'<a href="/integrity" aria-label="{mark}">' in found
        assert "newest checkpoint" not in await page("new")
        # The page of integrity says that the list of heads is lost.
        lose()
        found = await page(THREAD)
        assert "newest checkpoint" not in found
        assert '<h1>Thread <span class="name">' in found

    def lose() -> None:
        (tmp_path / f"heads-{signed.heads}").unlink()

    visit(url, steps, checkpoints=log)


@pytest.mark.usefixtures("store")
def test_records_name_the_command_that_lists_them_as_csv(url: str) -> None:
    given = {"actor": "night ly", "id": THREAD, "run_id": str(UUID(int=7)), "since": "2026-05-01", "login": "postgres",
             "tokens_before": "100..", "status": "active"}  # fmt: skip
    page = text_of(shown(url, "/records", **given))
    options = "'--actor=night ly' --login=postgres --since=2026-05-01T00:00:00+00:00 --status=active"
    more = "--tokens-before=100.. --run=00000000-0000-0000-0000-000000000007 --csv"
    assert f"compaction-store compactions {options} {more} -- {THREAD}" in page


def test_the_command_lists_the_records_of_the_page(url: str, store: cs.Store) -> None:
    found = list(store.compactions())
    every = {
        "kind": "summary", "outcome": "applied", "actor": "nightly", "login": found[0].login, "trigger": "manual",
        "callback": found[0].callback, "status": "superseded", "counter": found[0].counter, "covering": "2",
        "tokens_before": f"{found[0].tokens_before}", "tokens_after": f"..{found[0].tokens_after}",
        "run_id": str(found[0].run_id), "since": "7d", "until": "2100-01-01",
    }  # fmt: skip
    cases: list[dict[str, Any]] = [
        {}, every, {"error_type": "RuntimeError"}, {"outcome": "rejected"}, {"made_from": 1}, {"summarizer": "none"},
        {"status": "redacted"}, {"tokens_after": "..1"}, {"revokes": 1}, {"id": THREAD, "covering": 8},
    ]  # fmt: skip
    sizes = []
    for given in cases:
        page = shown(url, "/records", **given)
        command = shlex.split(text_of(page.partition("The same as CSV</h2>")[2].partition("</pre>")[0]))
        assert command[:2] == ["compaction-store", "compactions"]
        run = [sys.executable, "-m", "compaction_store", "compactions", "--url", url, *command[2:]]
        printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        listed = list(csv.DictReader(StringIO(printed, newline="")))
        shown_numbers = re.findall(r'<td [^>]*class="n"><a href="/record\?id=[^"]*number=(\d+)"', page)
        assert sorted(row["number"] for row in listed) == sorted(shown_numbers), given
        sizes.append(len(listed))
    assert sizes == [4, 1, 1, 1, 1, 0, 0, 0, 0, 1]


@pytest.mark.usefixtures("store")
def test_every_list_names_the_command_that_lists_it_as_csv(url: str) -> None:
    for (page, given), command in {
        ("/threads", ()): "threads --hidden --csv",
        ("/erasures", ()): "events --csv",
        ("/erasures", (("id", THREAD), ("kind", "hold"))): f"events --kind=hold --csv -- {THREAD}",
        ("/search", (("q", "elm street"),)): "search --text --csv -- 'elm street'",
        ("/search", (("q", "-elm"), ("id", THREAD))): f"search --thread={THREAD} --text --csv -- -elm",
        ("/sample", ()): "events --kind=verdict --csv",
    }.items():
        printed = shown(url, page, **dict(given)).rpartition("<pre>")[2].partition("</pre>")[0]
        assert html.unescape(printed) == f"compaction-store {command}"
        run = [sys.executable, "-m", "compaction_store", *shlex.split(command)]
        done = subprocess.run(
            run, capture_output=True, text=True, check=False, env=os.environ | {"COMPACTION_STORE_URL": url}
        )
        assert done.returncode == 0, done.stderr
        rows = list(csv.reader(StringIO(done.stdout, newline="")))
        assert len(rows) > 1 or "verdict" in command or "-elm" in command, command


def test_commands_name_a_tenant_that_is_not_the_default(url: str) -> None:
    with cs.Store.open(url, tenant="acme") as store:
        store.append("t", {"role": "user", "content": "hello"})
        pos = store.custody.hold("t", reason="a lawsuit", actor="legal").pos

    async def steps(client: Client) -> None:
        for page in (f"/certificate?id=t&pos={pos}", "/integrity", "/records"):
            assert "--tenant acme" in text_of((await client.get(page)).text), page

    visit(url, steps, tenant="acme")


@pytest.mark.usefixtures("store")
def test_a_sample_says_that_no_verdict_can_be_recorded(url: str) -> None:
    assert "started without --review" in text_of(shown(url, "/sample"))


def test_a_thread_opens_any_of_its_messages_by_its_seq(url: str, store: cs.Store) -> None:
    page = shown(url, "/thread", id=THREAD)
    by_pos, by_seq = re.findall(r'<form class="line" action="/thread#talk">(.*?)</form>', page)
    assert f'name="id" value="{THREAD}"' in by_pos
    assert f'name="id" value="{THREAD}"' in by_seq
    assert f"message, 1 to {store.thread(THREAD).last_seq}" in by_seq
    assert positions(shown(url, "/thread", id=THREAD, seq=3))[0] == 3
    # This one is in no view: a record covers it.
    assert "Order #44910 is not" in shown(url, "/message", id=THREAD, seq=1)
    assert "have no summary" in text_of(shown(url, "/sample"))


def test_a_chart_is_drawn_again_only_after_the_thread_changed(
    url: str, store: cs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    svg = charts.svg

    def draw(line: charts.Course, title: str) -> str:
        drawn.append(title)
        return svg(line, title)

    monkeypatch.setattr(charts, "svg", draw)

    async def steps(client: Client) -> None:
        async def chart(name: str = THREAD) -> str:
            return (await client.get("/chart.svg", params={"id": name})).text

        first = await chart()
        assert await chart() == first
        assert len(drawn) == 1
        await chart("other")
        store.custody.release(THREAD, reason="settled", actor="legal")
        store.custody.redact(THREAD, [12], reason="asked for", actor="privacy desk")
        after = await chart()
        assert after != first
        assert await chart() == after
        assert len(drawn) == 3
        store.custody.erase("other", reason="asked for")
        assert (await client.get("/chart.svg", params={"id": "other"})).status_code in (404, 410)

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_integrity_verifies_a_thread(url: str) -> None:
    assert "No findings" in text_of(shown(url, "/integrity", id=THREAD))


def test_due_threads_are_listed_with_a_budget(url: str, store: cs.Store) -> None:
    store.append("large", {"role": "user", "content": "word " * 300})

    async def steps(client: Client) -> None:
        text = text_of((await client.get("/threads")).text)
        assert "large" in text.partition("Due for compaction")[2].partition("All, by name")[0]

    visit(url, steps, budget=cs.TokenBudget(200, trigger=0.5, target=0.3))


@pytest.mark.parametrize(("address", "parameters", "status"), [
    ("/thread", {"id": "nobody"}, 404), ("/thread", {}, 400), ("/thread", {"id": "x" * 300}, 400),
    ("/thread", {"id": "\0"}, 400), ("/view", {"id": THREAD, "at": "0"}, 400),
    ("/view", {"id": THREAD, "at": "x"}, 400),
    ("/view", {"id": THREAD, "at": 10**14}, 404), ("/record", {"id": THREAD, "number": 99}, 404),
    ("/message", {"id": THREAD, "seq": 99}, 404), ("/certificate", {"id": THREAD, "pos": 1}, 404),
    ("/records", {"since": "yesterday"}, 400), ("/records", {"kind": "nonsense"}, 400), ("/nowhere", {}, 404),
    ("/reply", {"id": THREAD, "seq": 1}, 404), ("/records", {"after_id": "nobody", "after": 1}, 404),
])  # fmt: skip
@pytest.mark.usefixtures("store")
def test_a_wrong_address_says_why(url: str, address: str, parameters: dict[str, Any], status: int) -> None:
    async def steps(client: Client) -> None:
        answer = await client.get(address, params=parameters)
        assert answer.status_code == status, answer.text
        assert "Traceback" not in answer.text

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_another_tenant_sees_nothing(url: str) -> None:
    async def steps(client: Client) -> None:
        assert (await client.get("/thread", params={"id": THREAD})).status_code == 404
        for address in ("/", "/records", "/erasures", "/sample?seed=1&until=2100-01-01T00:00:00%2B00:00"):
            assert "ticket" not in (await client.get(address)).text
        assert "ticket" not in (await client.get("/search", params={"q": "elm"})).text

    visit(url, steps, tenant="somebody else")


def test_pages_of_a_long_thread_are_bounded(url: str) -> None:
    with cs.Store.open(url) as store:
        store.load.messages("long", ({"role": "user", "content": f"message {i} " + "word " * 2000} for i in range(700)))
        for number in range(120):
            span = (5 * number + 1, 5 * number + 5)
            store.compact("long", planned(*span, "short"))
        for number in range(120):
            store.custody.hold("long", reason=f"lawsuit {number}")
        last = store.thread("long").last_pos

    pages: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/thread", {}), ("/view", {}), ("/view", {"at": 650, "beside": 800}), ("/record", {"number": 1}),
        ("/message", {"seq": 1}), ("/reply", {"seq": 700}), ("/records", {}), ("/erasures", {}),
        ("/sample", {"seed": 1, "count": 200, "until": "2100-01-01T00:00:00+00:00"}),
        ("/chart.svg", {}),
    )  # fmt: skip

    async def steps(client: Client) -> None:
        for address, parameters in pages:
            of_thread = {} if address == "/sample" else {"id": "long"}
            answer = await client.get(address, params={**of_thread, **parameters})
            assert answer.status_code == 200, address
            assert len(answer.content) < _MOST_BYTES, address
        first = (await client.get("/thread", params={"id": "long"})).text
        seen = positions(first)
        while seen[-1] < last:
            page = (await client.get("/thread", params={"id": "long", "at": seen[-1] + 1})).text
            assert (">Later</a>" in page) == (seen[-1] + 50 < last)
            seen += positions(page)
        assert seen == list(range(1, last + 1))

    visit(url, steps)


@pytest.mark.parametrize("add", [add_event, add_record])
def test_no_page_shows_a_view_after_an_entry_of_a_later_release(store: cs.Store, url: str, add: Any) -> None:
    store.load.bundle(folded("later", add).lines())
    page = text_of(shown(url, "/thread", id="later"))
    assert f"unknown from pos {POS} on" in page
    assert "active" not in page
    assert "unknown" in text_of(shown(url, "/threads"))
    last = store.thread("later").last_number
    for number in (1, last):
        page = text_of(shown(url, "/record", id="later", number=number))
        assert "to 3 tokens: unknown" in page
    assert f"pos {POS - 1}" in shown(url, "/chart.svg", id="later")

    async def steps(client: Client) -> None:
        for page in ("/view?", f"/view?at={POS}&", "/message?seq=1&", "/reply?seq=4&"):
            answer = await client.get(f"{page}id=later")
            assert answer.status_code == 501, page
            assert "does not know" in answer.text
        assert (await client.get(f"/view?id=later&at={POS - 1}")).status_code == 200

    visit(url, steps)
