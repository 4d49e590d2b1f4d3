"""A failover to a standby that lacks the newest messages, under a callback that has read them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.faces import Faces

import compaction_store as cs
from reliability.rigs.ground import Postgres, superuser
from reliability.rigs.proxy import Proxy


def orders(what: str, count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{what} {i}"} for i in range(count)]


def test_a_summary_of_messages_that_a_failover_lost_is_not_committed_over_others(faces: Faces) -> None:
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with Postgres() as primary:
        url = primary.database()
        name = url.split("/")[3].split("?")[0]
        standby = primary.standby()
        try:
            standby.start()
            with Proxy(url, random.Random(1)) as way:
                store = faces.open(way.url)
                store.append("t", orders("kept", 10))
                standby.catch_up(primary)
                standby.kill()
                seen = store.append("t", orders("lost", 14))

                def during(ctx: cs.CompactionContext) -> None:
                    primary.kill()
                    standby.start()
                    standby.promote()
                    way.retarget(standby.at(name))
                    with cs.Store.open(standby.at(name)) as other:
                        other.append("t", orders("new", 20))
                    ctx.compact(11, 20, "the customer cancelled ten orders")

                with pytest.raises(cs.SpanConflict, match="another entry at pos 24"):
                    store.compact("t", during)
                with pytest.raises(cs.HeadConflict):
                    store.append("t", orders("after", 1), expected_head=seen.head)
                assert list(store.compactions("t")) == []
                assert [m["content"] for m in store.view("t").messages[10:20]] == [f"new {i}" for i in range(10)]
                assert store.audit.verify("t").findings == ()
                with superuser(standby.at(name)) as connection:
                    assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
                store.close()
        finally:
            standby.remove()
