"""A reader that knows only docs/integrity.md makes the views of a thread from its bundle."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from support.faces import Face
from support.rewinding import many

import compaction_store as cs

Line = dict[str, Any]


ERASED = {"role": "user", "content": "(A message was erased here.)"}


def view(lines: Iterable[Line], at: int) -> list[tuple[int, int, int, list[Any]]]:
    """Returns the first and last seq, the tokens and the messages of each element of the view at a pos."""
    known = [line for line in lines if line.get("pos", at + 1) <= at]
    applied = [line for line in known if line["type"] == "compaction" and line["outcome"] == "applied"]
    revoked = {line["revokes"] for line in applied}
    in_force = [
        line
        for line in applied
        if line["kind"] != "revocation"
        and line["number"] not in revoked
        and (line["redacted_pos"] is None or line["redacted_pos"] > at)
    ]
    found = []
    for record in in_force:
        start, end = record["start_seq"], record["end_seq"]
        around = (o for o in in_force if o["start_seq"] <= start and end <= o["end_seq"])
        if max(o["number"] for o in around) == record["number"]:
            shown = [ERASED] if record["body"] is None else json.loads(record["body"])["replacement"]
            found.append((start, end, record["tokens_after"], shown))
    folded = {seq for start, end, *_ in found for seq in range(start, end + 1)}
    for line in known:
        if line["type"] == "message" and line["seq"] not in folded:
            payload = ERASED if line["payload"] is None else json.loads(line["payload"])
            found.append((line["seq"], line["seq"], line["tokens"], [payload]))
    return sorted(found, key=lambda element: element[0])


def of_everything(store: Face) -> None:
    store.append("t", many(1, 20))
    for start, end in ((1, 4), (6, 9), (1, 9), (1, 9), (12, 14)):
        store.compact("t", lambda ctx, start=start, end=end: ctx.compact(start, end, "s", allow={"larger"}))
    store.revoke("t", 4)
    store.compact("t", lambda ctx: ctx.remove(16, 17))
    store.compact("t", lambda ctx: ctx.compact(18, 18, "long " * 900))
    store.rewind("t", 13)
    store.append("t", many(21, 24))
    store.repair("t", 3, "again", allow={"larger"})
    store.custody.redact("t", 7, reason="asked")
    store.adopt("t", [{"role": "user", "content": "by the provider"}], start_seq=22, end_seq=23, view=store.view("t"))
    store.clear("t", hide=True)
    store.append("t", many(25, 26))


def test_the_rules_of_the_page_are_enough_to_make_every_view(store: Face) -> None:
    of_everything(store)
    store.fork("t", "fork", at=30)
    for name in ("t", "fork"):
        lines = [json.loads(line) for line in store.audit.export(name)]
        first = next(line["pos"] for line in lines if line["type"] == "message")
        last = store.thread(name).last_pos
        assert last > 30
        for at in range(first, last + 1):
            shown = store.view(name, at=at)
            elements = [(e.seq, e.end_seq, e.tokens, list(e.messages)) for e in shown.elements]
            assert view(lines, at) == elements, (name, at)
        kinds = {line["kind"] for line in lines if line["type"] == "compaction"}
    assert kinds >= {"summary", "revocation", "removal", "rewind"}
    assert cs.verify_bundle(list(store.audit.export("t"))).findings == ()
