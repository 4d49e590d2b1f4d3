"""The round trips of each operation are those that docs/results.md states, on both faces."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face, Faces
from support.paths import ROOT

import compaction_store as cs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="libpq's trace, which shows every message, is only there"),
    pytest.mark.one_server("on a cluster, each call has one more round trip, which looks up the name"),
]
_ROW = re.compile(r"^\| `([^`]+)`[^|]* \| (\d+) \|$", re.MULTILINE)
_SMALL, _LARGE = cs.TokenBudget(context_window=300), cs.TokenBudget(context_window=100_000)
_LATER = datetime(2999, 1, 1, tzinfo=UTC)


class Wire:
    """The only connection of a store."""

    def __init__(self, face: Face) -> None:
        checked_out = face.store._db.engine.raw_connection()
        driver: Any = checked_out.driver_connection
        self.pgconn: Any = driver.pgconn
        # To prepare a statement takes a round trip, at its fifth use on a connection, which is not counted here.
        driver.wait.prepared.give_up()
        checked_out.close()

    def count(self, call: Callable[[], object]) -> int:
        """Returns how often the server said during a call that it is ready for the next query."""
        with tempfile.TemporaryFile() as log:
            self.pgconn.trace(log.fileno())
            try:
                call()
            finally:
                self.pgconn.untrace()
            log.seek(0)
            return log.read().count(b"ReadyForQuery")


class Operations:
    """Each operation on a thread of its own."""

    def __init__(self, store: Face) -> None:
        self.store = store
        self.wire = Wire(store)

    def thread(self, name: str) -> str:
        self.store.append(
            name,
            [{"role": "user" if i % 2 else "assistant", "content": f"number {i}, and more words"} for i in range(60)],
        )
        return name

    def folded(self, name: str) -> str:
        self.store.compact(self.thread(name), fold)
        return name

    def turn(self, name: str) -> Any:
        """Enters a turn; returns how to leave it."""
        turn = self.store.turn(name)
        enter, leave = ("__enter__", "__exit__") if self.store.runner is None else ("__aenter__", "__aexit__")
        self.run(getattr(turn, enter)())
        return turn, lambda: self.run(getattr(turn, leave)(None, None, None))

    def run(self, result: Any) -> Any:
        return result if self.store.runner is None else self.store._run(result)

    def counts(self) -> Iterator[tuple[str, int]]:
        store, count = self.store, self.wire.count
        said = {"role": "user", "content": "hi"}
        yield "append", count(lambda: store.append("new", [said] * 100))
        assert count(lambda: store.append("new", said, view=store.view("new"))) == 2
        self.thread("read")
        yield "view", count(lambda: store.view("read"))
        yield "view(at=…)", count(lambda: store.view("read", at=7))
        yield "replay", count(lambda: list(store.replay("read")))
        yield "message", count(lambda: store.message("read", 7))
        yield "thread", count(lambda: store.thread("read"))
        yield "threads", count(lambda: list(store.threads()))
        for name in ("compact", "budget", "fit", "send"):
            self.thread(name)
        yield "compact", count(lambda: store.compact("compact", fold))
        yield "compact(budget=…)", count(lambda: store.compact("budget", fold, budget=_SMALL))
        assert count(lambda: store.fit("fit", _SMALL, fold_most)) == 5
        yield "fit", count(lambda: store.fit("fit", _LARGE))
        yield "send", count(lambda: store.send("send", lambda _: said, _LARGE, fold))
        for name in ("revoke", "repair", "records"):
            self.folded(name)
        yield "revoke", count(lambda: store.revoke("revoke", 1))
        yield "repair", count(lambda: store.repair("repair", 1, "again"))
        for name in ("adopt", "rewind", "clear", "fork", "redact", "erase", "hold", "turn"):
            self.thread(name)
        view = store.view("adopt")
        yield "adopt", count(lambda: store.adopt("adopt", [said], view=view, start_seq=2, end_seq=30))
        yield "rewind", count(lambda: store.rewind("rewind", 7))
        yield "clear", count(lambda: store.clear("clear", hide=True))
        yield "fork", count(lambda: store.fork("fork", "child"))
        yield "fork(at=…)", count(lambda: store.fork("fork", "other", at=7))
        begun: list[Any] = []
        entered = count(lambda: begun.extend(self.turn("turn")))
        turn, leave = begun
        assert count(lambda: self.run(turn.append(said))) == 1
        yield "turn", entered + count(leave)
        yield "custody.redact", count(lambda: store.custody.redact("redact", [1, 2, 3], reason="r"))
        yield "custody.erase", count(lambda: store.custody.erase("erase", reason="r"))
        yield "custody.hold", count(lambda: store.custody.hold("hold", reason="r"))
        yield "custody.release", count(lambda: store.custody.release("hold", reason="r"))
        yield "custody.retain", count(lambda: store.custody.retain("hold", _LATER, reason="r"))
        yield "set_metadata", count(lambda: store.set_metadata("hold", {"a": 1}))
        yield "compactions", count(lambda: list(store.compactions("records")))
        yield "audit.events", count(lambda: list(store.audit.events("hold")))
        yield "audit.explain", count(lambda: store.audit.explain("records", 7))
        [reply] = store.append("records", {"role": "assistant", "content": "so"}, view=store.view("records"))
        yield "seen_by", count(lambda: store.seen_by("records", reply.seq))


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 20, "twenty")


def fold_most(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 58, "most", allow={"last_user"})


def test_each_operation_takes_the_round_trips_that_the_page_states(faces: Faces, url: str) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    stated = {name: int(number) for name, number in _ROW.findall(page.partition("## Round trips")[2])}
    store = faces.open(url, pool_size=1)
    assert dict(Operations(store).counts()) == stated
