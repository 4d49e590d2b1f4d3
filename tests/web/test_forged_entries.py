"""The page of an entry says that it is not as it was written, without a verification of its thread."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.keys import key_of

import compaction_store as cs
from web.audited import THREAD, Client, fill, visit

_RED = "This is not as it was written"
_PLACES: tuple[tuple[str, str, int], ...] = (
    ("/message", "seq", 7),
    ("/record", "number", 3),
    ("/certificate", "pos", 20),
)
_REPLY = '{"role":"assistant","content":"450 EUR"}'
_FORGERIES = {
    "a message's text": (f"messages SET payload = '{_REPLY}'", "seq = 7", "/message"),
    "a message's role": ("messages SET role = 'system'", "seq = 7", "/message"),
    "a record's actor": ("compactions SET actor = 'nobody'", "number = 3", "/record"),
    "a record's text": ("""compactions SET body = '{"replacement":[]}'""", "number = 3", "/record"),
    "an event's actor": ("events SET actor = 'somebody'", "pos = 20", "/certificate"),
}


def shown(url: str) -> dict[str, bool]:
    """Returns which pages of entries have the red line."""
    found = {}

    async def steps(client: Client) -> None:
        for page, name, ordinal in _PLACES:
            answer = await client.get(page, params={"id": THREAD, name: ordinal})
            assert answer.status_code == 200
            found[page] = _RED in answer.text

    visit(url, steps)
    return found


@pytest.mark.one_server("it changes rows as a superuser")
@pytest.mark.parametrize("what", _FORGERIES)
@pytest.mark.usefixtures("store")
def test_the_page_of_a_changed_entry_says_so(url: str, superuser: psycopg.Connection[Any], what: str) -> None:
    assert shown(url) == {"/message": False, "/record": False, "/certificate": False}
    change, where, page = _FORGERIES[what]
    uid = key_of(superuser, THREAD)
    for table in ("messages", "compactions", "events"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER USER".encode())
    superuser.execute(f"UPDATE compaction_store.{change} WHERE thread_uid = %s AND {where}".encode(), (uid,))
    assert [other for other, is_red in shown(url).items() if is_red] == [page]


def test_every_entry_of_a_sound_thread_is_as_it_was_written(url: str, faces: Any) -> None:
    store: Face = faces.open(url)
    with cs.Store.open(url, actor="agent") as filler:
        fill(filler)
        filler.fork(THREAD, "fork")
        filler.custody.redact("fork", [3], reason="asked", override="a court's order")
    for name in (THREAD, "fork"):
        thread = store.thread(name)
        for seq in range(1, thread.last_seq + 1):
            assert store.audit.verify_entry(name, seq=seq) == ()
        for number in range(1, thread.last_number + 1):
            assert store.audit.verify_entry(name, number=number) == ()
        for event in store.audit.events(name):
            assert store.audit.verify_entry(name, pos=event.pos) == ()
        assert [f.what for f in store.audit.verify_entry(name, seq=99)] == ["there is no such message"]
        assert [f.what for f in store.audit.verify_entry(name, pos=2)] == ["there is no such event"]
    for wrong in ({}, {"seq": 1, "pos": 1}, {"seq": 0}, {"number": "x"}):
        with pytest.raises(cs.InvalidInput):
            store.audit.verify_entry(THREAD, **wrong)
