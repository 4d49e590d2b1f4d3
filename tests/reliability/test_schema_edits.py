"""Level schema against a superuser: changes in SQL and edits of the catalogue, each found, noted, or on the list of
`docs/integrity.md` of what is not looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.paths import ROOT

import compaction_store as cs
from compaction_store.deploy import doctor, roles

_PAGE = ROOT / "docs" / "integrity.md"
_S = "compaction_store"
_QUIET = (
    "CREATE FUNCTION public.quiet() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;"
    "CREATE FUNCTION public.peek(json) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';"
)


def of(name: str, kind: str = "regclass") -> str:
    return f"'{_S}.{name}'::{kind}"


# Each change, and the text of its finding. Only a superuser can edit the catalogue.
FOUND = {
    "no trigger is looked for": (
        f"UPDATE pg_class SET relhastriggers = false WHERE oid = {of('messages')}",
        "table messages: .*triggers not looked for",
    ),
    "no index is looked for": (
        f"UPDATE pg_class SET relhasindex = false WHERE oid = {of('messages')}",
        "table messages: .*indexes not looked for",
    ),
    "no check is looked for": (
        f"UPDATE pg_class SET relchecks = 0 WHERE oid = {of('messages')}",
        "table messages: .*checks not looked for",
    ),
    "not populated": (
        f"UPDATE pg_class SET relispopulated = false WHERE oid = {of('events')}",
        "table events: .*not populated",
    ),
    "policies off in the catalogue": (
        f"UPDATE pg_class SET relrowsecurity = false WHERE oid = {of('messages')}",
        "table messages: table, forced",
    ),
    "policies not forced in the catalogue": (
        f"UPDATE pg_class SET relforcerowsecurity = false WHERE oid = {of('messages')}",
        "table messages: table, row security;",
    ),
    "another kind of table": (
        f"UPDATE pg_class SET relkind = 'f' WHERE oid = {of('events')}",
        "table events: of kind f",
    ),
    "another owner in the catalogue": (
        (f"UPDATE pg_class SET relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user)"
        f" WHERE oid = {of('messages')}"),
        "owner of table messages",
    ),
    "a second body of a function": (
        ("CREATE FUNCTION public.free() RETURNS timestamptz LANGUAGE sql BEGIN ATOMIC SELECT NULL::timestamptz; END;"
        "UPDATE pg_proc SET prosqlbody = (SELECT p.prosqlbody FROM pg_proc AS p WHERE p.proname = 'free')"
        f" WHERE proname = 'retained_until' AND pronamespace = '{_S}'::regnamespace"),
        r"function retained_until\(\): .*with a second body",
    ),
    "a function's body in the catalogue": (
        f"UPDATE pg_proc SET prosrc = prosrc || ' ' WHERE proname = 'redact' AND pronamespace = '{_S}'::regnamespace",
        r"the body of function redact\(\) is not",
    ),
    "a function's language": (
        ("UPDATE pg_proc SET prolang = (SELECT oid FROM pg_language WHERE lanname = 'internal')"
        f" WHERE oid = {of('refuse_change', 'regproc')}"),
        r"function refuse_change\(\): internal",
    ),
    "a function's kind": (
        f"UPDATE pg_proc SET prokind = 'w' WHERE oid = {of('retained_until', 'regproc')}",
        r"function retained_until\(\)",
    ),
    "a support function": (
        ("UPDATE pg_proc SET prosupport = 'pg_catalog.textlike_support'::regproc"
        f" WHERE oid = {of('tenant', 'regproc')}"),
        r"function tenant\(\): .*with another support",
    ),
    "parallel": (f"ALTER FUNCTION {_S}.tenant PARALLEL SAFE", r"function tenant\(\): .*parallel s"),
    "cost": (f"ALTER FUNCTION {_S}.tenant COST 100000", r"function tenant\(\): .*of another cost"),
    "leakproof": (f"ALTER FUNCTION {_S}.tenant LEAKPROOF", r"function tenant\(\): .*leakproof"),
    "a setting of a function": (
        f"ALTER FUNCTION {_S}.append SET session_replication_role = replica", r"settings of function append\(\)",
    ),
    "an internal trigger": (
        (f"{_QUIET}CREATE TRIGGER copies AFTER INSERT ON {_S}.messages FOR EACH ROW EXECUTE FUNCTION public.quiet();"
        "UPDATE pg_trigger SET tgisinternal = true WHERE tgname = 'copies'"),
        r"trigger messages\.copies is not part of the schema",
    ),
    "an internal trigger of a constraint": (
        (f"{_QUIET}CREATE TRIGGER copies AFTER INSERT ON {_S}.messages FOR EACH ROW EXECUTE FUNCTION public.quiet();"
        "UPDATE pg_trigger SET tgisinternal = true, tgconstraint ="
        " (SELECT oid FROM pg_constraint WHERE conname = 'messages_pkey') WHERE tgname = 'copies'"),
        r"trigger messages\.copies is not part of the schema",
    ),
    "an internal trigger with a name of Postgres's": (
        ('CREATE FUNCTION public."RI_FKey_noaction_del"() RETURNS trigger LANGUAGE plpgsql'
        ' AS $$BEGIN RETURN NEW; END$$;'
        f"CREATE TRIGGER copies AFTER INSERT ON {_S}.messages FOR EACH ROW"
        ' EXECUTE FUNCTION public."RI_FKey_noaction_del"();'
        "UPDATE pg_trigger SET tgisinternal = true WHERE tgname = 'copies'"),
        r"trigger messages\.copies is not part of the schema",
    ),
    "a trigger switched off in the catalogue": (
        f"UPDATE pg_trigger SET tgenabled = 'D' WHERE tgrelid = {of('messages')} AND tgname = 'refuse_change'",
        r"trigger messages\.refuse_change: disabled",
    ),
    "a trigger of another function": (
        (f"{_QUIET}UPDATE pg_trigger SET tgfoid = 'public.quiet'::regproc WHERE tgrelid = {of('messages')}"
        " AND tgname = 'refuse_change'"),
        r"trigger messages\.refuse_change: always, type 27, public\.quiet",
    ),
    "a trigger of fewer events": (
        f"UPDATE pg_trigger SET tgtype = 11 WHERE tgrelid = {of('messages')} AND tgname = 'refuse_change'",
        r"trigger messages\.refuse_change: always, type 11",
    ),
    "a trigger's row is gone": (
        f"DELETE FROM pg_trigger WHERE tgrelid = {of('messages')} AND tgname = 'refuse_change'",
        r"trigger messages\.refuse_change is missing",
    ),
    "a policy's row is gone": (
        f"DELETE FROM pg_policy WHERE polrelid = {of('messages')}", r"policy messages\.tenant is missing",
    ),
    "a policy of other commands": (
        f"UPDATE pg_policy SET polcmd = 'r' WHERE polrelid = {of('messages')}", r"policy messages\.tenant: .*for r",
    ),
    "a schema's owner": (f"ALTER SCHEMA {_S} OWNER TO {{login}}", "owner of the schema: "),
    "the owner of alembic's table": (
        f"ALTER TABLE {_S}.alembic_version OWNER TO {{login}}", "owner of table alembic_version: ",
    ),
    "a key that may repeat": (
        f"UPDATE pg_index SET indisunique = false WHERE indexrelid = {of('messages_pkey')}",
        r"constraint messages\.messages_pkey: .*invalid",
    ),
    "a key that is no key": (
        f"UPDATE pg_index SET indisunique = false, indisprimary = false WHERE indexrelid = {of('heads_pkey')}",
        r"constraint heads\.heads_pkey: .*invalid",
    ),
    "a key that is checked later": (
        f"UPDATE pg_index SET indimmediate = false WHERE indexrelid = {of('messages_pkey')}",
        r"constraint messages\.messages_pkey: .*invalid",
    ),
    "a key that is not valid": (
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {of('messages_pkey')}",
        r"constraint messages\.messages_pkey: .*invalid",
    ),
    "a unique index that may repeat": (
        f"UPDATE pg_index SET indisunique = false WHERE indexrelid = {of('messages_key_idx')}",
        "index messages_key_idx: CREATE INDEX .*; expected: CREATE UNIQUE INDEX",
    ),
    "a unique index that is checked later": (
        f"UPDATE pg_index SET indimmediate = false WHERE indexrelid = {of('messages_key_idx')}",
        "index messages_key_idx: .*invalid",
    ),
    "an index that computes": (
        f"{_QUIET}CREATE INDEX mine ON {_S}.messages (public.peek(payload))", "index mine is not part of the schema",
    ),
    "an index with a condition that computes": (
        f"{_QUIET}CREATE INDEX mine ON {_S}.messages (seq) WHERE public.peek(payload)",
        "index mine is not part of the schema",
    ),
    "one of ours that computes": (
        (f"{_QUIET}DROP INDEX {_S}.messages_listed_idx;"
        f"CREATE INDEX messages_listed_idx ON {_S}.messages (tenant) WHERE public.peek(payload)"),
        "index messages_listed_idx: CREATE .*, with what is not part of Postgres; expected: CREATE",
    ),
    "one of ours that has other columns": (
        (f"DROP INDEX {_S}.heads_due_idx;"
        f"CREATE INDEX heads_due_idx ON {_S}.heads (tenant, thread_uid, view_tokens_coarse)"),
        r"index heads_due_idx: CREATE .*\(tenant, thread_uid, view_tokens_coarse\); expected: CREATE",
    ),
    "one of ours in another order": (
        (f"DROP INDEX {_S}.compactions_in_force_idx;"
        f"CREATE INDEX compactions_in_force_idx ON {_S}.compactions (thread_uid, start_seq, end_seq, number DESC)"
        " INCLUDE (pos, redacted_pos, tokens_after, tenant) WHERE outcome = 'applied' AND revokes IS NULL"),
        "index compactions_in_force_idx: CREATE",
    ),
    "one of ours that leaves rows out": (
        (f"DROP INDEX {_S}.compactions_audit_idx;"
        f"CREATE INDEX compactions_audit_idx ON {_S}.compactions (tenant, created_at, thread_uid, number)"
        " WHERE number < 1000"),
        "index compactions_audit_idx: CREATE .*WHERE",
    ),
    "one of ours by a cast": (
        (f"DROP INDEX {_S}.compactions_audit_idx;"
        f"CREATE INDEX compactions_audit_idx ON {_S}.compactions (tenant, created_at, thread_uid, (number::text))"),
        "index compactions_audit_idx: CREATE .*, with an expression; expected",
    ),
    "one of ours that is gone": (f"DROP INDEX {_S}.compactions_run_idx", "index compactions_run_idx is missing"),
    "one of ours that is not valid": (
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {of('compactions_run_idx')}",
        "index compactions_run_idx: .*invalid",
    ),
    "one of ours with another condition in the catalogue": (
        (f"UPDATE pg_index SET indpred = (SELECT indpred FROM pg_index WHERE indexrelid = {of('messages_key_idx')})"
        f" WHERE indexrelid = {of('messages_listed_idx')}"),
        "index messages_listed_idx: CREATE",
    ),
    "a key with other columns in the catalogue": (
        f"UPDATE pg_index SET indkey = '1 3' WHERE indexrelid = {of('messages_pkey')}", "index messages_pkey: CREATE",
    ),
    "a table that makes the functions behave as on a cluster": (
        "CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass)", "pg_dist_partition without Citus is not",
    ),
    "statistics that compute": (
        f"{_QUIET}CREATE STATISTICS public.mine ON (public.peek(payload)), seq FROM {_S}.messages",
        "statistics mine is not part",
    ),
    "a check that is dropped": (
        f"ALTER TABLE {_S}.messages DROP CONSTRAINT messages_tokens_check", "messages_tokens_check is missing",
    ),
    "a check that is not valid": (
        (f"ALTER TABLE {_S}.messages DROP CONSTRAINT messages_tokens_check;"
        f"ALTER TABLE {_S}.messages ADD CONSTRAINT messages_tokens_check CHECK (tokens >= 0) NOT VALID"),
        "messages_tokens_check: check .*notvalid",
    ),
    "another check behind a name": (
        (f"ALTER TABLE {_S}.messages DROP CONSTRAINT messages_tokens_check;"
        f"ALTER TABLE {_S}.messages ADD CONSTRAINT messages_tokens_check CHECK (tokens >= 0 OR tokens < 0)"),
        "messages_tokens_check: check tokens>=0ORtokens<0; expected: check tokens>=0",
    ),
    "a check that is always met": (
        (f"ALTER TABLE {_S}.messages DROP CONSTRAINT messages_tenant_check;"
        f"ALTER TABLE {_S}.messages ADD CONSTRAINT messages_tenant_check CHECK (true)"),
        "messages_tenant_check: check true",
    ),
    "a check more": (
        f"ALTER TABLE {_S}.messages ADD CONSTRAINT mine CHECK (seq < 5)", r"constraint messages\.mine is not part",
    ),
    "a default": (f"ALTER TABLE {_S}.messages ALTER seq SET DEFAULT 1", r"column messages\.seq: .*not null default"),
    "a default that is not looked for": (
        f"UPDATE pg_attribute SET atthasdef = false WHERE attrelid = {of('heads')} AND attname = 'view_tokens_coarse'",
        r"column heads\.view_tokens_coarse: .*not looked for",
    ),
    "a column that may be null, in the catalogue": (
        f"UPDATE pg_attribute SET attnotnull = false WHERE attrelid = {of('messages')} AND attname = 'entry'",
        r"column messages\.entry: bytea;",
    ),
    "a column generated no longer": (
        f"ALTER TABLE {_S}.heads ALTER view_tokens_coarse DROP EXPRESSION", r"column heads\.view_tokens_coarse",
    ),
    "a column more of alembic's": (
        f"ALTER TABLE {_S}.alembic_version ADD mine integer", r"column alembic_version\.mine is not part",
    ),
    "a column less of alembic's key": (
        f"ALTER TABLE {_S}.alembic_version DROP CONSTRAINT alembic_version_pkc", "alembic_version_pkc is missing",
    ),
    "a trigger on alembic's table": (
        f"{_QUIET}CREATE TRIGGER mine BEFORE UPDATE ON {_S}.alembic_version EXECUTE FUNCTION public.quiet()",
        r"trigger alembic_version\.mine is not part",
    ),
    "a rule on alembic's table": (
        f"CREATE RULE mine AS ON UPDATE TO {_S}.alembic_version DO INSTEAD NOTHING", r"rule alembic_version\.mine",
    ),
    "a rule": (f"CREATE RULE mine AS ON INSERT TO {_S}.events DO ALSO SELECT 1", r"rule events\.mine is not part"),
    "a child": (f"CREATE TABLE public.child () INHERITS ({_S}.messages)", r"inheritance of public\.child"),
    "a parent": (
        f'CREATE TABLE public.parent (tenant text COLLATE "C" NOT NULL); ALTER TABLE {_S}.events INHERIT public.parent',
        r"inheritance of compaction_store\.events from parent",
    ),
    "a table": (f"CREATE TABLE {_S}.mine (id integer)", "table mine is not part"),
    "a view": (f"CREATE VIEW {_S}.mine AS SELECT 1 AS one", "table mine is not part"),
    "a materialized view": (f"CREATE MATERIALIZED VIEW {_S}.mine AS SELECT 1 AS one", "table mine is not part"),
    "a sequence": (f"CREATE SEQUENCE {_S}.mine", "table mine is not part"),
    "a partitioned table": (f"CREATE TABLE {_S}.mine (id integer) PARTITION BY RANGE (id)", "table mine is not part"),
    "a foreign table": (
        (f"CREATE FOREIGN DATA WRAPPER w; CREATE SERVER w FOREIGN DATA WRAPPER w;"
        f"CREATE FOREIGN TABLE {_S}.mine (id integer) SERVER w"),
        "table mine is not part of the schema .of kind f",
    ),
    "a row type": (f"CREATE TYPE {_S}.mine AS (id integer)", "table mine is not part of the schema .of kind c"),
    "an enumeration": (f"CREATE TYPE {_S}.mine AS ENUM ('a')", "type mine is not part"),
    "a range": (f"CREATE TYPE {_S}.mine AS RANGE (subtype = int4)", "type mine is not part"),
    "a domain": (f"CREATE DOMAIN {_S}.mine AS json", "type mine is not part"),
    "an operator": (
        (f"CREATE FUNCTION public.same(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        f"CREATE OPERATOR {_S}.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = public.same)"),
        r"operator = \(bytea, bytea\) is not part",
    ),
    "an operator class": (
        f"CREATE OPERATOR CLASS {_S}.mine FOR TYPE int4 USING btree AS OPERATOR 3 =, FUNCTION 1 btint4cmp(int4, int4)",
        "operator class mine is not part",
    ),
    "an operator family": (f"CREATE OPERATOR FAMILY {_S}.mine USING btree", "operator family mine is not part"),
    "a collation": (f'CREATE COLLATION {_S}.mine FROM "C"', "collation mine is not part"),
    "a conversion": (
        f"CREATE CONVERSION {_S}.mine FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8", "conversion mine is not part",
    ),
    "a text search configuration": (
        f"CREATE TEXT SEARCH CONFIGURATION {_S}.mine (COPY = pg_catalog.simple)", "text search configuration mine",
    ),
    "a text search dictionary": (
        f"CREATE TEXT SEARCH DICTIONARY {_S}.mine (TEMPLATE = pg_catalog.simple)", "text search dictionary mine",
    ),
    "statistics": (f"CREATE STATISTICS {_S}.mine ON seq, pos FROM {_S}.messages", "statistics mine is not part"),
    "a function": (f"CREATE FUNCTION {_S}.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", r"function mine\(\) is not"),
    "a function of the owner in another schema": (
        (f"CREATE FUNCTION public.mine() RETURNS int SECURITY DEFINER LANGUAGE sql AS 'SELECT 1';"
         f"ALTER FUNCTION public.mine() OWNER TO {_S}_owner"),
        rf"function public\.mine\(\), which belongs to {_S}_owner, is not part",
    ),
    "a view of the owner in another schema": (
        f"CREATE VIEW public.mine AS SELECT 1 AS one; ALTER VIEW public.mine OWNER TO {_S}_owner",
        rf"view public\.mine, which belongs to {_S}_owner, is not part",
    ),
    "a procedure": (f"CREATE PROCEDURE {_S}.mine() LANGUAGE sql AS 'SELECT 1'", r"function mine\(\) is not part"),
    "an aggregate": (
        f"CREATE AGGREGATE {_S}.mine(int4) (SFUNC = int4larger, STYPE = int4)", r"function mine\(\) is not part",
    ),
    "default privileges in the schema": (
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {_S} GRANT ALL ON TABLES TO PUBLIC", "default privileges of .* on kind r",
    ),
    "default privileges of the owner": (
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {_S}_owner GRANT ALL ON FUNCTIONS TO {{login}}",
        f"default privileges of {_S}_owner on kind f",
    ),
    "a grant in the catalogue": (
        f"UPDATE pg_class SET relacl = relacl || '=w/{_S}_owner'::aclitem WHERE oid = {of('heads')}",
        "grant on heads to PUBLIC is not part",
    ),
    "a grant to a login": (f"GRANT UPDATE ON {_S}.heads TO {{login}}", "grant on heads to cs_edits_"),
    "a grant on a column": (f"GRANT UPDATE (payload) ON {_S}.messages TO {{login}}", r"grant on messages\.payload to"),
    "a grant on the schema": (f"GRANT CREATE ON SCHEMA {_S} TO {{login}}", "grant on the schema to cs_edits_"),
}  # fmt: skip
# Not wrong by itself: doctor and verify note it.
NOTED = {
    "event trigger": (
        (
            "CREATE FUNCTION public.seen() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN END$$;"
            "CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION public.seen()"
        ),
        "event triggers, .*: mine",
    ),
    "publication": (f"CREATE PUBLICATION mine FOR TABLE {_S}.messages", "publications, .*: mine"),
    "publication of all": ("CREATE PUBLICATION mine FOR ALL TABLES", "publications, .*: mine"),
    "replica identity": (f"ALTER TABLE {_S}.events REPLICA IDENTITY FULL", "replica identity is not the key: events"),
}
# On the list of the page, in these words.
PUBLISHED = {
    "plain indexes of others": f"CREATE INDEX mine ON {_S}.heads (last_pos)",
    "storage parameters": (
        f"ALTER TABLE {_S}.heads SET (autovacuum_enabled = off); ALTER INDEX {_S}.heads_due_idx SET (fillfactor = 70)"
    ),
    "storage and compression of columns": f"ALTER TABLE {_S}.messages ALTER payload SET STORAGE EXTERNAL",
    "statistics targets": f"ALTER TABLE {_S}.messages ALTER tenant SET STATISTICS 1",
    "comments and security labels": f"COMMENT ON TABLE {_S}.messages IS 'mine'",
    "foreign keys of others": f"CREATE TABLE public.mine (id uuid REFERENCES {_S}.threads)",
    "functions and casts of Postgres's own": (
        "CREATE OR REPLACE FUNCTION pg_catalog.to_ascii(text) RETURNS text LANGUAGE sql AS 'SELECT $1'"
    ),
}


@pytest.fixture
def login(superuser: Any) -> Iterator[str]:
    name = f"cs_edits_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    yield name
    with superuser.transaction():
        superuser.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def reader(url: str) -> Iterator[cs.Reader]:
    with cs.Store.open(url) as store:
        store.append("t", {"n": 1}, raw=True)
    with cs.Reader.open(url) as opened:
        yield opened


def told(reader: cs.Reader) -> tuple[list[str], list[str]]:
    report = next(reader.audit.verify(level="schema"))
    return [finding.what for finding in report.findings], list(report.notes)


def change(superuser: psycopg.Connection[Any], statements: str) -> None:
    superuser.execute("SET allow_system_table_mods = on")
    superuser.execute(statements.encode())


@pytest.mark.parametrize("name", FOUND)
def test_a_change_is_found(reader: cs.Reader, superuser: Any, login: str, name: str) -> None:
    statements, what = FOUND[name]
    assert told(reader)[0] == []
    change(superuser, statements.replace("{login}", login))
    found, _ = told(reader)
    assert any(re.search(what, each) for each in found), found


@pytest.mark.parametrize("name", NOTED)
def test_what_may_be_meant_is_a_note(reader: cs.Reader, url: str, superuser: Any, name: str) -> None:
    statements, what = NOTED[name]
    change(superuser, statements)
    found, notes = told(reader)
    assert found == []
    assert any(re.search(what, note) for note in notes), notes
    assert any(check.state == "note" and re.search(what, check.what) for check in doctor.diagnose(url))


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_not_looked_at_is_published(reader: cs.Reader, superuser: Any, name: str) -> None:
    change(superuser, PUBLISHED[name])
    assert told(reader)[0] == []
    page = " ".join(_PAGE.read_text(encoding="utf-8").split())
    assert name in page


@pytest.mark.alters_roles
def test_a_foreign_key_of_others_is_no_finding(reader: cs.Reader, superuser: Any) -> None:
    superuser.execute(PUBLISHED["foreign keys of others"])
    assert told(reader) == ([], [])


_APP, _OWNER, _AUDITOR, _LOADER, _REVIEWER = (
    f"{_S}_{name}" for name in ("app", "owner", "auditor", "loader", "reviewer")
)
MEMBERS = {
    "owner and application at once": (f"GRANT {_APP}, {_OWNER} TO {{login}}", "is owner and application at once"),
    "reviewer and application at once": (f"GRANT {_APP}, {_REVIEWER} TO {{login}}", "is reviewer and application at"),
    "reviewer and loader at once": (f"GRANT {_LOADER}, {_REVIEWER} TO {{login}}", "is reviewer and loader at once"),
    "one who reads files": (f"GRANT {_APP}, pg_read_server_files TO {{login}}", f"{_APP}, and a member of pg_read_s"),
    "a reviewer who reads files": (
        f"GRANT {_REVIEWER}, pg_read_server_files TO {{login}}", f"{_REVIEWER}, and a member of pg_read_s",
    ),
    "a superuser": (f"GRANT {_APP} TO {{login}}; ALTER ROLE {{login}} SUPERUSER", f"of {_APP}, and a superuser"),
    "exempt": (f"GRANT {_APP} TO {{login}}; ALTER ROLE {{login}} BYPASSRLS", f"{_APP}, and exempt from row-level"),
    "a loader who is exempt": (f"GRANT {_LOADER} TO {{login}}; ALTER ROLE {{login}} BYPASSRLS", f"{_LOADER}, and ex"),
    "an auditor who is a superuser": (
        f"GRANT {_AUDITOR} TO {{login}}; ALTER ROLE {{login}} SUPERUSER", f"{_AUDITOR}, and a superuser",
    ),
    "one who writes everything": (f"GRANT {_APP}, pg_write_all_data TO {{login}}", f"{_APP}, and a member of pg_wr"),
    "an auditor who writes everything": (
        f"GRANT {_AUDITOR}, pg_write_all_data TO {{login}}", f"{_AUDITOR}, and a member of pg_write_all",
    ),
    "one who writes files": (f"GRANT {_APP}, pg_write_server_files TO {{login}}", f"{_APP}, and a member of pg_wr"),
    "one who locks": (f"GRANT {_APP}, pg_maintain TO {{login}}", f"{_APP}, and a member of pg_maintain"),
    "one who runs programs": (f"GRANT {_APP}, pg_execute_server_program TO {{login}}", "member of pg_execute_server"),
}  # fmt: skip
MEANT = {
    "an owner": (f"GRANT {_OWNER} TO {{login}}", f"may change everything, as members of {_OWNER}: '{{login}}'"),
    "an auditor of all tenants": (
        f"GRANT {_AUDITOR} TO {{login}}; ALTER ROLE {{login}} BYPASSRLS", "auditors of all tenants, .*: '{login}'",
    ),
    "an auditor who writes": (f"GRANT {_AUDITOR}, {_APP} TO {{login}}", "can keep checkpoints waiting: '{login}'"),
    "an auditor who loads": (f"GRANT {_AUDITOR}, {_LOADER} TO {{login}}", "can keep checkpoints waiting: '{login}'"),
    "one who reads the server's files": (
        "GRANT pg_read_server_files TO {login}", "may read every file of the server: '{login}'",
    ),
    "one who owns the database": (
        f"GRANT {_APP} TO {{login}}; ALTER DATABASE {{database}} OWNER TO {{login}}",
        "may drop the database, as its owner: '{login}'",
    ),
    "one who maintains the server": (
        "GRANT pg_maintain TO {login}", "may lock and rewrite every table of the server: '{login}'",
    ),
    "one of another program": ("GRANT pg_write_all_data TO {login}", "may write to every table of .*: '{login}'"),
}  # fmt: skip


@pytest.mark.alters_roles
@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_who_may_more_is_found_and_named_by_the_doctor(
    reader: cs.Reader, url: str, superuser: Any, login: str, name: str
) -> None:
    statements, what = MEMBERS[name]
    if "pg_maintain" in statements and superuser.info.server_version < 170000:
        pytest.skip("since Postgres 17")
    superuser.execute(statements.replace("{login}", login))
    found, _ = told(reader)
    assert len(found) == 1
    assert found[0].startswith(f"login '{login}' is ")
    assert what in found[0]
    problems = [check for check in doctor.diagnose(url) if check.state == "problem"]
    assert [check.what for check in problems if check.name == "protection"] == found


@pytest.mark.alters_roles
@pytest.mark.parametrize("other", [_OWNER, "pg_write_all_data", "pg_read_server_files", "{login}_group"])
def test_a_member_who_may_grant_itself_another_role_is_found_and_refused(
    reader: cs.Reader, url: str, superuser: psycopg.Connection[Any], login: str, other: str
) -> None:
    if superuser.info.server_version < 160000:
        pytest.skip("before Postgres 16, it has the role")
    other = other.format(login=login)
    superuser.execute(f"CREATE ROLE {login}_group BYPASSRLS; GRANT {_APP} TO {login}".encode())
    superuser.execute(f"GRANT {other} TO {login} WITH ADMIN OPTION, INHERIT FALSE, SET FALSE".encode())
    try:
        power = f"able to become {other} (ADMIN OPTION)"
        assert told(reader)[0] == [f"login '{login}' is a member of {_APP}, and {power}"]
        with pytest.raises(cs.InvalidInput, match="able to become"):
            roles.grant(url, login, "auditor")
        # It is true: the login grants itself the role.
        superuser.execute(f"SET SESSION AUTHORIZATION {login}".encode())
        superuser.execute(f"GRANT {other} TO {login} WITH SET TRUE; SET ROLE {other}".encode())
    finally:
        superuser.execute("RESET SESSION AUTHORIZATION")
        superuser.execute(f"DROP ROLE {login}_group".encode())


@pytest.mark.alters_roles
@pytest.mark.parametrize("other", [_OWNER, "pg_write_all_data"])
@pytest.mark.parametrize("way", ["INHERIT TRUE, SET FALSE", "INHERIT FALSE, SET TRUE", "INHERIT FALSE, SET FALSE"])
def test_since_postgres_16_what_a_membership_allows_is_what_counts(
    reader: cs.Reader, url: str, superuser: psycopg.Connection[Any], login: str, other: str, way: str
) -> None:
    """By way of two groups, where the last membership allows something or nothing."""
    if superuser.info.server_version < 160000:
        pytest.skip("before Postgres 16, a membership has no such options")
    outer, inner = f"{login}_outer", f"{login}_inner"
    superuser.execute(f"CREATE ROLE {inner}; CREATE ROLE {outer} IN ROLE {inner}; GRANT {outer} TO {login}".encode())
    superuser.execute(f"GRANT {other} TO {inner} WITH {way}".encode())
    try:
        if way == "INHERIT FALSE, SET FALSE":
            roles.grant(url, login, "application")
            assert told(reader)[0] == []
        else:
            with pytest.raises(cs.InvalidInput, match=r"make (another login|a login for each)"):
                roles.grant(url, login, "application")
            superuser.execute(f"GRANT {_APP} TO {login}".encode())
            [found] = told(reader)[0]
            assert found.startswith(f"login '{login}' is ")
    finally:
        superuser.execute(f"DROP ROLE {outer}, {inner}".encode())


@pytest.mark.alters_roles
def test_a_member_by_way_of_a_group_is_found(reader: cs.Reader, superuser: Any, login: str) -> None:
    group = f"{login}_group"
    superuser.execute(f"CREATE ROLE {group} IN ROLE {_OWNER}; GRANT {group}, {_APP} TO {login}")
    try:
        assert told(reader)[0] == [f"login '{login}' is owner and application at once"]
    finally:
        superuser.execute(f"DROP ROLE {group}")


@pytest.mark.alters_roles
@pytest.mark.parametrize("name", MEANT)
def test_a_member_who_is_meant_to_is_a_note(reader: cs.Reader, url: str, superuser: Any, login: str, name: str) -> None:
    statements, what = MEANT[name]
    if "pg_maintain" in statements and superuser.info.server_version < 170000:
        pytest.skip("since Postgres 17")
    database = superuser.info.dbname
    superuser.execute(statements.replace("{login}", login).replace("{database}", database))
    found, notes = told(reader)
    assert found == []
    assert any(re.search(what.replace("{login}", login), note) for note in notes), notes
    assert any(re.search(what.replace("{login}", login), check.what) for check in doctor.diagnose(url))


@pytest.mark.alters_roles
def test_what_is_found_is_what_grant_refuses(url: str, superuser: Any, login: str) -> None:
    for statements, role in (
        (f"GRANT {_OWNER} TO {login}", "application"), (f"GRANT {_APP} TO {login}", "owner"),
        (f"ALTER ROLE {login} SUPERUSER", "application"), (f"ALTER ROLE {login} BYPASSRLS", "auditor"),
        (f"GRANT pg_write_all_data TO {login}", "application"), (f"GRANT pg_write_all_data TO {login}", "auditor"),
        (f"GRANT pg_execute_server_program TO {login}", "loader"),
        (f"GRANT pg_read_server_files TO {login}", "reviewer"), (f"GRANT pg_read_server_files TO {login}", "auditor"),
        (f"GRANT {_APP} TO {login}", "reviewer"), (f"GRANT {_REVIEWER} TO {login}", "application"),
        (f"GRANT {_LOADER} TO {login}", "reviewer"), (f"GRANT {_REVIEWER} TO {login}", "loader"),
    ):  # fmt: skip
        superuser.execute(statements.encode())
        with pytest.raises(cs.InvalidInput, match=login):
            roles.grant(url, login, role)  # type: ignore[arg-type]
        superuser.execute(
            f"REVOKE {_OWNER}, {_APP}, {_LOADER}, {_REVIEWER} FROM {login};"
            f"REVOKE pg_write_all_data, pg_execute_server_program, pg_read_server_files FROM {login};"
            f"ALTER ROLE {login} NOSUPERUSER NOBYPASSRLS"
        )
    roles.grant(url, login, "application")


@pytest.mark.alters_roles
def test_an_auditor_sees_who_may_more(url: str, superuser: Any, login: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"n": 1}, raw=True)
    superuser.execute(f"GRANT {_AUDITOR} TO {login}; CREATE PUBLICATION mine FOR ALL TABLES")
    address = sa.make_url(url).set(username=login, password="pw").render_as_string(hide_password=False)
    with cs.Reader.open(address) as reader:
        found, notes = told(reader)
        assert found == []
        assert len(notes) == 1
        change(superuser, FOUND["no trigger is looked for"][0])
        assert len(told(reader)[0]) == 1
