"""Comparing a database's schema with the shipped one: every way to weaken it is a finding."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store.models.roles import GROUPS
from compaction_store.postgres import tables
from compaction_store.postgres.schema import layout, schema_check
from compaction_store.postgres.schema.introspection import ClusterFacts, Facts

OWNER = "compaction_store_owner"


@pytest.fixture
def reader(url: str) -> Iterator[cs.Reader]:
    with cs.Store.open(url) as store:
        store.append("t", {"n": 1}, raw=True)
    with cs.Reader.open(url) as opened:
        yield opened


def whats(reader: cs.Reader) -> list[str]:
    report = next(reader.audit.verify(level="schema"))
    assert (report.thread_id, report.level) == ("", "schema")
    return [finding.what for finding in report.findings]


@pytest.mark.alters_roles
def test_a_schema_as_shipped_has_no_findings(store: Any) -> None:
    store.append("t", {"n": 1}, raw=True)
    report = store.audit.verify("t", level="schema")
    assert (report.findings, report.notes, report.level, report.entries) == ((), (), "schema", 1)
    first, second = list(store.audit.verify(level="schema"))
    assert (first.thread_id, first.level, first.findings) == ("", "schema", ())
    assert (second.thread_id, second.level, second.findings) == ("t", "schema", ())


def test_every_trigger_function_policy_and_grant_of_the_files_is_expected() -> None:
    expected = schema_check._expected(has_roles=True)
    names = [table.name for table in tables.metadata.sorted_tables]
    files = {path.stem for path in (tables.scripts() / "sql" / "functions").glob("*.sql")}
    assert {subject.removeprefix("body of function ").removesuffix("()") for subject in expected
            if subject.startswith("body of")} == files  # fmt: skip
    for table in names:
        assert f"trigger {table}.refuse_change" in expected
        assert f"trigger {table}.refuse_truncate" in expected
        assert f"policy {table}.tenant" in expected
    grants = {subject: fact for subject, fact in expected.items() if subject.startswith("grant on ")}
    assert grants["grant on messages to compaction_store_app"] == "SELECT"
    assert grants["grant on append() to compaction_store_app"] == "EXECUTE"
    assert not any(subject.endswith("to PUBLIC") for subject in grants)
    assert {fact for subject, fact in grants.items() if subject.endswith("_app")} == {"SELECT", "EXECUTE", "USAGE"}


# Each change, as `;`-separated statements in which {s} is the schema, and the text of its finding.
CHANGES = [
    (
        "ALTER TABLE {s}.messages DISABLE TRIGGER refuse_change",
        r"trigger messages\.refuse_change: disabled",
    ),
    (
        "ALTER TABLE {s}.messages ENABLE TRIGGER refuse_change",
        r"trigger messages\.refuse_change: enabled O",
    ),
    (
        "ALTER TABLE {s}.heads ENABLE REPLICA TRIGGER refuse_truncate",
        "refuse_truncate: enabled R",
    ),
    (
        "ALTER TABLE {s}.events DISABLE TRIGGER ALL",
        r"trigger events\.refuse_change: disabled",
    ),
    (
        "DROP TRIGGER refuse_change ON {s}.compactions",
        r"trigger compactions\.refuse_change is missing",
    ),
    (
        "DROP TRIGGER refuse_truncate ON {s}.threads",
        r"trigger threads\.refuse_truncate is missing",
    ),
    (
        (
            "DROP TRIGGER refuse_change ON {s}.messages;"
            "CREATE TRIGGER refuse_change BEFORE DELETE ON {s}.messages FOR EACH ROW EXECUTE FUNCTION"
            " {s}.refuse_change();"
            "ALTER TABLE {s}.messages ENABLE ALWAYS TRIGGER refuse_change"
        ),
        r"trigger messages\.refuse_change: always, type 11",
    ),
    (
        (
            "DROP TRIGGER refuse_change ON {s}.messages;"
            "CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {s}.messages FOR EACH ROW WHEN"
            " (OLD.seq > 5) EXECUTE FUNCTION {s}.refuse_change();"
            "ALTER TABLE {s}.messages ENABLE ALWAYS TRIGGER refuse_change"
        ),
        "with a condition",
    ),
    (
        (
            "CREATE FUNCTION public.quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL;"
            "END';"
            "CREATE TRIGGER quiet BEFORE INSERT ON {s}.messages FOR EACH ROW EXECUTE FUNCTION public.quiet()"
        ),
        r"trigger messages\.quiet is not part of the schema",
    ),
    (
        (
            "CREATE OR REPLACE FUNCTION {s}.refuse_change() RETURNS trigger LANGUAGE plpgsql SET"
            " search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NEW;"
            "END'"
        ),
        r"the body of function refuse_change\(\) is not the shipped one",
    ),
    (
        "ALTER FUNCTION {s}.refuse_change() RENAME TO other",
        r"function refuse_change\(\) is missing",
    ),
    (
        "ALTER FUNCTION {s}.view SECURITY INVOKER",
        r"function view\(\): plpgsql, stable, takes",
    ),
    (
        "ALTER FUNCTION {s}.append RESET search_path",
        r"settings of function append\(\): enable_seqscan=off; lock_timeout=5s;",
    ),
    (
        "ALTER FUNCTION {s}.append SET search_path = public",
        r"settings of function append\(\)",
    ),
    (
        "ALTER FUNCTION {s}.replay IMMUTABLE",
        r"function replay\(\): plpgsql, immutable",
    ),
    (
        "ALTER FUNCTION {s}.replay STRICT",
        r"function replay\(\): plpgsql, stable, strict",
    ),
    (
        "ALTER FUNCTION {s}.thread OWNER TO CURRENT_USER",
        r"owner of function thread\(\)",
    ),
    (
        (
            "CREATE FUNCTION {s}.append(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1';"
            "ALTER FUNCTION {s}.append(integer) OWNER TO {owner};"
            "REVOKE ALL ON FUNCTION {s}.append(integer) FROM PUBLIC"
        ),
        r"function append\(\): .* and sql, takes integer",
    ),
    (
        "CREATE FUNCTION {s}.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        r"function mine\(\) is not",
    ),
    (
        "ALTER TABLE {s}.messages OWNER TO CURRENT_USER",
        "owner of table messages",
    ),
    (
        "ALTER TABLE {s}.messages NO FORCE ROW LEVEL SECURITY",
        "table messages: table, row security;",
    ),
    (
        "ALTER TABLE {s}.heads DISABLE ROW LEVEL SECURITY",
        "table heads: table, forced;",
    ),
    (
        "DROP POLICY tenant ON {s}.events",
        r"policy events\.tenant is missing",
    ),
    (
        "ALTER POLICY tenant ON {s}.events USING (true)",
        r"policy events\.tenant: .*using true",
    ),
    (
        "ALTER POLICY tenant ON {s}.events WITH CHECK (true)",
        r"policy events\.tenant: .*check true",
    ),
    (
        "ALTER POLICY tenant ON {s}.heads TO {app}",
        r"policy heads\.tenant: .*to some",
    ),
    (
        "CREATE POLICY mine ON {s}.messages USING (true)",
        r"policy messages\.mine is not part",
    ),
    (
        "CREATE RULE mine AS ON INSERT TO {s}.messages DO INSTEAD NOTHING",
        r"rule messages\.mine is not part",
    ),
    (
        "CREATE TABLE public.child () INHERITS ({s}.messages)",
        r"inheritance of public\.child from messages",
    ),
    (
        "CREATE TABLE {s}.mine (id integer)",
        "table mine is not part",
    ),
    (
        "CREATE VIEW {s}.mine AS SELECT 1 AS one",
        r"table mine is not part of the schema \(of kind v\)",
    ),
    (
        "DROP VIEW {s}.audit_events",
        "table audit_events is missing",
    ),
    (
        "ALTER VIEW {s}.audit_events RESET (security_invoker)",
        "the definition of view audit_events is not the shipped one",
    ),
    (
        "ALTER VIEW {s}.audit_events OWNER TO CURRENT_USER",
        "owner of table audit_events",
    ),
    (
        (
            "DO $$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW {s}.audit_events WITH (security_invoker = true) AS '"
            " || replace(pg_get_viewdef('{s}.audit_events'::regclass), ';', ' AND e.kind <> ''hold'''); END $$"
        ),
        "the definition of view audit_events is not the shipped one",
    ),
    (
        "CREATE RULE mine AS ON DELETE TO {s}.audit_events DO INSTEAD NOTHING",
        r"rule audit_events\.mine is not part",
    ),
    (
        "GRANT SELECT ON {s}.audit_events TO {loader}",
        "grant on audit_events to {loader} is not part",
    ),
    (
        "ALTER TABLE {s}.messages SET UNLOGGED",
        "table messages: table, persistence u",
    ),
    (
        "ALTER TABLE {s}.messages ADD COLUMN mine integer",
        r"column messages\.mine is not part",
    ),
    (
        "ALTER TABLE {s}.messages DROP COLUMN receipt CASCADE",
        r"column messages\.receipt is missing",
    ),
    (
        "DROP VIEW {s}.audit_messages; ALTER TABLE {s}.messages ALTER COLUMN payload TYPE jsonb USING payload::jsonb",
        r"column messages\.payload: jsonb; expected: json",
    ),
    (
        "DROP VIEW {s}.audit_messages; ALTER TABLE {s}.messages ALTER COLUMN tokens TYPE bigint",
        r"column messages\.tokens: bigint not null",
    ),
    (
        'DROP VIEW {s}.audit_messages; ALTER TABLE {s}.messages ALTER COLUMN role TYPE text COLLATE "POSIX"',
        r"column messages\.role: text",
    ),
    (
        "ALTER TABLE {s}.messages ALTER COLUMN entry DROP NOT NULL",
        r"column messages\.entry: bytea; expected",
    ),
    (
        "ALTER TABLE {s}.messages ALTER COLUMN salt SET DEFAULT '\\x00'",
        r"column messages\.salt: bytea default",
    ),
    (
        "ALTER TABLE {s}.messages DROP CONSTRAINT messages_pkey",
        r"constraint messages\.messages_pkey is miss",
    ),
    (
        "ALTER TABLE {s}.messages DROP CONSTRAINT messages_tokens_check",
        "messages_tokens_check is missing",
    ),
    (
        "DROP INDEX {s}.messages_key_idx",
        "^index messages_key_idx is missing",
    ),
    (
        (
            "DROP INDEX {s}.messages_key_idx;"
            "CREATE INDEX messages_key_idx ON {s}.messages (thread_uid, key) WHERE key IS NOT NULL"
        ),
        "^index messages_key_idx: CREATE INDEX .*; expected: CREATE UNIQUE INDEX",
    ),
    (
        (
            "DROP INDEX {s}.messages_key_idx;"
            "CREATE UNIQUE INDEX messages_key_idx ON {s}.messages (thread_uid, key) WHERE key > 'k'"
        ),
        "^index messages_key_idx: CREATE UNIQUE INDEX",
    ),
    (
        "CREATE UNIQUE INDEX mine ON {s}.messages (tenant, seq)",
        "^index mine is not part",
    ),
    (
        "GRANT SELECT ON {s}.messages TO PUBLIC",
        "grant on messages to PUBLIC is not part",
    ),
    (
        "GRANT INSERT ON {s}.messages TO {app}",
        "messages to {app}: INSERT, SEL",
    ),
    (
        "GRANT UPDATE (payload) ON {s}.messages TO {app}",
        r"grant on messages\.payload to",
    ),
    (
        "GRANT DELETE ON {s}.heads TO {auditor}",
        "grant on heads to {auditor}:",
    ),
    (
        "GRANT TRUNCATE ON {s}.messages TO {loader}",
        r"messages to {loader} is not part of the schema \(TRUNCATE",
    ),
    (
        "GRANT SELECT ON {s}.messages TO {app} WITH GRANT OPTION",
        "SELECT with grant option",
    ),
    (
        "GRANT EXECUTE ON FUNCTION {s}.refuse_change() TO PUBLIC",
        r"refuse_change\(\) to PUBLIC is not part",
    ),
    (
        "GRANT EXECUTE ON FUNCTION {s}.append TO {auditor}",
        r"append\(\) to compaction_store_aud",
    ),
    (
        "GRANT CREATE ON SCHEMA {s} TO {app}",
        "the schema to {app}: CREATE, USA",
    ),
    (
        "REVOKE EXECUTE ON FUNCTION {s}.append FROM {app}",
        r"append\(\) to .*_app is missing",
    ),
]
_NAMES = {
    "s": "compaction_store", "owner": OWNER, "app": "compaction_store_app", "auditor": "compaction_store_auditor",
    "loader": "compaction_store_loader",
}  # fmt: skip


@pytest.mark.parametrize(("change", "what"), CHANGES, ids=map(str, range(len(CHANGES))))
def test_a_change_of_the_schema_is_a_finding(reader: cs.Reader, superuser: Any, change: str, what: str) -> None:
    assert whats(reader) == []
    superuser.execute(change.format(**_NAMES))
    found = whats(reader)
    assert any(re.search(what.format(**_NAMES), each) for each in found), found


@pytest.mark.alters_roles
@pytest.mark.parametrize(
    ("change", "undo", "what"),
    [
        (
            f"ALTER ROLE {OWNER} LOGIN", f"ALTER ROLE {OWNER} NOLOGIN",
            f"role {OWNER}: there, login; expected: there",
        ),
        (
            "ALTER ROLE compaction_store_app BYPASSRLS", "ALTER ROLE compaction_store_app NOBYPASSRLS",
            "role compaction_store_app: there, bypassrls; expected: there",
        ),
        (
            "ALTER ROLE compaction_store_auditor SUPERUSER", "ALTER ROLE compaction_store_auditor NOSUPERUSER",
            "role compaction_store_auditor: there, superuser; expected: there",
        ),
        (
            f"GRANT {OWNER} TO compaction_store_app", f"REVOKE {OWNER} FROM compaction_store_app",
            f"membership of compaction_store_app in {OWNER} is not part of the schema (there)",
        ),
    ],
)  # fmt: skip
def test_a_role_that_may_more_is_a_finding(
    reader: cs.Reader, superuser: Any, change: str, undo: str, what: str
) -> None:
    # Roles belong to the whole server, so they must be restored in any case.
    superuser.execute(change.encode())
    try:
        assert whats(reader) == [what]
    finally:
        superuser.execute(undo.encode())
    assert whats(reader) == []


def test_what_a_search_path_puts_first_does_not_stand_in_for_a_catalogue(url: str, superuser: Any) -> None:
    superuser.execute(
        "CREATE VIEW public.pg_trigger AS SELECT * FROM pg_catalog.pg_trigger WHERE false;"
        "CREATE FUNCTION public.concat_ws(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$SELECT 'well'$$;"
        "ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change"
    )
    name = sa.make_url(url).database
    superuser.execute(f"ALTER DATABASE {name} SET search_path = public, compaction_store, pg_catalog")
    with cs.Store.open(url) as store:
        store.append("t", {"n": 1}, raw=True)
        found = [finding.what for finding in store.audit.verify("t", level="schema").findings]
    assert len(found) == 1
    assert found[0].startswith("trigger messages.refuse_change: disabled")


def test_an_auditor_may_look_at_the_schema(url: str, superuser: Any) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"n": 1}, raw=True)
    name = f"cs_auditor_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_auditor")
    try:
        login = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        with cs.Reader.open(login) as reader:
            assert whats(reader) == []
            superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change")
            assert len(whats(reader)) == 1
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def facts() -> Facts:
    expected = dict(schema_check._expected(has_roles=True))
    return Facts(expected, {f"role {role}": "there" for role in GROUPS})


def test_facts_as_expected_are_no_findings() -> None:
    assert schema_check.check_schema(facts()) == ((), ())


@pytest.mark.parametrize("subject", sorted(schema_check._expected(has_roles=True)))
def test_every_single_fact_is_held(subject: str) -> None:
    for change in ("removed", "changed"):
        seen = facts()
        if change == "removed":
            del seen.facts[subject]
        else:
            seen.facts[subject] += " and more"
        [finding] = schema_check.check_schema(seen).findings
        assert subject in finding.what


def spread(shards: list[tuple[str, int, str]], nodes: list[tuple[str, str]]) -> list[str]:
    """Returns the findings for a cluster with these shards and nodes."""
    expected = dict(schema_check._expected(True, layout.CLUSTER))
    seen = Facts(expected, {f"role {role}": "there" for role in GROUPS}, cluster=ClusterFacts(shards, nodes, "digest"))
    return [finding.what for finding in schema_check.check_schema(seen).findings]


def test_every_shard_has_the_triggers_and_the_policy_of_its_table_and_every_node_the_functions() -> None:
    rule = "(tenant = compaction_store.tenant())"
    policy = f"row security, forced; policies tenant * using {rule} check {rule}; triggers "
    whole = f"{policy}refuse_change A 27; refuse_truncate A 34"
    heads = f"{policy}refuse_change A 11; refuse_truncate A 34"
    assert spread([("messages", 102008, whole), ("heads", 102009, heads)], [("a:1", "digest")]) == []
    changes = (
        "could not connect", whole.replace(" A ", " O "), whole.replace(", forced", ""), whole.replace(rule, "true"),
        f"{policy}none", whole.replace("tenant *", "all * using true check true; tenant *"),
    )  # fmt: skip
    for changed in changes:
        [what] = spread([("messages", 102008, changed)], [])
        assert what.startswith(f"shard 102008 of table messages: {changed}; expected: ")
    assert spread([("heads", 102009, heads)], [("a:1", "digest"), ("a:2", "other")]) == [
        "node a:2: its functions differ from the coordinator's (other)"
    ]


def test_where_the_roles_could_not_be_made_the_owner_is_named() -> None:
    expected = {k: v for k, v in schema_check._expected(has_roles=False).items() if not k.startswith("grant")}
    owners = {f"owner of table {table.name}": "plain" for table in tables.metadata.sorted_tables}
    judged = schema_check.check_schema(Facts({**expected, **owners}, {}))
    assert judged == ((), ("the roles could not be created here: everything belongs to plain",))
    judged = schema_check.check_schema(Facts({**expected, **owners, "owner of table heads": "other"}, {}))
    assert [finding.what for finding in judged.findings] == ["the objects belong to several owners: other, plain"]
