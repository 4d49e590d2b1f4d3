"""Forgeries by a superuser, at random: single fields of every table, and the structure of whole threads.

Each is made in the threads of two tenants with all protection disabled, looked for with `audit.verify()` by the
auditor's role and by a superuser, and undone. A forgery that neither finds must be on a published list: a column in
section 8 of `docs/integrity.md`, or a kind of attack that its section 7 or `docs/threats.md` says is not found.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from support.keys import key_of
from support.superuser_edits import TABLES, as_role, columns, unlock

import compaction_store as cs
from compaction_store.checkpoints import SigningKey
from compaction_store.integrity import erasure
from compaction_store.postgres import tables
from reliability.rigs.ground import Ground

KEY = SigningKey.from_bytes("example.org/audit", bytes(range(32)))
UNPROTECTED = frozenset({
    "threads.metadata", "heads.view_tokens", "heads.view_tokens_coarse", "heads.lease_until", "heads.stalled_tokens",
    "heads.lease_run", "heads.lease_since", "heads.lease_actor", "compactions.span_node", "heads.subject",
    "heads.feed_xid", "messages.feed_xid", "compactions.feed_xid", "events.feed_xid",
})  # fmt: skip
# Undetected at any level, as documented: rows newer than the newest checkpoint, and figures of use.
PUBLISHED = frozenset({
    "a thread that is newer than the checkpoint is deleted", "a message is put under another tenant's thread",
})  # fmt: skip
_NAMES = ("alpha", "beta", "gamma", "delta")
_TENANTS = ("acme", "globex")


class World:
    """The database: two tenants of four threads each, a checkpoint, and a thread that is newer."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.url = ground.database()
        self.logs = {tenant: cs.CheckpointLog(folder / f"{tenant}.jsonl", KEY.key) for tenant in _TENANTS}
        for tenant in _TENANTS:
            with cs.Store.open(self.url, tenant=tenant) as store:
                self._fill(store)
                store.audit.checkpoint(KEY, self.logs[tenant])
                store.append("newer", {"role": "user", "content": "newer than the checkpoint"})
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.keys = {
            (tenant, name): key_of(self.connection, name, tenant) for tenant in _TENANTS for name in (*_NAMES, "newer")
        }
        unlock(self.connection)
        for table in TABLES:
            self.run(f"CREATE TABLE public.kept_{table} AS TABLE compaction_store.{table}")
        roles = {"auditor": as_role(self.url, "compaction_store_auditor"), "superuser": self.url}
        self.readers = {
            (role, tenant): cs.Reader.open(url, tenant=tenant) for role, url in roles.items() for tenant in _TENANTS
        }

    @staticmethod
    def _fill(store: cs.Store) -> None:
        for name in _NAMES:
            store.append(
                name, [{"role": "user", "content": f"{name}, some words {n}"} for n in range(5)], meta={"n": 1}
            )
            store.compact(name, lambda ctx: ctx.compact(1, 3, "short"), force=True)
            store.append(name, {"role": "assistant", "content": "a reply"}, view=store.view(name), key="k")
            store.custody.hold(name, reason="audit")
            store.custody.release(name, reason="done")
        store.append("delta", {"role": "user", "content": "to be erased"})
        store.custody.redact("delta", 7, reason="asked")
        store.append("gone", {"role": "user", "content": "a whole thread"})
        store.custody.erase("gone", reason="asked")

    def tenant_of(self, uid: UUID) -> str:
        return next(tenant for (tenant, _), key in self.keys.items() if key == uid)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
        self.connection.close()

    def run(self, statement: str, *values: Any) -> int:
        return self.connection.execute(statement.encode(), values or None).rowcount

    def undo(self) -> None:
        for table in TABLES:
            names = ", ".join(columns(table))
            self.run(f"DELETE FROM compaction_store.{table}")
            self.run(f"INSERT INTO compaction_store.{table} ({names}) SELECT {names} FROM public.kept_{table}")

    def level(self, role: str) -> str:
        """Returns the first level with a finding, or an empty text."""
        for level in ("structure", "content", "checkpoint"):
            for tenant in _TENANTS:
                log = self.logs[tenant] if level == "checkpoint" else None
                reports = list(self.readers[role, tenant].audit.verify(level=level, checkpoints=log))
                walked = [report.thread_uid for report in reports if report.thread_uid is not None]
                assert walked == sorted(set(walked), key=str), "a key has two reports, or none"
                if any(report.findings for report in reports if report.thread_uid or report.level != "schema"):
                    return level
        return ""


# ---- single fields

_OTHERS = {
    "bigint": ("{c} + 1", "{c} + 1000", "0", "-1", "9223372036854775807", "-9223372036854775808"),
    "integer": ("{c} + 1", "7", "-1"),
    "text": ("{c} || 'x'", "''", "'forged'", "repeat('x', 300)", "upper({c})", "E'a\\nb'"),
    "bytea": ("set_byte({c}, 0, get_byte({c}, 0) # 1)", "''", "sha256('x')", "{c} || '\\x00'"),
    "uuid": ("gen_random_uuid()", "'00000000-0000-8000-8000-000000000000'"),
    "timestamp with time zone": (
        "{c} + interval '1 microsecond'", "{c} - interval '1 day'", "'infinity'", "'-infinity'", "'294276-12-31'",
        "'10031-01-01'",
    ),
    "boolean": ("NOT {c}",),
    "json": ("'{{\"role\":\"user\"}}'", "({c}::text || ' ')::json", "'{{}}'", "'{{\"a\":1,\"a\":2}}'"),
    "ARRAY": ("{c} || 3::bigint", "'{{NULL}}'", "'{{2,1}}'"),
}  # fmt: skip


def _field(world: World, chance: random.Random) -> str | None:
    """Changes one field of one row. Returns None if it could not be changed."""
    table = chance.choice(TABLES)
    column = chance.choice(columns(table))
    kind = world.connection.execute(
        "SELECT data_type FROM information_schema.columns WHERE table_schema = 'compaction_store'"
        " AND table_name = %s AND column_name = %s",
        [table, column],
    ).fetchall()[0][0]
    value = chance.choice((*_OTHERS[kind], "NULL")).format(c=column)
    if f"{table}.{column}" in UNPROTECTED and "infinity" in value:
        return None
    row = f"(SELECT ctid FROM compaction_store.{table} ORDER BY random() LIMIT 1)"
    try:
        changed = world.run(
            f"UPDATE compaction_store.{table} SET {column} = {value}"
            f" WHERE ctid = {row} AND {column}::text IS DISTINCT FROM ({value})::text"
        )
    except psycopg.Error:
        return None
    return f"{table}.{column}" if changed else None


# ---- structure: each is given the world, chance, a thread and another one


def _named(tenant: str | None = None, name: str | None = None) -> Callable[..., str]:
    def change(world: World, _chance: random.Random, uid: UUID, _other: UUID) -> str:
        for column, value in (("tenant", tenant), ("thread_id", name)):
            if value is not None:
                world.run(f"UPDATE compaction_store.threads SET {column} = %s WHERE thread_uid = %s", value, uid)
        return f"a name becomes {'of another tenant' if tenant else repr((name or '')[:12])}"

    return change


def _twin(world: World, _chance: random.Random, uid: UUID, other: UUID) -> str:
    world.run(
        "UPDATE compaction_store.threads AS t SET (tenant, thread_id) = (SELECT o.tenant, o.thread_id FROM"
        " compaction_store.threads AS o WHERE o.thread_uid = %s) WHERE t.thread_uid = %s",
        other, uid,
    )  # fmt: skip
    _rewrite(world, uid)
    return "a name becomes another thread's, and the content is rewritten"


def _stub(world: World, _chance: random.Random, uid: UUID, other: UUID) -> str:
    name = erasure.stub_name(other)
    world.run("UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", name, uid)
    return "a name becomes another thread's stub"


def _rewrite(world: World, uid: UUID) -> None:
    world.run(
        'UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE thread_uid = %s AND seq = 2', uid
    )


def _moved(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    tables = chance.sample(TABLES, chance.randrange(1, 6))
    new = "globex" if world.tenant_of(uid) == "acme" else "acme"
    for table in tables:
        world.run(f"UPDATE compaction_store.{table} SET tenant = %s WHERE thread_uid = %s", new, uid)
    return "rows are put under another tenant" if len(tables) < 5 else "a whole thread is put under another tenant"


def _swapped(world: World, chance: random.Random, uid: UUID, other: UUID) -> str:
    tables = chance.sample(TABLES, chance.randrange(1, 6))
    for table in tables:
        for old, new in ((uid, UUID(int=1)), (other, uid), (UUID(int=1), other)):
            world.run(f"UPDATE compaction_store.{table} SET thread_uid = %s WHERE thread_uid = %s", new, old)
    return "two threads change keys"


def _deleted(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    tables = chance.sample(TABLES, chance.randrange(1, 5))
    for table in tables:
        world.run(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", uid)
    return "all rows of some tables are deleted"


def _gone(world: World, _chance: random.Random, uid: UUID, _other: UUID) -> str:
    for table in TABLES:
        world.run(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", uid)
    return "a thread is deleted with all its rows"


def _newer_gone(world: World, _chance: random.Random, uid: UUID, _other: UUID) -> str:
    tenant = world.tenant_of(uid)
    _gone(world, _chance, world.keys[tenant, "newer"], _other)
    return "a thread that is newer than the checkpoint is deleted"


def _orphaned(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    for table in ("heads", "threads"):
        world.run(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", uid)
    if chance.random() < 0.5:
        world.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq <= %s", uid, chance.randrange(6))
    return "head and name are deleted, rows are left"


def _some_rows(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    table, ordinal = chance.choice((("messages", "seq"), ("compactions", "number"), ("events", "pos")))
    world.run(
        f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s AND {ordinal} = (SELECT {ordinal} FROM"
        f" compaction_store.{table} WHERE thread_uid = %s ORDER BY random() LIMIT 1)",
        uid, uid,
    )  # fmt: skip
    return "a row is deleted"


def _doubled(world: World, chance: random.Random, uid: UUID, other: UUID) -> str:
    """Copies a row to a later place or to another thread."""
    table, ordinal = chance.choice((("messages", "seq"), ("compactions", "number"), ("events", "pos")))
    names = [name for name in columns(table) if name not in {"thread_uid", ordinal}]
    target = chance.choice((uid, other))
    world.run(
        f"INSERT INTO compaction_store.{table} (thread_uid, {ordinal}, {', '.join(names)})"
        f" SELECT %s, {ordinal} + 1000, {', '.join(names)} FROM compaction_store.{table} WHERE thread_uid = %s"
        f" ORDER BY {ordinal} LIMIT 1",
        target, uid,
    )  # fmt: skip
    if table == "messages" and world.tenant_of(uid) != world.tenant_of(target):
        return "a message is put under another tenant's thread"
    return "a row is there twice"


def _exchanged(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    names = chance.choice(
        (("payload",), ("payload", "commitment", "salt"), ("pos",), ("entry",), ("created_at", "pos"))
    )
    world.run(
        f"UPDATE compaction_store.messages AS m SET ({', '.join(names)}) = ROW ({', '.join('o.' + n for n in names)})"
        " FROM compaction_store.messages AS o WHERE m.thread_uid = %s AND o.thread_uid = m.thread_uid"
        " AND (m.seq, o.seq) IN ((2, 4), (4, 2))",
        uid,
    )  # fmt: skip
    return (
        f"two messages exchange {', '.join(names)}" if names != ("created_at", "pos") else "two messages exchange pos"
    )


def _cut(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    """Cuts off the end. The head stays, or is set back to match the rest."""
    last = chance.randrange(1, 5)
    for table, column in (("messages", "pos"), ("compactions", "pos"), ("events", "pos")):
        world.run(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s AND {column} > %s", uid, last)
    if chance.random() < 0.3:
        return "the end is cut off, and the head left as it was"
    world.run(
        "UPDATE compaction_store.heads AS h SET last_pos = m.pos, last_seq = m.seq, last_number = 0, head = m.entry,"
        " last_at = m.created_at FROM compaction_store.messages AS m"
        " WHERE h.thread_uid = %s AND m.thread_uid = h.thread_uid AND m.pos = %s",
        uid, last,
    )  # fmt: skip
    return "the end is cut off, and the head set back"


def _unnamed(world: World, chance: random.Random, uid: UUID, _other: UUID) -> str:
    world.run(
        "UPDATE compaction_store.messages SET payload = NULL, salt = NULL, meta = NULL, redacted_pos = %s"
        " WHERE thread_uid = %s AND seq = 3",
        chance.choice((1, 5, 8, 99, -1)), uid,
    )  # fmt: skip
    return "a message is erased without an event"


def _anew(world: World, _chance: random.Random, uid: UUID, _other: UUID) -> str:
    """Rewrites the first message, removes the rest, and recomputes commitment, entry and head."""
    world.run("DELETE FROM compaction_store.events WHERE thread_uid = %s", uid)
    world.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq > 1", uid)
    world.run("DELETE FROM compaction_store.compactions WHERE thread_uid = %s", uid)
    text = '{"role":"user","content":"forged"}'
    world.run(
        "UPDATE compaction_store.messages SET payload = %s, meta = NULL, meta_commitment = NULL, commitment ="
        " compaction_store.commitment(salt, %s), redacted_pos = NULL WHERE thread_uid = %s",
        text, text, uid,
    )  # fmt: skip
    world.run(
        "UPDATE compaction_store.messages AS m SET entry = compaction_store.entry("
        " compaction_store.genesis(t.thread_uid, m.tenant, t.commitment), 1, 1, m.created_at,"
        " compaction_store.message_header(m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt,"
        " m.actor, m.login, m.meta_commitment), m.commitment)"
        " FROM compaction_store.threads AS t WHERE t.thread_uid = m.thread_uid AND m.thread_uid = %s",
        uid,
    )  # fmt: skip
    _cut_to_first(world, uid)
    return "a message is rewritten, and the whole chain recomputed"


def _cut_to_first(world: World, uid: UUID) -> None:
    world.run(
        "UPDATE compaction_store.heads AS h SET last_pos = 1, last_seq = 1, last_number = 0, head = m.entry,"
        " last_at = m.created_at FROM compaction_store.messages AS m"
        " WHERE h.thread_uid = %s AND m.thread_uid = h.thread_uid AND m.seq = 1",
        uid,
    )  # fmt: skip


STRUCTURE: tuple[Callable[[World, random.Random, UUID, UUID], str], ...] = (
    _named(name=""), _named(name="alpha"), _named(name="nobody"), _named(name="x" * 300), _named(tenant="elsewhere"),
    _named(tenant="globex", name="beta"), _twin, _twin, _stub, _moved, _moved, _swapped, _swapped, _deleted, _deleted,
    _gone, _newer_gone, _orphaned, _orphaned, _some_rows, _some_rows, _doubled, _doubled, _exchanged, _exchanged,
    _cut, _cut, _unnamed, _anew,
)  # fmt: skip


def _structural(world: World, chance: random.Random) -> str | None:
    uid, other = chance.sample([key for (_, name), key in world.keys.items() if name in _NAMES], 2)
    before = _rows(world)
    try:
        what = chance.choice(STRUCTURE)(world, chance, uid, other)
    except psycopg.errors.UniqueViolation:
        return None
    return what if _rows(world) != before else None


def _rows(world: World) -> list[Any]:
    return [
        world.connection.execute(
            f"SELECT md5(string_agg(t::text, '' ORDER BY t::text)) FROM compaction_store.{table} AS t".encode()
        ).fetchall()
        for table in TABLES
    ]


def run(ground: Ground, chance: random.Random, *, count: int) -> dict[str, Any]:
    """Makes `count` forgeries: 900 of single fields for 1,150 of structure. A missed, unpublished one is an error."""
    seen: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="cs") as folder:
        world = World(ground, Path(folder))
        assert world.level("auditor") == world.level("superuser") == ""
        done = 0
        while done < count:
            seed = chance.getrandbits(64)
            one = random.Random(seed)
            world.run("SELECT setseed(%s)", one.random())
            is_field = one.random() < 900 / 2050
            try:
                what = _field(world, one) if is_field else _structural(world, one)
                if what is None:
                    continue
                done += 1
                for role in ("auditor", "superuser"):
                    level = world.level(role)
                    seen[f"{'fields' if is_field else 'structure'}, {role}: {level or 'published'}"] += 1
                    if not level:
                        missed[f"missed by the {role}: {what}"] += 1
                        assert what in UNPROTECTED | PUBLISHED, f"missed: {what}"
            except Exception as error:
                raise AssertionError(f"attack of seed {seed}: {error!r:.300}") from error
            finally:
                world.undo()
        world.close()
    return {"attacks": count, **dict(sorted(seen.items())), **dict(sorted(missed.items()))}


assert {table.name for table in tables.metadata.sorted_tables} == set(TABLES)
