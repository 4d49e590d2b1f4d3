"""A thread is erased while a page reads it, and another thread gets its name: no page joins the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.compactable_thread import span

import compaction_store as cs
from compaction_store.postgres.calling._async.connections import AsyncConnections
from web.audited import ADDRESSES, THREAD, Client, fill, visit
from web.test_hostile_names import Forms
from web.test_verdicts import reviewing

_OF_ONE = [each for each in ADDRESSES if each[1].get("id") == THREAD]
_LATER = "quicksilver"


def _give_to_another(url: str) -> None:
    """Erases the thread, and gives its name to another thread with more of everything."""
    with cs.Store.open(url, actor=_LATER) as store:
        store.custody.release(THREAD, reason="ended", actor="desk")
        store.custody.erase(THREAD, reason="asked for", actor="desk")
        for _ in range(15):
            store.append(THREAD, [
                {"role": "user", "content": f"{_LATER} " * 9}, {"role": "assistant", "content": f"{_LATER} yes"},
            ])  # fmt: skip
        for seq in (1, 5, 9, 13, 17, 21):
            store.compact(THREAD, span(seq, seq + 3, cs.Summary(_LATER, model=_LATER)))
        store.custody.hold(THREAD, reason=_LATER)


def _after_call(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], None]) -> None:
    """Does something once, after a number of calls to the database."""
    call: Any = AsyncConnections.call
    done = 0

    async def counted(self: AsyncConnections, *arguments: Any, **keywords: Any) -> Any:
        nonlocal done
        result = await call(self, *arguments, **keywords)
        done += 1
        if done == count:
            await asyncio.to_thread(act)
        return result

    monkeypatch.setattr(AsyncConnections, "call", counted)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("page", "parameters"), _OF_ONE)
def test_a_page_shows_one_thread_although_its_name_goes_to_another(
    url: str, monkeypatch: pytest.MonkeyPatch, page: str, parameters: dict[str, Any], count: int
) -> None:
    with cs.Store.open(url, actor="agent") as store:
        fill(store)

    async def steps(client: Client) -> None:
        # The first request also looks at the whole store.
        await client.get("/")
        _after_call(monkeypatch, count, lambda: _give_to_another(url))
        answer = await client.get(page, params=parameters)
        assert answer.status_code in (200, 404, 409, 410)
        assert _LATER not in answer.text
        monkeypatch.undo()
        if page == "/thread" and not parameters.get("number"):
            assert _LATER in (await client.get(page, params={"id": THREAD})).text

    visit(url, steps)


def test_a_verdict_is_not_written_to_a_thread_that_gets_the_name_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cs.Store.open(url, actor="agent") as store:
        fill(store)

    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": THREAD, "number": 3})
        form = next(fields for action, _, fields in Forms(page.text).found if action == "/verdict") | {"verdict": "bad"}
        _after_call(monkeypatch, 1, lambda: _give_to_another(url))
        answer = await client.post("/verdict", data=form)
        assert answer.status_code == 409
        assert "was erased" in answer.text
        monkeypatch.undo()
        assert (await client.post("/verdict", data=form)).status_code == 409
        del form["key"]
        assert (await client.post("/verdict", data=form)).status_code == 409

    reviewing(url, steps)
    with cs.Store.open(url) as store:
        assert not list(store.audit.events(kind="verdict"))
