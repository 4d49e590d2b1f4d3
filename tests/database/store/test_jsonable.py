"""Every value that the package returns has a form that json.dumps takes."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

from support.faces import Face

import compaction_store as cs
from compaction_store.models import CompactionTree

TALK = [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "y " * 90}] * 4


def written(value: Any) -> Any:
    return json.loads(json.dumps(value.as_dict(), allow_nan=False))


def test_every_public_value_can_be_written_as_json(store: Face) -> None:
    [first, *_] = store.append("t", TALK, meta={"from": "test"})
    before = store.view("t")
    [reply] = store.append("t", {"role": "assistant", "content": "So."}, view=before)
    store.append("t", {"role": "user", "content": "Thanks."})
    run = store.compact("t", lambda ctx: ctx.compact(1, 2, "one"), lambda ctx: ctx.compact(3, 4, 5), actor="anna")
    store.custody.redact("t", 5, reason="asked for")
    budget = cs.TokenBudget(100_000)
    values: dict[str, Any] = {
        "Message": first, "View": store.view("t"), "FittedView": store.fit("t", budget),
        "Element": before.elements[0], "CompactionRun": run,
        "Compaction": run[0], "CompactionPlan": store.plan("t", lambda ctx: ctx.compact(3, 4, "two")),
        "Thread": store.thread("t"), "SeenView": store.seen_by("t", reply.seq),
        "Event": next(iter(store.audit.events("t"))),
        "Explanation": store.audit.explain("t", 5), "CompactionTree": store.audit.tree(run[0]),
        "Report": store.audit.verify("t"),
        "Redaction": store.custody.redact("t", 6, reason="asked for", dry_run=True),
        "Found": next(iter(store.audit.search("thanks"))),
        "Summary": cs.Summary("text", replacement=({"role": "user", "content": "text"},)),
    }  # fmt: skip
    for name, value in values.items():
        assert type(value).__name__ == name
        assert written(value), name
    assert written(values["Thread"])["head"] == store.thread("t").head.hex()
    assert written(first)["payload"] == TALK[0]
    assert written(first)["created_at"] == first.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    record = written(run[0])
    assert (record["status"], record["run_id"], record["body"]["summary_text"]) == ("active", str(run[0].run_id), "one")
    assert written(values["FittedView"])["measured"]["source"] == "local"
    assert [error["type"] for error in written(run)["errors"]] == ["InvalidCallback"]
    assert written(values["Explanation"])["redaction"]["kind"] == "redaction"


def test_a_deep_tree_can_be_written_too(store: Face) -> None:
    store.append("t", TALK)
    record = store.compact("t", lambda ctx: ctx.compact(1, 2, "one"))[0]
    tree = CompactionTree(record, ())
    for _ in range(3000):
        tree = CompactionTree(record, (tree,))
    told = written(tree)
    assert (len(told["records"]), told["records"][0]["inside"], told["records"][-1]["inside"]) == (3001, [1], [])
