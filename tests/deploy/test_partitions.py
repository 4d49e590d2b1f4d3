"""A table of messages with partitions: made by `migrate`, used by everything, and checked at level schema."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cli.program import Forks, Run
from support.compactable_thread import chat, span
from support.keys import key_of

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import doctor
from compaction_store.errors import Conflict, IdempotencyConflict, InvalidInput
from compaction_store.postgres import queries
from compaction_store.postgres.calling import engines
from compaction_store.postgres.schema import introspection, layout

pytestmark = pytest.mark.one_server("a table with partitions cannot be distributed")

_COUNT = 3
_TRIGGERS = "refuse_change A 27 compaction_store.refuse_change; refuse_truncate A 34 compaction_store.refuse_change"


@pytest.fixture
def parted(empty_url: str) -> str:
    """The URL of a migrated database with partitions."""
    migrate.upgrade(empty_url, partitions=_COUNT)
    return empty_url


def _findings(url: str) -> list[str]:
    with cs.Store.open(url) as store:
        report = next(store.audit.verify(level="schema"))
        return [finding.what for finding in report.findings]


def _say(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"message {number}"} for number in range(count)]


def test_threads_are_spread_over_the_partitions_and_everything_works(parted: str) -> None:
    with cs.Store.open(parted) as store, psycopg.connect(parted) as connection:
        for number in range(24):
            store.append(f"t-{number}", _say(3), key="k")
        counts = connection.execute(
            "SELECT count(*) FROM compaction_store.messages GROUP BY tableoid ORDER BY tableoid"
        ).fetchall()
        assert len(counts) == _COUNT
        assert sum(count for (count,) in counts) == 72
        again = store.append("t-1", _say(3), key="k")
        assert [message.seq for message in again] == [1, 2, 3]
        with pytest.raises(IdempotencyConflict):
            store.append("t-1", _say(2), key="k")

        store.append("t", chat(8))
        store.compact("t", span(2, 4))
        assert [element.is_summary for element in store.view("t").elements].count(True) == 1
        store.fork("t", "fork")
        store.custody.redact("t", [7], reason="asked")
        store.load.messages("loaded", _say(500), key="load")
        store.load.messages("loaded", _say(500), key="load")
        store.custody.erase("t-2", reason="over")
        assert len(list(store.replay("loaded"))) == 500
        assert [message.redacted for message in store.replay("t")].count(True) == 1
        assert [message.redacted for message in store.replay("fork")].count(True) == 1
        assert [report.findings for report in store.audit.verify(level="schema")] == [()] * 28


def test_a_bundle_moves_from_a_table_without_partitions_to_one_with_them_and_back(parted: str, url: str) -> None:
    with cs.Store.open(url) as plain, cs.Store.open(parted) as store:
        for source, target, name in ((plain, store, "a"), (store, plain, "b")):
            source.append(name, chat(8))
            source.compact(name, span(2, 4))
            target.load.bundle(source.audit.export(name))
            assert target.audit.verify(name) == source.audit.verify(name)


def test_a_thread_is_read_from_one_partition(parted: str) -> None:
    with cs.Store.open(parted) as store, psycopg.connect(parted) as connection:
        store.append("t", _say(3))
        uid = key_of(connection, "t")
        plan = connection.execute(
            f"EXPLAIN SELECT * FROM compaction_store.messages WHERE thread_uid = '{uid}' AND seq > 1".encode()
        ).fetchall()
    named = {word for (line,) in plan for word in line.split() if word.startswith("messages_")}
    assert len({name.split("_")[1] for name in named}) == 1


def test_the_number_is_chosen_once(parted: str) -> None:
    migrate.upgrade(parted)
    migrate.upgrade(parted, partitions=_COUNT)
    with pytest.raises(Conflict, match="made with 3 partitions, which cannot be changed"):
        migrate.upgrade(parted, partitions=_COUNT + 1)
    migrate.downgrade(parted, "base")
    migrate.upgrade(parted)
    with pytest.raises(Conflict, match="made with no partitions"):
        migrate.upgrade(parted, partitions=_COUNT)
    assert _findings(parted) == []


@pytest.mark.parametrize("wrong", [0, 1, 1025, -3, True, 2.0, "4"])
def test_a_wrong_number_is_refused_before_anything_is_done(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="partitions must be an integer from 2 to 1,024, not"):
        migrate.upgrade("postgresql://nobody@nowhere.invalid/none", partitions=wrong)


def test_the_command_makes_them(forks: Forks, tmp_path: Path, empty_url: str) -> None:
    run = Run(forks, tmp_path, empty_url)
    assert "must" not in run("migrate", "--partitions", "4").stderr
    refused = run("migrate", "--partitions", "5", code=None)
    assert refused.returncode != 0
    assert "made with 4 partitions, which cannot be changed" in refused.stderr
    assert _findings(empty_url) == []


def test_the_doctor_finds_nothing_wrong_with_them(parted: str) -> None:
    # The server under test may have settings that are problems.
    found = {(check.name, check.state) for check in doctor.diagnose(parted)}
    assert {("schema", "ok"), ("protection", "ok")} <= found
    assert ("protection", "problem") not in found


def _is_empty_partition(connection: psycopg.Connection[Any]) -> bool:
    found = (
        connection.execute(f"SELECT FROM compaction_store.messages_{number} LIMIT 1".encode()).fetchone()
        for number in range(_COUNT)
    )
    return any(row is None for row in found)


def test_no_partition_can_be_changed_by_itself(parted: str) -> None:
    with cs.Store.open(parted) as store, psycopg.connect(parted, autocommit=True) as connection:
        # Threads fall on a partition by chance, and an UPDATE of an empty one changes no row that could be refused.
        names = (f"t-{number}" for number in itertools.count())
        while _is_empty_partition(connection):
            store.append(next(names), _say(1))
        for number in range(_COUNT):
            for statement in ("UPDATE {} SET tokens = 1", "DELETE FROM {}", "TRUNCATE {}"):
                with pytest.raises(psycopg.Error, match="is refused: it is append-only"):
                    connection.execute(statement.format(f"compaction_store.messages_{number}").encode())
        with pytest.raises(psycopg.Error, match="is refused: it is append-only"):
            connection.execute("TRUNCATE compaction_store.messages")


_WAYS = (
    ("ALTER TABLE {p} DISABLE TRIGGER refuse_change", "refuse_change D 27"),
    ("ALTER TABLE {p} ENABLE REPLICA TRIGGER refuse_truncate", "refuse_truncate R 34"),
    ("DROP TRIGGER refuse_truncate ON {p}", "triggers refuse_change A 27"),
    (
        "CREATE TRIGGER t BEFORE INSERT ON {p} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "; t O 7 pg_catalog.suppress_redundant_updates_trigger",
    ),
    ("CREATE RULE r AS ON INSERT TO {p} DO INSTEAD NOTHING", "with a rule"),
    ("CREATE POLICY p ON {p}", "with a policy"),
    ("GRANT DELETE ON {p} TO PUBLIC", "granted"),
    ("GRANT UPDATE (payload) ON {p} TO PUBLIC", "granted"),
    ("ALTER TABLE {p} OWNER TO CURRENT_USER", "belongs to "),
    ("ALTER TABLE {p} ADD CHECK (seq > 0)", "with a constraint of its own"),
    ("ALTER TABLE {p} ALTER seq SET DEFAULT 1", "with a default"),
    ("CREATE INDEX ON {p} ((seq / 1))", "with an index of its own"),
    ("CREATE UNIQUE INDEX ON {p} (pos)", "with an index of its own"),
    (
        (
            "UPDATE pg_index SET indpred = (SELECT indpred FROM pg_index WHERE indexrelid ="
            " 'compaction_store.messages_key_idx'::regclass) WHERE indrelid = '{p}'::regclass AND NOT indisunique"
        ),
        "with an index of its own",
    ),
    (
        "UPDATE pg_index SET indkey = '1 3' WHERE indrelid = '{p}'::regclass AND indisprimary",
        "with an index of its own",
    ),
    ("ALTER TABLE {p} SET UNLOGGED", "persistence u"),
    ("ALTER TABLE {p} SET SCHEMA public", "partition public.messages_1 of messages"),
    ("ALTER TABLE {p} RENAME TO other", "partition compaction_store.other of messages"),
    ("ALTER TABLE compaction_store.messages DETACH PARTITION {p}", "modulus 3, remainder 2"),
    ("DROP TABLE {p}", "modulus 3, remainder 2"),
)


def test_every_way_to_weaken_a_partition_is_a_finding(parted: str) -> None:
    engine = engines.create_engine(parted, pool_size=1, connect_timeout=10)
    try:
        connection = engine.raw_connection()
        assert (
            layout.expected_partitions(facts := dict(introspection.facts(connection, "partitions")), _TRIGGERS) == facts
        )
        assert len(facts) == _COUNT + 1
        for statement, shown in _WAYS:
            queries.fetch(connection, "BEGIN")
            queries.fetch(connection, statement.format(p="compaction_store.messages_1"))
            facts = dict(introspection.facts(connection, "partitions"))
            wrong = facts.items() - layout.expected_partitions(facts, _TRIGGERS).items()
            assert any(shown in f"{subject}: {fact}" for subject, fact in wrong), (statement, wrong)
            queries.fetch(connection, "ROLLBACK")
        connection.close()
    finally:
        engine.dispose()
