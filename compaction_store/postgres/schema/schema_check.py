"""Compares the schema of a database with the shipped schema, which protects rows from being changed.

The expected facts come from the SQL files and from `schema`. `introspection` reads the facts of the database. Nothing
may be missing or different, and nothing may be added that could change, discard or redirect a write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.models import Finding
from compaction_store.models.roles import GROUPS, OWNER
from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables
from compaction_store.postgres.schema import layout, role_members
from compaction_store.postgres.schema.introspection import Facts
from compaction_store.postgres.schema.layout import CLUSTER, SERVER, Layout

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_TABLE_ONLY = "alembic_version"
_DEFINITION = "definition of view "
_ROW, _BEFORE = 1, 2
_DATA = ModuleData(__file__)
_OF_ALEMBIC, _EVENTS, _ALIASES, _OTHERWISE = (
    _DATA.values[name] for name in ("of_alembic", "events", "aliases", "otherwise")
)
_FUNCTION, _TRIGGER, _CHECK, _ADDED, _VIEW, _INDEX, _BETWEEN, _GRANT = (
    re.compile(_DATA.pattern(name), re.DOTALL)
    for name in ("function", "trigger", "check", "added", "view", "index", "between", "grant")
)


class SchemaReport(NamedTuple):
    """The findings of a schema check, and notes on facts that may be intended or could not be checked."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def check_schema(seen: Facts) -> SchemaReport:
    """Compares the facts of a database with the expected facts."""
    seen = seen._replace(facts={
        subject: _bare_view(fact) if subject.startswith(_DEFINITION) else _bare(fact)
        for subject, fact in seen.facts.items()
    })  # fmt: skip
    has_roles = all(f"role {role}" in seen.roles for role in GROUPS)
    facts = seen.facts if has_roles else {k: v for k, v in seen.facts.items() if not _says_owner(k)}
    expected = _expected(has_roles, seen.layout)
    found = [*_shards(seen)]
    if has_roles and (owner := _other_owner(facts)) is not None:
        found.append(f"everything belongs to {owner}, which was not a member of {OWNER} when it migrated")
        expected, facts = ({k: v for k, v in of.items() if not _says_owner(k)} for of in (expected, facts))
    found += _compare(expected, dict(_with_shipped_indexes(facts, expected)))
    found += _partitions(seen)
    notes: tuple[str, ...] = (*role_members.notes(seen.members), *seen.notes)
    if has_roles:
        found += _compare({f"role {role}": "there" for role in GROUPS}, seen.roles)
        found += role_members.findings(seen.members)
    else:
        owners = {fact for subject, fact in seen.facts.items() if _says_owner(subject)}
        notes = (f"the roles could not be created here: everything belongs to {', '.join(sorted(owners))}", *notes)
        if len(owners) > 1:
            found.append(f"the objects belong to several owners: {', '.join(sorted(owners))}")
    return SchemaReport(tuple(Finding(None, what) for what in found), notes)


def _other_owner(facts: dict[str, str]) -> str | None:
    """Returns the one role that owns all objects, if the login that migrated was no member of the expected owner."""
    owners = {fact for subject, fact in facts.items() if _says_owner(subject)}
    return owners.pop() if len(owners) == 1 and OWNER not in owners else None


def _says_owner(subject: str) -> bool:
    return subject.startswith("owner of ")


def _compare(expected: dict[str, str], seen: dict[str, str]) -> Iterator[str]:
    for subject in sorted(expected.keys() | seen.keys()):
        wanted, found = expected.get(subject), seen.get(subject)
        if wanted == found:
            continue
        if found is None:
            yield f"{subject} is missing"
        elif wanted is None:
            yield f"{subject} is not part of the schema ({found})"
        elif subject.startswith(("body of ", _DEFINITION)):
            yield f"the {subject} is not the shipped one"
        else:
            yield f"{subject}: {found}; expected: {wanted}"


def _partitions(seen: Facts) -> Iterator[str]:
    triggers = "; ".join(
        f"{name} A {kind} compaction_store.{function}"
        for (table, name), (kind, function) in sorted(_triggers(SERVER).items())
        if table == "messages"
    )
    yield from _compare(layout.expected_partitions(seen.partitions, triggers), dict(seen.partitions))


def _shards(seen: Facts) -> Iterator[str]:
    """Checks that every shard has the triggers and the policy of its table, and that every node has the functions."""
    for table, shard, found in seen.cluster.shards:
        triggers = [f"{name} A {kind}" for (on, name), (kind, _) in sorted(_triggers(CLUSTER).items()) if on == table]
        policy = f"tenant * using {CLUSTER.rule} check {CLUSTER.rule}"
        security = "row security, forced" if triggers else "row security, forced, triggers not looked for"
        wanted = f"{security}; policies {policy}; triggers {'; '.join(triggers) or 'none'}"
        if found != wanted:
            yield f"shard {shard} of table {table}: {found}; expected: {wanted}"
    for node, found in seen.cluster.nodes:
        if found != seen.cluster.functions:
            yield f"node {node}: its functions differ from the coordinator's ({found})"


@cache
def _expected(has_roles: bool, layout: Layout = SERVER) -> dict[str, str]:
    facts = dict(_OF_ALEMBIC)
    if has_roles:
        facts |= {"owner of the schema": OWNER, f"owner of table {_TABLE_ONLY}": OWNER}
    for table in layout.tables:
        facts[f"table {table.name}"] = "table, row security, forced"
        facts[f"policy {table.name}.tenant"] = f"permissive, for *, to all, using {layout.rule}, check {layout.rule}"
        facts |= {f"column {table.name}.{column.name}": _column(column) for column in table.columns}
        facts |= dict(_keys(table))
        if has_roles:
            facts[f"owner of table {table.name}"] = OWNER
    facts[f"table {tables.staged.name}"] = "table, persistence u"
    facts |= {f"column {tables.staged.name}.{column.name}": _column(column) for column in tables.staged.columns}
    if has_roles:
        facts[f"owner of table {tables.staged.name}"] = OWNER
    for found in _INDEX.finditer(layout.sql("tables")):
        facts[f"index {found['name']}"] = _index(found["unique"] or "", found["name"], found["table"], found["rest"])
    facts |= dict(_checks())
    facts |= dict(_views(layout, has_roles=has_roles))
    for (table_name, name), (kind, function) in _triggers(layout).items():
        facts[f"trigger {table_name}.{name}"] = f"always, type {kind}, compaction_store.{function}"
    for name, its_facts in _functions(layout).items():
        facts |= its_facts
        if has_roles:
            facts[f"owner of function {name}"] = OWNER
    if has_roles:
        facts |= _grants(layout)
    return facts


def _column(column: sa.Column[object]) -> str:
    parts = [_DIALECT.type_compiler_instance.process(column.type).lower().replace(' collate "c"', " collate C")]
    if not column.nullable:
        parts.append("not null")
    if column.computed is not None:
        parts.append(f"generated as {column.computed.sqltext}")
    elif isinstance(column.server_default, sa.DefaultClause):
        default = str(column.server_default.arg)
        parts.append(f"default {default.replace('timestamptz', _ALIASES['timestamptz'])}")
    return " ".join(parts)


def _keys(table: sa.Table) -> Iterator[tuple[str, str]]:
    key = ", ".join(column.name for column in table.primary_key)
    yield f"constraint {table.name}.{table.name}_pkey", f"PRIMARY KEY ({key})"
    name = f"{table.name}_pkey"
    yield f"index {name}", _index("UNIQUE ", name, f"compaction_store.{table.name}", f"({key})")


def _index(unique: str, name: str, table: str, rest: str) -> str:
    # Postgres prints a list of one element as a comparison.
    rest = re.sub(r"NOT IN \(('\w+')\)", r"<> \1", " ".join(rest.split()))
    return f"CREATE {unique}INDEX {name} ON {table} USING btree {rest}"


def _with_shipped_indexes(facts: dict[str, str], expected: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Leaves out the plain indexes of others, and gives the definitions of ours the form of the SQL files."""
    for subject, fact in facts.items():
        name = subject.removeprefix("plain ")
        wanted = expected.get(name)
        if not name.startswith("index "):
            yield subject, fact
        elif wanted is not None or name == subject:
            is_same = wanted is not None and _bare_view(wanted) == _bare_view(fact)
            yield name, wanted if is_same and wanted is not None else fact


def _checks() -> Iterator[tuple[str, str]]:
    for table in (*tables.metadata.sorted_tables, tables.turns):
        text = (tables.scripts() / "sql" / "tables" / f"{table.name}.sql").read_text(encoding="utf-8")
        for match in _CHECK.finditer(text):
            yield f"constraint {table.name}.{match['name']}", _bare(f"check {match['condition']}")


def _views(layout: Layout, *, has_roles: bool) -> Iterator[tuple[str, str]]:
    for name in tables.VIEWS:
        text = re.sub(r"^\s*--.*$", "", layout.view(name), flags=re.MULTILINE)
        if (match := _VIEW.search(text)) is None or match["name"] != name:
            raise ValueError(f"views/{name}.sql must create the view {name}")
        yield f"table {name}", "of kind v"
        yield f"{_DEFINITION}{name}", _bare_view(f"{match['options'].replace(' ', '')}; {match['query']}")
        if has_roles:
            yield f"owner of table {name}", OWNER


def _bare_view(fact: str) -> str:
    """Normalizes the definition of a view, so that the text in a SQL file equals the text that Postgres prints."""
    for printed, written in _OTHERWISE:
        fact = fact.replace(printed, written)
    fact = re.sub(r"ELSE NULL::[a-z ]+\s+END", "END", fact)
    fact = re.sub(r"\bAS\b|\bpg_catalog\.|;\s*\Z", "", fact)
    return _ADDED.sub("", fact)


def _bare(fact: str) -> str:
    """Normalizes the expression of a check constraint, as `_bare_view` does views. Returns any other fact unchanged."""
    kind, _, condition = fact.partition(" ")
    if kind != "check":
        return fact
    for printed, written in _OTHERWISE:
        condition = condition.replace(printed, written)
    return f"check {_ADDED.sub('', _BETWEEN.sub(_bounds, condition))}"


def _bounds(found: re.Match[str]) -> str:
    value, least, most = found.groups()
    value = value.lstrip("(") if value.count("(") > value.count(")") else value
    return f"{value} >= {least} AND {value} <= {most}"


@cache
def _triggers(layout: Layout) -> dict[tuple[str, str], tuple[int, str]]:
    """Returns the type number and the function of each expected trigger, by table and name of the trigger."""
    found = {}
    for match in _TRIGGER.finditer(layout.sql("triggers")):
        kind = _BEFORE | (_ROW if match["each"] == "ROW" else 0)
        for event in match["events"].split(" OR "):
            kind |= _EVENTS[event.strip()]
        found[match["table"], match["name"]] = (kind, match["function"])
    return found


@cache
def _functions(layout: Layout) -> dict[str, dict[str, str]]:
    """Returns the expected facts about each function, by the function's name."""
    found = {}
    for match in _FUNCTION.finditer(layout.sql("functions")):
        arguments = [_words(part) for part in match["arguments"].split(",") if part.strip()]
        name = f"{match['name']}()"
        settings = [_setting(line) for line in match["settings"].splitlines() if line.startswith("SET ")]
        found[name] = {
            f"function {name}": _description(match["options"], match["result"], arguments),
            f"settings of function {name}": "; ".join(sorted(filter(layout.has_setting, settings))) or "none",
            f"body of function {name}": sha256(match["body"].encode()).hexdigest(),
        }
    return found


def _words(text: str) -> str:
    return " ".join(_ALIASES.get(word, word) for word in text.split())


def _description(options: str, result: str | None, arguments: list[str]) -> str:
    language, _, rest = options.partition(" ")
    parts = [language, *(word.lower() for word in ("IMMUTABLE", "STABLE", "STRICT") if word in rest)]
    if "SECURITY DEFINER" in rest:
        parts.append("security definer")
    return ", ".join((*parts, f"takes {', '.join(arguments)}", f"returns {_result(result, arguments)}"))


def _result(result: str | None, arguments: list[str]) -> str:
    if result is None:
        out = [argument.split(maxsplit=2)[2] for argument in arguments if argument.startswith(("OUT ", "INOUT "))]
        return out[0] if len(out) == 1 else "record"
    if table := re.fullmatch(r"TABLE\s*\((.*)\)", result.strip(), re.DOTALL):
        return f"TABLE({', '.join(map(_words, table[1].split(',')))})"
    return _words(result)


def _setting(line: str) -> str:
    name, _, value = line.removeprefix("SET ").partition(" = ")
    return f"{name}={value.strip().strip(chr(39))}"


def _grants(layout: Layout) -> dict[str, str]:
    """Returns the expected privileges, by object and role."""
    found: dict[tuple[str, str], set[str]] = {}
    for match in _GRANT.finditer(layout.sql("roles")):
        for name in _objects(match["objects"], match["columns"]):
            for role in match["roles"].split(","):
                found.setdefault((name, role.strip()), set()).update(
                    privilege.strip() for privilege in match["privileges"].split(",")
                )
    return {f"grant on {name} to {role}": ", ".join(sorted(privileges)) for (name, role), privileges in found.items()}


def _objects(text: str, columns: str | None) -> list[str]:
    kind = text.split(maxsplit=1)[0]
    if kind == "SCHEMA":
        return ["the schema"]
    names = re.findall(r"compaction_store\.(\w+)", text)
    if columns is not None:
        return [f"{name}.{column.strip()}" for name in names for column in columns.split(",")]
    return [f"{name}()" for name in names] if kind == "FUNCTION" else names
