"""What a worker would compact, and what is being compacted, can be listed."""

from __future__ import annotations

import csv
import json
from typing import Any

import psycopg

import compaction_store as cs
from cli.program import SECRET, Run

_WINDOW = ("--window", "1000")


def _fill(store: cs.Store, *threads: str) -> None:
    for thread in threads:
        store.append(thread, [{"role": "user", "content": f"{SECRET} " + f"{i} and the tide " * 40} for i in range(12)])
        store.set_metadata(thread, {"note": SECRET})


def _listed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments).stdout.splitlines()]


def test_threads_that_are_due_are_listed_as_a_worker_would_take_them(run: Run, store: cs.Store) -> None:
    _fill(store, "a", "b")
    store.append("small", {"role": "user", "content": "hi"})
    budget = cs.TokenBudget(1000, trigger=0.8, target=0.5)
    found = _listed(run, "due", *_WINDOW)
    assert [line["thread_id"] for line in found] == [thread.thread_id for thread in store.due(budget)]
    assert {line["thread_id"] for line in found} == {"a", "b"}
    assert all(line["view_tokens"] > 800 and "metadata" not in line for line in found)
    assert len(_listed(run, "due", *_WINDOW, "--limit", "1")) == 1
    assert len(_listed(run, "due", "--window", "1000", "--trigger", "1", "--target", "1")) == 3
    assert _listed(run, "due", "--window", "1000000") == []
    assert _listed(run, "due", *_WINDOW, "--idle", "60") == []
    rows = list(csv.DictReader(run("due", *_WINDOW, "--csv").stdout.splitlines()))
    assert {row["thread_id"] for row in rows} == {"a", "b"}
    run("worker", *_WINDOW, "--once", "--strategy", "ladder:keep_recent=2")
    assert run("due", *_WINDOW, "--table").stdout.strip() == "no thread of tenant 'default' is due"


def test_all_tenants_are_listed_with_their_names(run: Run, store: cs.Store) -> None:
    _fill(store.of_tenant("other"), "a")
    assert _listed(run, "due", *_WINDOW) == []
    [line] = _listed(run, "due", *_WINDOW, "--all-tenants")
    assert (line["tenant"], line["thread_id"]) == ("other", "a")


def test_a_run_is_in_the_list_of_leases_and_not_in_that_of_due_threads(run: Run, store: cs.Store) -> None:
    _fill(store, "a", "b")
    seen: dict[str, Any] = {}

    def looking(ctx: cs.CompactionContext) -> None:
        seen["leases"] = _listed(run, "leases", *_WINDOW)
        seen["table"] = run("leases", *_WINDOW, "--table").stdout
        seen["due"] = _listed(run, "due", *_WINDOW)
        ctx.compact(1, 9, "the tide")

    record = next(iter(store.compact("a", looking, budget=cs.TokenBudget(1000), actor="nightly")))
    [lease] = seen["leases"]
    assert (lease["thread_id"], lease["actor"], lease["run_id"]) == ("a", "nightly", str(record.run_id))
    assert lease["since"] < lease["until"]
    assert "nightly" in seen["table"]
    assert [line["thread_id"] for line in seen["due"]] == ["b"]
    assert run("leases", *_WINDOW, "--table").stdout.strip() == "no thread of tenant 'default' is being compacted"


def test_without_a_window_all_leases_are_listed_with_the_expired_ones(
    run: Run, store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    store.append("small", {"role": "user", "content": "hi"})
    # As a run does that is killed at once.
    superuser.execute("SELECT compaction_store.lease(NULL, 'default', 'small', gen_random_uuid(), 3600, 'nightly')")
    [lease] = _listed(run, "leases")
    assert (lease["thread_id"], lease["actor"], lease["expired"]) == ("small", "nightly", False)
    assert _listed(run, "leases", *_WINDOW) == []
    superuser.execute(
        "UPDATE compaction_store.heads SET lease_until = now() - interval '1 h' WHERE lease_run IS NOT NULL"
    )
    [lease] = _listed(run, "leases")
    assert lease["expired"] is True
    assert "expired" in run("leases", "--table").stdout
    store.compact("small", lambda _: None, budget=cs.TokenBudget(1000), force=True)
    assert _listed(run, "leases") == []


def test_a_wrong_budget_is_refused(run: Run) -> None:
    assert "--window" in run("due", code=2).stderr
    assert "needs --window" in run("leases", "--trigger", "0.5", code=2).stderr
    for verb in ("due", "leases"):
        assert "--trigger" in run(verb, *_WINDOW, "--trigger", "most", code=2).stderr
