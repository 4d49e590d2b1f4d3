"""After each verb, every reader reads the thread: the command line, bundles, both verifiers, a report and the pages."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import Forks, Run
from support.databases import TEMPLATE, Server, database
from support.rewinding import many
from web.audited import Client, visit

import compaction_store as cs
from compaction_store import offline
from compaction_store.models import Observed

Act = Callable[[Run, cs.Store], None]
_SUMMARIZER = ("--summarizer", "state")


def rewind(run: Run, _store: cs.Store) -> None:
    run("rewind", "t", "5", "--reason", "asked again")


def clear(run: Run, _store: cs.Store) -> None:
    run("clear", "t")


def hide(run: Run, store: cs.Store) -> None:
    run("clear", "t", "--hide")
    store.append("t", many(1, 2))


def use_a_name_again(run: Run, _store: cs.Store) -> None:
    run("erase", "t", "--reason", "asked", "--yes")
    run("append", "t", "-", stdin='{"role":"user","content":"new"}')


def fork(run: Run, _store: cs.Store) -> None:
    run("fork", "t", "other", "--at", "10")


def adopt(run: Run, store: cs.Store) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b-1"}
    store.load.messages("t", [*many(11, 12), Observed("compact_boundary", summary_text="all of it", provider=boundary)])
    observed = store.thread("t").last_number
    assert run.json("compactions", "t", "--outcome", "observed")[0]["number"] == observed
    assert (
        f"compaction {observed} is adopted by record {observed + 1}"
        in run("adopt", "t", str(observed), "--table").stdout
    )
    assert "adopted already" in run("adopt", "t", str(observed), "--table").stdout


def repair(run: Run, _store: cs.Store) -> None:
    run("repair", "t", "1", *_SUMMARIZER, "--reason", "it lost the number")


def send(_run: Run, store: cs.Store) -> None:
    calls: list[cs.View] = []

    def call(view: cs.View) -> dict[str, Any]:
        calls.append(view)
        if len(calls) == 1:
            raise RuntimeError("prompt is too long: 9 tokens > 8 maximum")
        return {"role": "assistant", "content": "at last"}

    done = store.send("t", call, cs.TokenBudget(10**6), lambda ctx: ctx.compact(7, 8, "two"))
    store.append("t", done.reply, view=done.request)


def turn(run: Run, store: cs.Store) -> None:
    command = [sys.executable, "-m", "compaction_store", "append", "t", "-"]
    before = store.thread("t").last_seq
    run("turn", "t", "--", *command, stdin='{"role":"user","content":"in turn"}')
    assert store.thread("t").last_seq == before + 1


def abandon(run: Run, store: cs.Store) -> None:
    store._db.call(_lease, store.thread("t").thread_uid)
    run("compact", "t", "--window", "60", "--force", "--strategy", "ladder:keep_recent=2", *_SUMMARIZER)
    assert "abandoned" in run("compactions", "t", "--outcome", "failed", "--table").stdout


def _lease(connection: Any, uid: Any) -> None:
    connection.execute(
        "SELECT compaction_store.lease(%s, 'default', 't', gen_random_uuid(), 0.000001, 'the dead one')", (uid,)
    )


@pytest.fixture
def run(forks: Forks, url: str, tmp_path: Path) -> Run:
    return Run(forks, tmp_path, url)


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url) as opened:
        yield opened


@pytest.mark.parametrize(
    "act", [rewind, clear, hide, use_a_name_again, fork, adopt, repair, send, turn, abandon],
    ids=lambda act: act.__name__,
)  # fmt: skip
def test_every_reader_reads_what_a_verb_wrote(
    run: Run, store: cs.Store, url: str, act: Act, server: Server, request: pytest.FixtureRequest
) -> None:
    store.append("t", many(1, 10))
    store.compact("t", lambda ctx: ctx.compact(1, 4, "four of them"))
    act(run, store)
    threads = [thread.thread_id for thread in store.threads(hidden=True)]
    bundles = {name: list(store.audit.export(name)) for name in threads}
    for name in threads:
        read(run, store, url, name)
        assert cs.verify_bundle(bundles[name]).findings == ()
        assert offline.check(io.BytesIO(b"".join(bundles[name]))).findings == []
    for other in database(server, TEMPLATE, request):
        with cs.Store.open(other) as there:
            for name in threads:
                there.load.bundle(bundles[name])
                assert list(there.audit.export(name))[1:-1] == bundles[name][1:-1]
                found = there.thread(name, hidden=True)
                assert (found.view_tokens, found.hidden_seq) == (
                    store.thread(name, hidden=True).view_tokens, store.thread(name, hidden=True).hidden_seq,
                )  # fmt: skip


def read(run: Run, store: cs.Store, url: str, name: str) -> None:
    """Reads a thread with each verb that reads, and on the pages."""
    thread = store.thread(name, hidden=True)
    assert run.json("verify", name)[0]["findings"] == []
    assert len(run.json("replay", name)) == thread.last_seq
    assert len(run.json("compactions", name)) == thread.last_number
    for number in range(1, thread.last_number + 1):
        [found] = run.json("tree", name, str(number))
        assert found["records"][0]["number"] == number
    [explained] = run.json("explain", name, str(thread.last_seq))
    covering = list(store.compactions(name, covering=thread.last_seq))
    assert [record["number"] for record in explained["records"]] == [record.number for record in covering]
    assert [event["pos"] for event in run.json("events", name)] == [event.pos for event in store.audit.events(name)]
    assert run.json("stats", name)[0]["view_tokens"] == thread.view_tokens == run.json("view", name)[0]["tokens"]
    file = str(run.folder / "report.html")
    run("report", name, "--to", file)
    assert run("verify", file, "--table").stdout.splitlines()[-1] == "1 report, 0 findings"

    async def steps(client: Client) -> None:
        pages = [("/thread", {}), ("/view", {}), ("/chart.svg", {}), ("/message", {"seq": thread.last_seq})]
        pages += [("/record", {"number": number}) for number in range(1, thread.last_number + 1)]
        for page, options in pages:
            answer = await client.get(page, params={"id": name, **options})
            assert answer.status_code == 200, (page, options, answer.text)

    visit(url, steps)
