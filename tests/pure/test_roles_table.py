"""Each fact about a role is said once: the SQL that makes and grants the roles, and the pages, agree with the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from compaction_store.models.roles import APPLICATION, GROUPS, ROLES, Role

_ROOT = Path(__file__).parents[2]
_SQL = _ROOT / "migrations" / "sql"
_GROUP = re.compile(r"\bcompaction_store_[a-z]+\b")


def _text(path: str) -> str:
    return (_ROOT / path).read_text(encoding="utf-8")


def _granted() -> dict[str, set[str]]:
    """Returns the functions that the SQL grants to each role, on one server."""
    found: dict[str, set[str]] = {group: set() for group in GROUPS}
    text = re.sub(r"--[^\n]*", "", (_SQL / "roles" / "grants.sql").read_text(encoding="utf-8"))
    for functions, groups in re.findall(r"GRANT EXECUTE ON FUNCTION\s+([^;]+?)\s+TO\s+([^;]+);", text):
        for group in _GROUP.findall(groups):
            found[group] |= set(re.findall(r"compaction_store\.(\w+)", functions))
    return found


def test_the_table_has_a_row_for_each_role() -> None:
    assert tuple(ROLES) == get_args(Role)
    assert len(set(GROUPS)) == len(GROUPS)


@pytest.mark.parametrize("path", ["roles/roles.sql", "roles/grants.sql", "citus/roles/grants.sql"])
def test_every_list_of_roles_in_the_sql_is_that_of_the_table(path: str) -> None:
    text = (_SQL / path).read_text(encoding="utf-8")
    [listed] = re.findall(r"(?:ARRAY\[|IN \()((?:\s*'compaction_store_[a-z]+',?)+)\s*[\])]", text)
    assert set(_GROUP.findall(listed)) == set(GROUPS)
    assert re.findall(r"count\(\*\) = (\d+)", text) in ([], [str(len(GROUPS))])


def test_no_other_sql_names_an_unknown_role() -> None:
    assert {name for path in _SQL.rglob("*.sql") for name in _GROUP.findall(path.read_text("utf-8"))} <= set(GROUPS)


def test_the_functions_that_need_another_role_are_those_that_the_sql_does_not_grant_to_applications() -> None:
    granted = _granted()
    applications = granted[APPLICATION]
    assert {name: set(role.functions) for name, role in ROLES.items()} == {
        name: granted[role.group] - applications for name, role in ROLES.items()
    }
    assert granted[ROLES["eraser"].group]


def test_the_pages_have_the_roles_of_the_table() -> None:
    threats = _text("docs/threats.md")
    for name, role in ROLES.items():
        assert f"\n| `{name}` | {role.purpose} | {role.may} |\n" in threats
    for page in ("docs/how-to/managed.md", "docs/how-to/migrations.md"):
        assert set(_GROUP.findall(_text(page))) == set(GROUPS), page
