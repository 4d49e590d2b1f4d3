"""A filter of records is one row: a row that is added is in the store, in the SQL, in the help text and on the form."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from typing import get_type_hints

import pytest

import compaction_store as cs
from compaction_store.models.record_filters import FILTERS, RecordFilters, SampleFilters
from compaction_store.models.vocabulary import OUTCOMES
from web.audited import THREAD, Client, visit

_ADDED = """
import asyncio
import sys

from compaction_store.models.record_filters import FILTERS, Filter

FILTERS["least_pos"] = Filter(
    "least_pos", "number", "Only records from this pos on.", "from pos", "compactions.pos >= :least_pos", metavar="POS",
)
url = sys.argv[1]

import compaction_store as cs
from compaction_store.postgres.queries.across_threads import _compactions
from web.audited import visit

with cs.Store.open(url) as store:
    store.append("t", [{"role": "user", "content": f"{n} " + "long " * 99} for n in range(9)])
    for n in (2, 4):
        store.compact("t", lambda ctx: ctx.compact(1, n, "short"))
    print([record.number for record in store.compactions(least_pos=11)])
    try:
        next(store.compactions(least_pos=0))
    except cs.InvalidInput as error:
        print(error)

async def steps(client):
    answer = await client.get("/records", params={"least_pos": 11})
    text = answer.text
    print(answer.status_code, '<label for="least_pos">from pos</label>' in text, "--least-pos=11" in text)
    print('number=2"' in text, 'number=1"' in text)

visit(url, steps)
print("compactions.pos >= %(least_pos)s::int8" in _compactions(("least_pos",), False, False))

from compaction_store.cli.program import program
for arguments in (["compactions", "--help"], ["compactions", "--json", "--least-pos", "11", "--url", url]):
    sys.argv = ["compaction-store", *arguments]
    try:
        program(prog_name="compaction-store", args=arguments)
    except SystemExit:
        pass
"""


def test_an_added_row_is_everywhere(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ADDED, url], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, ["tests", *sys.path])), "COLUMNS": "200"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:5] == ["[2]", "least_pos must be an integer >= 1, not 0", "200 True True", "True False", "True"], (
        done.stdout[:800], done.stderr[-800:],
    )  # fmt: skip
    assert any("--least-pos POS" in line and "Only records from this pos on." in line for line in lines)
    assert lines[-1].startswith('{"thread_id":"t"')
    assert '"number":2' in lines[-1]
    assert '"number":1,' not in done.stdout.partition("--help")[2]


def test_the_types_of_the_filters_are_those_of_the_rows() -> None:
    assert list(FILTERS) == list(get_type_hints(RecordFilters))
    assert [row.name for row in FILTERS.values() if row.is_of_samples] == list(get_type_hints(SampleFilters))
    for row in FILTERS.values():
        assert row.where or row.holds is not None
        assert bool(row.choices) == (row.form in ("choice", "choices"))


def test_several_outcomes_are_one_question(url: str, store: cs.Store) -> None:
    every = {outcome: [each.number for each in store.compactions(THREAD, outcome=outcome)] for outcome in OUTCOMES}
    assert len(every["failed"]) == 1
    wanted = sorted(every["failed"] + every["rejected"])
    assert [each.number for each in store.compactions(THREAD, outcome=["rejected", "failed"])] == wanted
    assert store.audit.sample(1, outcome=("failed", "applied")).population == len(every["applied"])
    for wrong in ([], [None], ["failed", "applie"], 5, {"failed"}):
        with pytest.raises(cs.InvalidInput, match=r"outcome must be one of applied, rejected, failed, observed"):
            store.compactions(outcome=wrong)  # type: ignore[arg-type]

    async def steps(client: Client) -> None:
        page = await client.get("/records?outcome=failed&outcome=rejected")
        found = sorted(map(int, re.findall(r'data-head="Record" class="n"><a href="[^"]*number=(\d+)"', page.text)))
        assert found == wanted
        assert page.text.count(" checked>") == 2
        assert "--outcome=failed --outcome=rejected" in page.text
        assert "outcome=failed&amp;outcome=rejected" in page.text
        drawn = await client.get("/sample?seed=1&outcome=failed&outcome=applied", follow_redirects=True)
        assert f"{len(every['applied'])} of {len(every['applied'])} records" in drawn.text
        judged = html.unescape(re.search(r'href="(/record\?[^"]*)"', drawn.text)[1])  # type: ignore[index]
        back = re.search(r'href="(/sample\?[^"]*)"', (await client.get(judged)).text)
        assert back is not None
        assert html.unescape(back[1]).count("outcome=") == 2
        for wrong in ("actor=a&actor=b", "outcome=failed&outcome=applie"):
            assert (await client.get(f"/records?{wrong}")).status_code == 400

    visit(url, steps)
    command = [sys.executable, "-m", "compaction_store", "compactions", "--json", "--url", url]
    done = subprocess.run(
        [*command, "--outcome", "failed", "--outcome", "rejected"], capture_output=True, text=True, check=True
    )
    assert sorted(json.loads(line)["number"] for line in done.stdout.splitlines()) == wanted


def test_a_filter_that_there_is_not_is_refused_by_name(url: str) -> None:
    with cs.Store.open(url) as store:
        with pytest.raises(cs.InvalidInput, match=r"the filters must be among outcome, .*; not 'acto'"):
            store.compactions(acto="nightly")  # type: ignore[call-arg]
        with pytest.raises(cs.InvalidInput, match=r"must be among .*; not 'covering'"):
            store.audit.sample(1, covering=3)  # type: ignore[call-arg]
