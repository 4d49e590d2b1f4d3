"""Which role may call which SQL function: one table, compared with the catalogue and tried by every role."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from compaction_store.models.roles import GROUPS, OWNER

_READING = "app auditor loader"
#: Each function that a login may call, with the roles that may. All other functions are called by these only.
MAY: dict[str, str] = {
    **dict.fromkeys(
        (
            "compare", "element", "elements", "entries", "feed", "neighbours", "newest", "outline", "pos_at",
            "replay", "reported", "thread_state", "view",
        ),
        _READING,
    ),
    **dict.fromkeys(("refuse_no_tenant", "tenant"), f"{_READING} eraser"),
    **dict.fromkeys(("thread", "events"), f"{_READING} eraser custodian"),
    **dict.fromkeys(
        ("audit_json", "audit_tenants", "is_locked", "retained_until", "superseded_by", "tenants"), "app auditor"
    ),
    "checkpoint_turn": "auditor",
    **dict.fromkeys(
        (
            "append", "append_many", "append_observed", "append_together", "commit_compactions", "fork", "hold_turn",
            "lease", "leave_turn", "record_evaluation", "release", "renew_lease", "renew_turn", "rewind", "stalled",
            "take_turn",
        ),
        "app",
    ),
    "set_metadata": "app loader",
    **dict.fromkeys(("begin_import", "find_load", "finish_import", "load", "load_threads", "observe"), "loader"),
    "record_verdict": "reviewer",
    # Each of these may record only some kinds of events.
    "record_in_log": "app reviewer eraser custodian",
    "record_event": "custodian",
    "set_subject": "app custodian",
    **dict.fromkeys(("erase", "redact"), "eraser"),
}  # fmt: skip
INTERNAL = """
    active born_in caller_may commitment compaction_header copied_entry copied_to copy_log derived_records entry
    entry_at erase_content event_header fields find_thread fold fork_of gaps genesis has_name_twice hidden_seq
    in_force in_hold is_distributed is_of_log kept_by live_turns message_header message_tokens meta_commitment
    microseconds name_commitment new_salt new_thread_uid next_at number_at open_thread outside_strings parsable
    queue_up ranges record_abandoned record_once redact_forks redact_forks_unless_held redacted_by redaction_body
    refuse_bad_document refuse_bad_message refuse_bad_name refuse_bad_receipt refuse_bad_record
    refuse_bad_unusual_message refuse_bad_unusual_receipt refuse_change refuse_erased refuse_in_log refuse_no_head
    refuse_other_entry refuse_other_seq refuse_other_subject refuse_override refuse_taken refuse_unknown
    refuse_unsound_records run_records seq_at size span_tokens term_body term_of times_copied view_parts why_held
    write_event
"""
_FUNCTIONS = """
    SELECT p.proname, ARRAY(
        SELECT 'NULL::' || format_type(a.type, NULL)
        FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, i) ORDER BY a.i
    )
    FROM pg_proc AS p WHERE p.pronamespace = 'compaction_store'::regnamespace ORDER BY 1
"""


def functions(superuser: psycopg.Connection[Any]) -> dict[str, list[str]]:
    return dict(superuser.execute(_FUNCTIONS).fetchall())


@pytest.mark.one_server("a cluster has more functions")
def test_every_function_has_a_row(superuser: psycopg.Connection[Any]) -> None:
    assert MAY.keys() & set(INTERNAL.split()) == set()
    assert set(functions(superuser)) == MAY.keys() | set(INTERNAL.split())


@pytest.mark.one_server("a cluster has more functions")
@pytest.mark.parametrize("role", [group for group in GROUPS if group != OWNER])
def test_every_role_may_call_its_functions_and_is_refused_all_others(
    superuser: psycopg.Connection[Any], role: str
) -> None:
    called = set()
    for name, arguments in functions(superuser).items():
        superuser.execute(f"BEGIN; SET LOCAL ROLE {role}".encode())
        try:
            superuser.execute(f"SELECT compaction_store.{name}({', '.join(arguments)})".encode())
        except psycopg.Error as error:
            if error.sqlstate == "42501":
                continue
        finally:
            superuser.execute("ROLLBACK")
        called.add(name)
    assert called == {name for name, roles in MAY.items() if role.removeprefix("compaction_store_") in roles.split()}
