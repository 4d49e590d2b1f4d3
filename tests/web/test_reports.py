"""Reports: what they show, and that `verify` finds every change of the file, and offline.py every one of a bundle."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import offline
from compaction_store.errors import InvalidInput
from compaction_store.reporting import ReportDocument, collection, envelope, gather
from compaction_store.reporting.envelope import build
from compaction_store.reporting.page import render
from compaction_store.reporting.verification import verify_report
from web.audited import THREAD

SECRET = "ZX-991-AA"


def made(store: cs.Store, *names: str, **options: Any) -> ReportDocument:
    return gather(store, names or None, tenant="default", made_by="someone", **options)


def changed(page: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """Returns a page made anew, with the right hash, from data that somebody has changed."""
    data = json.loads(envelope.unpacked(envelope.carried_data(page) or ""))
    edit(data)
    return render(ReportDocument.model_validate(data))


def text(page: bytes) -> str:
    shown = re.sub(r"<template.*</template>", "", page.decode()).replace("</td>", " ").replace("</th>", " ")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", shown)).replace("\u2013", "-").split())


def test_a_report_shows_what_an_auditor_asks(store: cs.Store) -> None:
    page = render(made(store, THREAD))
    told = text(page)
    head = store.thread(THREAD).head.hex()
    for wanted in (
        "No findings", head, "Record 1: summary of seqs 1-6, superseded by 3", "Record 3: summary of seqs 1-8, active",
        "RuntimeError: the callback failed",
        "privacy desk", "a lawsuit", "legal", "nightly", SECRET,
    ):  # fmt: skip
        assert wanted in told, wanted
    shown = page.decode()
    assert '<mark class="new" title="new">$999.99</mark>' in shown
    assert f'<mark class="lost" title="lost">{SECRET}</mark>' in shown
    assert '<mark class="kept" title="kept">ZX-990-AA</mark>' in shown
    assert "<svg" in shown
    assert '<td class="n">4</td><td>proved</td>' in shown
    assert re.search(r"Reply Evidence Tokens Written from 2 proved \d+ seq 1 4 proved \d+ seqs 1-3", told)
    for forbidden in ("<script", "<img", "<link", "http://", "javascript:"):
        assert forbidden not in shown.replace('xmlns="http://www.w3.org/2000/svg"', ""), forbidden


def test_after_a_compaction_a_reply_is_said_to_be_written_from_the_record(store: cs.Store) -> None:
    view = store.view(THREAD).for_openai()
    store.append(THREAD, {"role": "assistant", "content": "late"}, view=view)
    assert re.search(r"17 proved \d+ record 3 for seqs 1-8, seqs 9-16", text(render(made(store, THREAD))))


def test_a_report_says_what_was_erased_on_which_basis_and_what_an_attempt_left(store: cs.Store) -> None:
    store.custody.redact(
        THREAD, [2], override="settled", reason="asked for", legal_basis="Art. 17 GDPR", actor="privacy desk"
    )
    told = text(render(made(store, THREAD)))
    assert re.search(
        r"redaction message 2 and records [-0-9, ]+, despite .*; legal basis: Art. 17 GDPR privacy desk", told
    )
    assert "redaction message 16" in told
    store.append("tried", [{"role": "user", "content": f"Order {n}."} for n in range(3)])
    store.compact("tried", lambda ctx: ctx.compact(1, 2, "much too long " * 900))
    assert "the attempt was refused" in text(render(made(store, "tried")))


def test_offline_says_that_it_does_not_compare_the_page_and_which_file_it_cannot_read(
    store: cs.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = made(store, THREAD)
    (tmp_path / "page").write_bytes(render(document))
    (tmp_path / "json").write_bytes(envelope.sealed(document))
    assert offline.main([str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert "the page was not compared with its bundles" in said
    assert said.splitlines()[-1] == "1 bundle, 0 findings; not checked: whether the page shows what its bundles say"
    assert offline.main([str(tmp_path / "json")]) == 0
    assert "was not compared" not in capsys.readouterr().out
    assert offline.main([str(tmp_path / "json"), str(tmp_path / "missing")]) == 2
    assert f"cannot read {str(tmp_path / 'missing')!r}" in capsys.readouterr().err


def test_a_report_verifies_in_both_verifiers_and_as_json(store: cs.Store, tmp_path: Path) -> None:
    document = made(store, THREAD, "other")
    for data in (render(document), envelope.sealed(document)):
        checked = verify_report(data)
        assert (checked.findings, checked.notes) == ([], [])
        assert [(report.thread_id, report.findings) for report in checked.threads] == [(THREAD, ()), ("other", ())]
        (tmp_path / "report").write_bytes(data)
        assert offline.main([str(tmp_path / "report")]) == 0
    assert json.loads(envelope.sealed(document))["report"]["threads"][0]["replies"][0]["evidence"] == "proved"


def test_the_last_line_is_the_hash_that_a_shell_computes(store: cs.Store, tmp_path: Path) -> None:
    page = render(made(store, THREAD))
    (tmp_path / "report.html").write_bytes(page)
    command = ["sh", "-c", f"sed '$d' {tmp_path}/report.html | sha256sum"]
    computed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]
    assert computed == envelope.hash_of(page)
    assert computed in page.splitlines()[-1].decode()


def test_every_changed_byte_is_found_by_both(store: cs.Store, tmp_path: Path) -> None:
    document = made(store, "other")
    for data in (render(document), envelope.sealed(document)):
        for at in range(0, len(data), max(1, len(data) // 150)):
            other = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            (tmp_path / "changed").write_bytes(other)
            # A file that does not begin as a report any more is read as a bundle, which it is not.
            assert verify_report(other).findings or not other.startswith(envelope.BEGINNINGS), at
            assert offline.main([str(tmp_path / "changed")]) == 1, at
    for end in (0, 20, 400, -1):
        (tmp_path / "changed").write_bytes(render(document)[:end])
        assert offline.main([str(tmp_path / "changed")]) == 1


def test_a_page_that_shows_something_else_is_found_though_its_hash_is_right(store: cs.Store) -> None:
    page = render(made(store, THREAD))
    lines = page.rsplit(b"\n", 2)[0]
    forged = envelope.ended(lines.replace(b"privacy desk", b"nobody here") + b"\n")
    assert envelope.own_hash(forged)[0] == envelope.own_hash(forged)[1]
    assert verify_report(forged).findings == ["the page does not match its data"]


def _bundle(data: dict[str, Any], edit: Callable[[str], str]) -> None:
    thread = data["threads"][0]
    thread["bundle"] = [edit(line) for line in thread["bundle"]]


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda d: _bundle(d, lambda line: line.replace("nightly", "yearly")), ""),
        (lambda d: _bundle(d, lambda line: line.replace(SECRET, "ZX-000-AA")), ""),
        (lambda d: d["threads"][0]["bundle"].pop(3), ""),
        (lambda d: d["threads"][0]["standings"].pop(), "different records"),
        (lambda d: d["threads"][0]["standings"][2].update(revoked_by=4), "about record 3"),
        (lambda d: d["threads"][0]["standings"][2].update(superseded_by=2), "about record 3"),
        (lambda d: d["threads"][0]["standings"][2].update(superseded_by=4), "about record 3"),
        (lambda d: d["threads"][0]["replies"][0].update(evidence="reconstructed"), "the receipt of seq 2"),
        (lambda d: d.update(tenant="another"), "different tenants"),
        (lambda d: d.update(content=False), "no content"),
    ],
)
def test_data_that_was_changed_is_found_though_page_and_hash_are_right(
    store: cs.Store, edit: Callable[[dict[str, Any]], None], what: str
) -> None:
    checked = verify_report(changed(render(made(store, THREAD)), edit))
    assert any(what in finding for finding in checked.findings) if what else any(r.findings for r in checked.threads)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<!doctype html>", b"<!doctype html>\n", b'{"report":', b'{"report":{}', b'{"report":[],"sha256":""}\n',
        b'<!doctype html>\n<template id="data">AAAA</template>\n', b'{"report":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_report_is_a_finding_and_no_crash(data: bytes, tmp_path: Path) -> None:
    assert verify_report(data).findings
    (tmp_path / "file").write_bytes(data)
    assert offline.main([str(tmp_path / "file")]) == 1


@pytest.mark.parametrize("of", [{"version": "99.0"}, {"build": "f" * 64}])
def test_a_page_of_another_build_is_compared_and_if_it_differs_the_build_is_named(
    store: cs.Store, of: dict[str, str]
) -> None:
    later = changed(render(made(store, THREAD)), lambda data: data.update(of))
    checked = verify_report(later)
    assert (checked.findings, checked.notes) == ([], [])
    lines = later.rsplit(b"\n", 2)[0]
    checked = verify_report(
        envelope.ended(lines.replace(b"<h1>Audit report</h1>", b"<h1>The audit report</h1>") + b"\n")
    )
    assert checked.findings == []
    assert not checked.is_compared
    [told] = checked.notes
    assert "version 99.0" in told if "version" in of else "build ffffffffffff" in told
    assert f"this is build {build()[:12]}" in told
    assert "was not compared" in told
    # A build may have had other fields.
    data = made(store, THREAD).model_dump() | of | {"sparks": 1}
    carried = json.dumps(data, default=str).encode()
    other = verify_report(b'{"report":%b,"sha256":"%b"}\n' % (carried, envelope.sha256(carried).encode()))
    assert not other.threads
    [told] = other.findings
    assert "this build cannot read the report: sparks is wrong" in told
    assert f"this is build {build()[:12]}" in told


def test_a_report_says_who_undid_a_record_and_why(store: cs.Store) -> None:
    store.revoke(THREAD, 3, reason="it promises a refund", actor="ines", authority={"ticket": "T-9"})
    told = text(render(made(store, THREAD)))
    assert re.search(
        r'Revoked by record 5 kind\W?revocation time\W?[-0-9]{10} [0-9:.]{12} UTC pos\W?23 actor\W?ines login\W?\w+ '
        r'reason\W?it promises a refund authority\W?{"ticket":"T-9"}', told,
    ), told  # fmt: skip
    assert verify_report(render(made(store, THREAD))).findings == []
    assert "refund authority" not in text(render(made(store, THREAD, content=False)))


def test_a_report_says_what_a_rejected_attempt_was_for(store: cs.Store) -> None:
    store.append("tried", [{"role": "user", "content": f"Order {n}."} for n in range(3)])
    store.compact("tried", lambda ctx: ctx.compact(1, 2, "much too long " * 900, reason="the nightly run"))
    told = text(render(made(store, "tried")))
    assert "asked for: the nightly run" in told
    assert "Reason: the nightly run" in told
    assert "its text was not kept" in told


def test_findings_that_a_bundle_does_not_have_are_noted(store: cs.Store) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["threads"][0]["verdict"]["findings"].append({"pos": 1, "what": "x"})

    checked = verify_report(changed(render(made(store, THREAD)), edit))
    assert checked.findings == []
    assert checked.notes == [f"the bundle of {THREAD!r} has none of the findings that the report lists"]


def test_without_content_no_word_is_in_the_file(store: cs.Store) -> None:
    document = made(store, THREAD, content=False)
    page = render(document)
    # Words of a few letters come up in compressed data by chance: it is looked at unpacked.
    for data in (
        page.decode().replace(envelope.carried_data(page) or "", "").encode(),
        envelope.unpacked(envelope.packed(document)),
    ):
        for word in (SECRET, "Elm Street", "a lawsuit", "999.99"):
            assert word.encode() not in data
    assert "RuntimeError" in text(render(document))
    assert verify_report(render(document)).findings == []


def test_a_period_is_about_the_threads_and_the_records_in_it(store: cs.Store) -> None:
    late = datetime.now(UTC)
    store.append("new", {"role": "user", "content": "hello"})
    assert [json.loads(t.bundle[0])["thread_id"] for t in made(store, since=late).threads] == ["new"]
    assert made(store, since=late + timedelta(days=1)).threads == []
    early = made(store, until=late)
    assert sorted(json.loads(t.bundle[0])["thread_id"] for t in early.threads) == ["other", THREAD]
    store.compact(THREAD, lambda ctx: ctx.compact(11, 14, "brief"), actor="later")
    told = text(render(made(store, THREAD, since=late)))
    assert "Record 5:" in told
    assert "Record 3:" not in told
    assert verify_report(render(made(store, THREAD, since=late))).findings == []


def test_an_erased_thread_has_a_report(store: cs.Store) -> None:
    store.custody.release(THREAD, reason="over")
    stub = store.custody.erase(THREAD, reason="asked for")
    name = getattr(stub, "thread_id", None) or next(t.thread_id for t in store.threads() if "erased" in t.thread_id)
    page = render(made(store, name))
    assert SECRET not in text(page)
    assert verify_report(page).findings == []


def test_a_changed_database_is_a_finding_of_the_report(store: cs.Store, superuser: Any) -> None:
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
    superuser.execute(
        "UPDATE compaction_store.messages SET payload = replace(payload::text, 'Elm', 'Oak')::json WHERE seq = 5"
    )
    document = made(store, THREAD)
    assert "1 finding" in text(render(document))
    checked = verify_report(render(document))
    assert checked.findings == []
    assert checked.threads[0].findings
    healthy = changed(render(document), lambda data: data["threads"][0]["verdict"].update(findings=[]))
    assert any("has no findings" in finding for finding in verify_report(healthy).findings)


def test_too_many_threads_are_refused(store: cs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "MOST_THREADS", 1)
    with pytest.raises(InvalidInput, match="at most 1 threads, not 2"):
        made(store, since=datetime.now(UTC) - timedelta(days=1))
    assert len(made(store, THREAD, THREAD).threads) == 1


def test_offline_needs_nothing_of_ours(store: cs.Store, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(render(made(store, THREAD)))
    (tmp_path / "offline.py").write_bytes(Path(offline.__file__).read_bytes())
    alone = subprocess.run(
        [sys.executable, "-I", "-S", "offline.py", "report.html"], cwd=tmp_path, check=False, capture_output=True
    )
    assert (alone.returncode, alone.stdout.count(b"findings  0")) == (0, 2)


def test_a_report_tells_a_name_from_one_that_looks_like_its_escape(store: cs.Store) -> None:
    for name in ("t\u202egpj.exe", r"t\u202egpj.exe"):
        store.append(name, {"role": "user", "content": "hello"})
    page = render(made(store, "t\u202egpj.exe", r"t\u202egpj.exe")).decode()
    assert re.findall(r"<h2[^>]*>Thread ([^<]*)</h2>", page) == [r"t\u202egpj.exe", r"t\\u202egpj.exe"]


def test_a_report_of_a_record_that_was_revoked_does_not_say_that_a_later_one_superseded_it(store: cs.Store) -> None:
    store.revoke(THREAD, 3, reason="wrong")
    store.compact(THREAD, lambda ctx: ctx.compact(1, 12, "All orders went out."))
    document = made(store, THREAD)
    page = text(render(document))
    assert "Revoked by record" in page
    assert "Superseded by" not in page.partition("Record 3: ")[2].partition("Record 4: ")[0]
    assert verify_report(render(document)).findings == []
    told = changed(render(document), lambda data: data["threads"][0]["standings"][2].update(superseded_by=6))
    assert any("about record 3" in each for each in verify_report(told).findings)


@pytest.mark.parametrize("value", [b"[]", b'""', b'{"a":1}'])
@pytest.mark.parametrize("form", ["page", "json"])
def test_a_small_file_does_not_take_all_memory(tmp_path: Path, form: str, value: bytes) -> None:
    """The data of such a page takes a few hundred kilobytes, and unpacks to seventy megabytes."""
    size = 70_000_000 if form == "page" else 30_000_000
    data = b'{"threads":[' + b",".join([value] * (size // (len(value) + 1))) + b"]}"
    path = tmp_path / "report"
    if form == "page":
        packed = base64.b64encode(gzip.compress(data, 1))
        path.write_bytes(envelope.ended(b'<!doctype html>\n<template id="data">' + packed + b"</template>\n"))
    else:
        path.write_bytes(b'{"report":' + data + b',"sha256":"' + hashlib.sha256(data).hexdigest().encode() + b'"}\n')
    ours = (
        "import sys, pathlib; from compaction_store.reporting.verification import verify_report;"
        " print(*verify_report(pathlib.Path(sys.argv[1]).read_bytes()).findings, sep='\\n')"
    )
    for program, code in ((["-c", ours], 0), ([offline.__file__], 1)):
        done = subprocess.run(
            ["prlimit", "--as=1500000000", sys.executable, *program, str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr[-2000:]
        assert "is not a report" in done.stdout or "too long" in done.stdout or "cannot be read" in done.stdout
