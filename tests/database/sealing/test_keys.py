"""The keys in their folder, the destroying of them, and what writing to a sealed store costs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.messages.keys import Key
from compaction_store.postgres import queries
from compaction_store.postgres.cluster import Server
from compaction_store.postgres.queries import ThreadKey
from compaction_store.sealing import Keys, owner_of


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path / "keys")


@pytest.fixture
def sealed(faces: Faces, url: str, keys: Keys) -> Face:
    return faces.open(url, seal=keys)


@pytest.fixture
def other(url: str, keys: Keys) -> Iterator[cs.Store]:
    """A store of another process."""
    with cs.Store.open(url, seal=keys) as store:
        yield store


def says(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"number {number}"}


# ---- the folder


def test_only_the_owner_of_the_folder_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    Keys.make(folder).of_owner("o")
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


@pytest.mark.parametrize(("left", "right"), [
    (("a\nb", None, "c"), ("a", None, "b\nc")), (("a\nb", "c"), ("a", "b\nc")), (("a", "b"), ("a", None, "b")),
    (('a", "b', "c"), ("a", 'b", "c')),
])  # fmt: skip
def test_no_two_owners_have_one_key(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    assert owner_of(*left) != owner_of(*right)


def test_a_key_that_is_marked_as_destroyed_does_not_open_although_its_file_is_there(tmp_path: Path, keys: Keys) -> None:
    key = keys.of_owner("o")
    (tmp_path / "keys" / f"{key.id.hex()}.destroyed").touch()
    for each in (keys, Keys(tmp_path / "keys")):
        assert each.by_id(key.id) is None
    # The process that died while it destroyed the key may run again.
    assert keys.id_of("o") == key.id
    assert not keys.destroy("o")
    assert sorted(path.suffix for path in (tmp_path / "keys").iterdir()) == [".destroyed", ".key"]
    assert keys.of_owner("o").id != key.id


@pytest.mark.parametrize("damage", [b"", b"?", b"A" * 80, b"\xff" * 60, b"QUJD" * 20])
def test_a_damaged_key_is_a_clear_error_and_not_an_erasure(tmp_path: Path, keys: Keys, damage: bytes) -> None:
    key = keys.of_owner("o")
    (tmp_path / "keys" / f"{key.id.hex()}.key").write_bytes(damage)
    for each in (keys, Keys(tmp_path / "keys")):
        with pytest.raises(cs.errors.Unreadable, match="that its master key has wrapped"):
            each.by_id(key.id)
        with pytest.raises(cs.errors.Unreadable, match="that its master key has wrapped"):
            each.of_owner("o")
    [pointer] = (tmp_path / "keys").glob("*.owner")
    pointer.write_bytes(damage)
    with pytest.raises(cs.errors.Unreadable, match="must have the id of a key"):
        Keys(tmp_path / "keys").of_owner("o")


class Destroying:
    """A master key in whose use another process destroys the owner's key."""

    then: Callable[[], object] = staticmethod(lambda: None)

    def wrap(self, key: bytes, _name: bytes) -> bytes:
        return key

    def unwrap(self, wrapped: bytes, _name: bytes) -> bytes:
        self.then()
        return wrapped


@pytest.mark.parametrize("error", [None, ValueError, FileNotFoundError])
def test_a_key_that_is_destroyed_while_it_is_read_is_destroyed(tmp_path: Path, error: type[Exception] | None) -> None:
    master = Destroying()
    keys = Keys.make(tmp_path / "keys", master=master)
    key = keys.of_owner("o")
    other = Keys(tmp_path / "keys", master=Destroying())

    def then() -> None:
        other.destroy("o")
        if error is not None:
            raise error

    master.then = then
    found = Keys(tmp_path / "keys", master=master).by_id(key.id)
    assert found is None or error is None
    assert keys.by_id(key.id) is None


def test_keys_that_are_made_and_destroyed_at_once_leave_one_key(tmp_path: Path, keys: Keys) -> None:
    workers = 4
    barrier = Barrier(workers)

    def work(_number: int) -> list[bytes]:
        own = Keys(tmp_path / "keys")
        barrier.wait()
        return [own.of_owner("o").id for _ in range(30) if own.destroy("o") or True]

    with ThreadPoolExecutor(workers) as pool:
        made = {key for ids in pool.map(work, range(workers)) for key in ids}
    last = keys.of_owner("o").id
    live = [path for path in (tmp_path / "keys").glob("*.key") if path.name != "master.key"]
    assert [path.stem for path in live] == [last.hex()]
    # Each key that something was sealed with is there or was destroyed.
    assert all(keys.by_id(key) is None for key in made - {last})


# ---- shredding


def test_a_subject_without_a_key_is_not_shredded(sealed: Face, faces: Faces, url: str) -> None:
    faces.open(url).append("t", says(0), subject="person 7")
    with pytest.raises(cs.NotConfigured, match="nothing was erased"):
        sealed.custody.shred("person 7", reason="asked for")
    assert [m.payload for m in sealed.replay("t")] == [says(0)]
    assert [t.thread_id for t in sealed.threads()] == ["t"]


def test_a_repeated_shred_is_one_event(sealed: Face, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        sealed.append(name, says(0), subject="person 7")

    def stopped(_owner: str) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keys, "destroy", stopped)
        with pytest.raises(KeyboardInterrupt):
            sealed.custody.shred("person 7", reason="asked for", actor="a")
    event = sealed.custody.shred("person 7", reason="asked for", actor="b")
    assert [e for e in sealed.audit.events("compaction-store:log") if e.kind == "shred"] == [event]
    assert (event.body["threads"], event.actor) == (2, "a")
    assert keys.id_of(owner_of("default", "person 7")) is None


def test_what_is_appended_while_a_subject_is_shredded_is_erased(
    sealed: Face, keys: Keys, monkeypatch: pytest.MonkeyPatch, other: cs.Store
) -> None:
    sealed.append("a", says(0), subject="person 7")
    destroy = keys.destroy

    def late(owner: str) -> bool:
        other.append("late", says(1), subject="person 7")
        return destroy(owner)

    monkeypatch.setattr(keys, "destroy", late)
    sealed.custody.shred("person 7", reason="asked for")
    assert all(t.erased_pos for t in sealed.threads())
    assert len(list(sealed.threads())) == 2


# ---- the owner of a new thread


@pytest.mark.parametrize("write", [
    lambda store: store.append("t", says(1)), lambda store: store.append("t", [says(1), says(2)]),
    lambda store: store.load.messages("t", [says(1)], key="k"),
], ids=["append", "append_many", "load"])  # fmt: skip
def test_a_first_write_that_loses_the_race_is_sealed_for_the_subject(
    sealed: Face, keys: Keys, monkeypatch: pytest.MonkeyPatch, other: cs.Store, write: Callable[[Face], object]
) -> None:
    raced: list[object] = []
    call = Server.call

    def racing(server: Server, query: Any, connection: Any, *arguments: Any) -> Any:
        if query in (queries.append, queries.load) and not raced:
            raced.append(query)
            other.append("t", says(0), subject="person 7")
        return call(server, query, connection, *arguments)

    monkeypatch.setattr(Server, "call", racing)
    write(sealed)
    assert [m.payload for m in sealed.replay("t")][:2] == [says(0), says(1)]
    keys.destroy(owner_of("default", "person 7"))
    assert all(m.payload is None for m in sealed.replay("t"))


def test_a_name_that_passed_to_another_thread_has_the_key_of_that_thread(
    sealed: Face, keys: Keys, other: cs.Store
) -> None:
    sealed.append("t", says(0), subject="person 7")
    sealed.set_metadata("t", {"a": 1})
    other.custody.erase("t", reason="asked for")
    other.append("t", says(1), subject="person 8")
    sealed.set_metadata("t", {"a": 2})
    sealed.append("t", says(2))
    keys.destroy(owner_of("default", "person 7"))
    assert sealed.thread("t").metadata == {"a": 2}
    assert [m.payload for m in sealed.replay("t")] == [says(1), says(2)]


# ---- what it costs


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that only look for owners, as the sealed server sends them."""
    found: list[str] = []
    call = Server.call

    def counted(server: Server, query: Any, connection: Any, *arguments: Any) -> Any:
        if query in (queries.thread, queries.subjects_of):
            found.append(query.__name__)
        return call(server, query, connection, *arguments)

    monkeypatch.setattr(Server, "call", counted)
    return found


def test_the_owner_of_a_thread_is_looked_up_once_in_a_process(
    sealed: Face, faces: Faces, url: str, keys: Keys, looked_up: list[str]
) -> None:
    def write(store: Face, name: str) -> None:
        for number in range(3):
            store.append(name, [says(n) for n in range(number + 1)])
        [record] = store.compact(name, lambda ctx: ctx.compact(1, 2, "s"))
        store.revoke(name, record.number)
        store.set_metadata(name, {"a": 1})

    write(sealed, "a")
    assert looked_up == ["thread"]
    looked_up.clear()
    sealed.append("b", says(0), subject="person 7")
    sealed.append("b", says(1), subject="person 7")
    write(sealed, "b")
    sealed.load.messages("b", [says(5)], key="k")
    sealed.load.messages("c", [says(n) for n in range(2100)], subject="person 7")
    list(sealed.load.threads([(f"many {n}", [says(n)]) for n in range(5)]))
    for number in range(5):
        sealed.append(f"many {number}", says(number))
    assert looked_up == []
    write(faces.open(url, seal=keys), "a")
    assert looked_up == ["thread"]


def test_appends_in_one_commit_look_up_their_owners_together(
    faces: Faces, url: str, keys: Keys, looked_up: list[str]
) -> None:
    store = faces.open(url, seal=keys)
    for name in "abc":
        store.append(name, says(0), subject=f"person {name}")
    other = faces.open(url, seal=keys)
    appends = [
        queries.Append(
            ThreadKey(None, "default", name),
            [queries.NewMessage(json.dumps(says(1)), os.urandom(16), "user", 1, None)],
            "by caller", Key(None), None, None, queries.Expected(subject="person s" if name == "s" else None),
        )
        for name in ("a", "b", "c", "new", "s")
    ]  # fmt: skip
    run: Any = other.runner.run if other.runner else lambda result: result
    written = run(other.store._db.call(queries.append_together, appends, key=""))
    assert looked_up == ["subjects_of"]
    assert None not in written
    for name in "abc":
        keys.destroy(owner_of("default", f"person {name}"))
    assert [[m.payload for m in store.replay(name)][-1] for name in ("a", "new", "s")] == [None, says(1), says(1)]
    other.append("new", says(2))
    other.append("b", says(2))
    assert looked_up == ["subjects_of"]
