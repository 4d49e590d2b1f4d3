"""Bugs that other stores have had, or that a change of one line would cause, and the tests that must catch each.

A bug is a replacement of exact text. It is planted in a copy of the tree, where the tests named for it must fail with
the given text; in a copy without the bug they pass. Text that is not found exactly once is an error, because a bug that
was not planted must not count as caught.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


class Rotten(Exception):
    """The tree no longer has the text that a bug replaces."""


@dataclass(frozen=True)
class Edit:
    path: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        if (found := text.count(self.old)) != 1:
            raise Rotten(f"{self.path} must have this once, not {found} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Bug:
    """`caught` has tests, each with the text of its failure, or several texts if the order of events is random."""

    name: str
    edits: tuple[Edit, ...]
    caught: Mapping[str, str | tuple[str, ...]]


def planted(edits: Iterable[Edit], root: Path) -> dict[Path, str]:
    """Returns the edited files, without writing them."""
    made: dict[Path, str] = {}
    for edit in edits:
        path = root / edit.path
        made[path] = edit.applied(made.get(path) or path.read_text(encoding="utf-8"))
    return made


def _rig(name: str) -> str:
    return f"tests/reliability/test_rigs.py::test_a_rig_holds_in_its_short_form[{name}]"


_SQL = "migrations/sql/functions"
_TURNS = "tests/reliability/test_turns.py::test_a_write_that_waited_for_another_goes_on_from_it"
_LOST = "tests/reliability/test_lost_connections.py"
_FORKED = "tests/reliability/test_forked_history.py"
_LED_ELSEWHERE = "tests/reliability/test_embedded_environment.py::test_no_variable_leads_it_elsewhere_or_keeps_it_away"
_PREPARED = "tests/database/store/test_prepared.py::test_nothing_is_prepared_behind_a_pooler"
_LEAVES = "tests/reliability/test_turns.py::test_a_call_leaves_nothing_on_its_connection[sync]"
_STANDBY = "tests/reliability/test_standby.py::test_a_commit_that"
_REWIND = "tests/database/compaction/test_rewind.py::test"
_TAKEN = "tests/database/store/test_thread_turns.py::test"
_SHARED = "tests/reliability/test_shared_commits.py::test"
_SILENCE = "tests/reliability/test_silence.py"
_REPLY_LOST = (
    "tests/reliability/test_faults.py::test_the_first_append_of_a_thread_whose_reply_is_lost_is_stored_once[sync]"
)
_DEALT_WITH = "tests/database/compaction/test_compaction.py::test_errors_that_a_strategy_handles_are_recorded_too[sync]"
_NOTHING_HELD = "tests/database/compaction/test_compaction.py::test_no_transaction_and_no_connection_is_held_while_a_callback_runs[sync]"
_REACHED = "tests/database/erasure/test_redacted_records.py::test_every_record_that_reaches_a_message_is_erased_and_no_other[sync]"
_ERASED_MEANWHILE = "tests/database/erasure/test_redacted_records.py::test_a_record_made_from_one_that_was_erased_meanwhile_is_refused[sync-applied]"
_TENANT = "    PERFORM set_config('compaction_store.tenant', p_tenant, true);\n"
_NO_DISK = "    PERFORM set_config('synchronous_commit', 'off', true);\n"
_LOCKED = "v_erased, v_subject\n    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;"
_UNLOCKED = _LOCKED.replace(" FOR UPDATE", "")
_CALLBACKS = "    drive(run_callbacks(planner, compacting.callbacks))\n"
_KEY_JUDGED = "    IF NOT p_fresh AND p_key IS NOT NULL THEN\n        SELECT m.seq, m.pos, m.created_at, m.entry"
_QUEUE = "    IF NOT (p_fresh AND pg_try_advisory_xact_lock(uuid_hash_extended(p_thread_uid, 0))) THEN\n"
_NO_QUEUE = "    IF NOT p_fresh AND p_key IS NOT NULL THEN\n"
_QUEUED = "    PERFORM compaction_store.queue_up(p_thread_uid);\n"
_NOT_STORED = """\
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the message was not stored' USING ERRCODE = 'CS010';
    END IF;
"""

BUGS = (
    Bug(
        "an append takes no row lock",
        (Edit(f"{_SQL}/append_many.sql", _LOCKED, _UNLOCKED), Edit(f"{_SQL}/append_many.sql", _QUEUED, "")),
        {f"{_TURNS}[append-append_many]": "UniqueViolation", f"{_TURNS}[commit-append_many]": "heads_dense_check"},
    ),
    Bug(
        "a commit takes no row lock",
        (
            Edit(f"{_SQL}/commit_compactions.sql", _QUEUED, ""),
            Edit(
                f"{_SQL}/commit_compactions.sql",
                "SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;",
                "SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;",
            ),
        ),
        {f"{_TURNS}[append-commit]": "heads_dense_check", _rig("histories"): "heads_dense_check"},
    ),
    Bug(
        "the next seq is max(seq) + 1",
        (
            Edit(f"{_SQL}/append.sql", _QUEUE, _NO_QUEUE),
            Edit(
                f"{_SQL}/append.sql",
                "SET last_seq = h.last_seq + 1,",
                "SET last_seq = 1 + (SELECT coalesce(max(m.seq), 0) FROM compaction_store.messages AS m"
                " WHERE m.thread_uid = p_thread_uid),",
            ),
        ),
        {f"{_TURNS}[append-append]": "UniqueViolation"},
    ),
    Bug(
        "an append looks at the clock before it waits",
        (Edit(f"{_SQL}/append.sql", _QUEUE, _NO_QUEUE),),
        {f"{_TURNS}[lease-append, a key of its own]": "datetime.datetime("},
    ),
    Bug(
        "expected_seq is judged before the key",
        (
            Edit(
                f"{_SQL}/append.sql",
                _KEY_JUDGED,
                "    IF p_expected_seq <> (SELECT h.last_seq FROM compaction_store.heads AS h"
                " WHERE h.thread_uid = p_thread_uid) THEN\n        RAISE EXCEPTION 'expected seq 0 and found 1'"
                " USING ERRCODE = 'CS003', DETAIL = '0';\n    END IF;\n" + _KEY_JUDGED,
            ),
        ),
        {"tests/database/store/test_store.py::test_the_key_is_judged_before_expected_seq[sync]": "SequenceConflict"},
    ),
    Bug(
        "an append is sent without the key that the store made",
        (
            Edit(
                "compaction_store/postgres/queries/one_thread.py",
                "tokens.to_bytes(4), counter, key.text, meta,",
                'tokens.to_bytes(4), counter, None if key.text.startswith("~") else key.text, meta,',
            ),
        ),
        {
            _REPLY_LOST: "SequenceConflict",
            _rig("cuts"): "never acknowledged",
        },
    ),
    Bug(
        "a retry does not look for what the first attempt wrote",
        (Edit("compaction_store/messages/keys.py", "fresh, self._fresh = self._fresh, False", "fresh = self._fresh"),),
        {_REPLY_LOST: "SequenceConflict"},
    ),
    Bug(
        "an unknown outcome is reported as a failure",
        (Edit("compaction_store/postgres/calling/call.py", "(verdict.unknown and key is not None)", "False"),),
        {
            "tests/reliability/test_faults.py::test_an_unknown_outcome_is_settled_with_its_key[async]": "DatabaseUnavailable"
        },
    ),
    Bug(
        "the driver prepares statements by itself",
        (
            Edit(
                "compaction_store/postgres/calling/engines.py", '"prepare_threshold": None,', '"prepare_threshold": 5,'
            ),
        ),
        {_LEAVES: "At index 0 diff: ", _rig("pooler"): "SQLSTATE"},
    ),
    Bug(
        "the store prepares statements behind a pooler",
        (
            Edit(
                "compaction_store/postgres/driver/cursor.py",
                'here.is_possible = _result(driver).get_value(0, 0) == b"\\1"',
                "here.is_possible = _result(driver).ntuples == 1",
            ),
        ),
        {f"{_PREPARED}[sync-transaction]": "AssertionError", f"{_PREPARED}[async-session]": "AssertionError"},
    ),
    Bug(
        "the tenant is set for the session",
        (Edit(f"{_SQL}/append.sql", _TENANT, _TENANT.replace("true", "false")),),
        {_LEAVES: "'default' != ''"},
    ),
    Bug(
        "messages are stored as jsonb",
        (
            Edit("migrations/sql/tables/messages.sql", "    payload json,\n", "    payload jsonb,\n"),
            Edit(
                "compaction_store/postgres/tables.py",
                '"json": postgresql.JSON(),',
                '"json": postgresql.JSON(), "jsonb": postgresql.JSONB(),',
            ),
        ),
        {
            "tests/database/store/test_bad_input.py::test_awkward_json_comes_back_as_it_was[sync-0]": "22P05",
            _rig("hostile"): (" is not ", "refused with DatabaseError"),
        },
    ),
    Bug(
        "a message's role is outside the hash",
        (
            Edit(
                f"{_SQL}/message_header.sql",
                "        pg_catalog.convert_to(p_role, 'UTF8'),\n",
                "        NULL,\n",
            ),
            Edit(
                "compaction_store/integrity/chain.py",
                '    return _header("message", columns)\n',
                '    return _header("message", columns | {"role": None})\n',
            ),
        ),
        {
            "tests/database/integrity/test_verify.py::test_a_changed_column_is_found_or_on_the_published_list[messages.role]": "finds False"
        },
    ),
    Bug(
        "a record is made before its summary is written",
        (
            Edit(
                "compaction_store/compaction/planner.py",
                "        try:\n            result = yield Call(asked.summarize, asked.request)\n",
                '        self.plan.apply(indexes, ask, "summary", 0)\n'
                "        try:\n            result = yield Call(asked.summarize, asked.request)\n",
            ),
        ),
        {_DEALT_WITH: "'applied' != 'failed'"},
    ),
    Bug(
        "a callback that raises leaves what it had planned",
        (
            Edit(
                "compaction_store/compaction/plan.py",
                'if attempt.outcome != "applied"]\n        self._placed = list(mark.placed)',
                "]",
            ),
        ),
        {
            "tests/database/compaction/test_compaction.py::test_a_callback_that_raises_voids_its_own_plan_only[sync]": "('applied', 5) != "
        },
    ),
    Bug(
        "callbacks run inside a transaction",
        (
            Edit(
                "compaction_store/store/_sync/compactions.py",
                _CALLBACKS,
                "    held: Any = compacting.db.engine.raw_connection().driver_connection\n"
                '    held.execute("BEGIN")\n' + _CALLBACKS,
            ),
            Edit(
                "compaction_store/store/_sync/compactions.py",
                "    conflict = next((error for error in planner.errors",
                '    held.execute("COMMIT")\n    conflict = next((error for error in planner.errors',
            ),
        ),
        {
            _NOTHING_HELD: "idle in transaction",
        },
    ),
    Bug(
        "a load mistakes its own first attempt for another's",
        (Edit("compaction_store/store/loads.py", "if salt == salts[:16]:", "if not salts:"),),
        {f"{_LOST}::test_a_load_whose_reply_was_lost_says_what_it_added[sync]": "added: 0 != 5"},
    ),
    Bug(
        "an append does not check that its row was stored",
        (Edit(f"{_SQL}/append.sql", _NOT_STORED, ""),),
        {
            "tests/reliability/test_refused_by_the_database.py::test_a_rule_that_discards_inserts_makes_append_raise[sync-one]": "DID NOT RAISE"
        },
    ),
    Bug(
        "a view leaves out what is before the first fold",
        (Edit(f"{_SQL}/view.sql", "IF v_start > v_next THEN", "IF v_start > v_next AND v_next > 1 THEN"),),
        {
            "tests/database/compaction/test_compactions_sql.py::test_a_record_replaces_its_span[sync]": "(2, 5, 1) != (1, 1, None)"
        },
    ),
    Bug(
        "a message's time goes back with the clock",
        (Edit(f"{_SQL}/next_at.sql", "greatest(p_now, p_last_at)", "p_now"),),
        {"tests/reliability/test_places.py::test_a_clock_that_steps_changes_no_order[sync]": "datetime.datetime("},
    ),
    Bug(
        "an append does not wait for the disk",
        tuple(Edit(f"{_SQL}/{name}.sql", _TENANT, f"{_TENANT}{_NO_DISK}") for name in ("append", "append_many")),
        {_rig("kill"): ("lost in", "ThreadWentBack")},
    ),
    Bug(
        "a call that is cancelled while it connects leaves the connection open",
        (Edit("compaction_store/postgres/calling/call.py", "        clear_frames(error.__traceback__)\n", ""),),
        {_rig("cancel"): "a connection is left"},
    ),
    Bug(
        "a redaction leaves records that were made from an erased one",
        (
            Edit(
                f"{_SQL}/derived_records.sql",
                "JOIN unnest(v_makers, v_inputs) AS m (maker, input) ON m.input = r.number\n",
                "JOIN unnest(v_makers, v_inputs) AS m (maker, input) ON false\n",
            ),
        ),
        {_REACHED: "(1, 3, 5, 6, 9)"},
    ),
    Bug(
        "a summary of messages that were erased since is committed",
        (Edit(f"{_SQL}/commit_compactions.sql", "        IF v_erased AND (", "        IF false AND ("),),
        {
            _ERASED_MEANWHILE: "DID NOT RAISE",
        },
    ),
    Bug(
        "a compaction is written to another history than it was planned on",
        (Edit(f"{_SQL}/commit_compactions.sql", "    IF p_base_head IS NOT NULL\n", "    IF false\n"),),
        {
            f"{_FORKED}::test_a_compaction_of_what_is_lost_is_refused[sync-20-summarized]": "DID NOT RAISE",
            f"{_FORKED}::test_a_revocation_that_was_decided_on_a_lost_view_is_refused[sync]": "DID NOT RAISE",
        },
    ),
    Bug(
        "the environment may name the embedded server's address",
        (Edit("compaction_store/embedded.py", "&hostaddr=&port=5432", "&port=5432"),),
        {
            f"{_LED_ELSEWHERE}[sync-PGHOSTADDR]": ("cannot reach", "OperationalError"),
        },
    ),
    Bug(
        "a reply is stored to a view that the thread no longer has",
        (Edit(f"{_SQL}/append.sql", "    IF p_seen_head IS NOT NULL THEN\n", "    IF false THEN\n"),),
        {f"{_FORKED}::test_a_reply_to_a_view_that_is_lost_is_refused[sync-1-False-20-True]": "DID NOT RAISE"},
    ),
    Bug(
        "a commit whose wait for the standby was cancelled is reported as done",
        (Edit("compaction_store/postgres/calling/call.py", "if writes and waiter.is_in_doubt:", "if False:"),),
        {f"{_STANDBY}_the_deadline_cancelled_is_of_unknown_outcome[sync-append]": "DID NOT RAISE"},
    ),
    Bug(
        "a fork keeps what was erased in its parent later",
        (Edit(f"{_SQL}/fork.sql", "    IF v_erased IS NOT NULL THEN\n", "    IF false THEN\n"),),
        {
            "tests/database/forks/test_forks.py::test_content_that_was_erased_later_is_erased_in_the_copy[sync]": "KeyError"
        },
    ),
    Bug(
        "a redaction does not reach forks of forks",
        (Edit(f"{_SQL}/redact_forks.sql", "FOR i IN 1 .. 1000000 LOOP", "FOR i IN 1 .. 1 LOOP"),),
        {
            "tests/database/forks/test_reach.py::test_a_redaction_reaches_forks_and_their_forks[sync]": (
                "assert",
                "Error",
            )
        },
    ),
    Bug(
        "a rewind leaves a summary of what it hides",
        (
            Edit(
                f"{_SQL}/rewind.sql",
                "            v_revoked := v_revoked || v_covering.number;\n",
                "            v_seq := v_covering.end_seq;\n",
            ),
        ),
        {f"{_REWIND}_a_compaction_around_the_seq_is_revoked_in_the_same_run[sync]": ("assert", "Error")},
    ),
    Bug(
        "a rewind shows what an earlier one hid",
        (
            Edit(
                f"{_SQL}/rewind.sql",
                "        IF v_covering.kind IN ('rewind', 'clear') THEN\n",
                "        IF v_covering.kind = 'clear' THEN\n",
            ),
        ),
        {f"{_REWIND}_what_was_hidden_stays_hidden[sync]": ("assert", "Error")},
    ),
    Bug(
        "a turn takes the thread before its place in the queue",
        (Edit(f"{_SQL}/take_turn.sql", "ELSIF place = 1 AND (v_turn", "ELSIF (v_turn"),),
        {f"{_TAKEN}_a_turn_that_gives_up_and_one_that_died_do_not_block_the_queue[sync]": "DID NOT RAISE"},
    ),
    Bug(
        "an append does not check that its turn still has the thread",
        (Edit(f"{_SQL}/hold_turn.sql", "RAISE EXCEPTION 'the turn is lost' USING ERRCODE = 'CS030';", "RETURN true;"),),
        {f"{_TAKEN}_a_holder_that_stalled_is_refused_before_it_does_harm[sync-one]": "DID NOT RAISE"},
    ),
    Bug(
        "an adopted compaction takes the place of system messages",
        (
            Edit(
                "compaction_store/compaction/adoption.py",
                "        if any(map(is_system, element.messages)):\n            runs.append([])",
                "        if False:\n            runs.append([])",
            ),
        ),
        {"tests/database/compaction/test_adopt.py::test_system_messages_stay_before_the_stand_ins[sync]": "assert"},
    ),
    Bug(
        "a refused request is sent again as it was",
        (
            Edit(
                "compaction_store/compaction/sent.py",
                "max(1, min(math.floor(size * share), budget.limit))",
                "budget.limit",
            ),
        ),
        {
            "tests/database/compaction/test_send.py::test_a_refused_request_is_compacted_by_the_providers_figures_and_sent_again[sync]": (
                "assert",
                "Error",
            )
        },
    ),
    Bug(
        "results of appends in one commit go to the wrong callers",
        (
            Edit(
                "compaction_store/postgres/queries/one_thread.py",
                "written[order[number - 1]] = Written(*fields)",
                "written[number - 1] = Written(*fields)",
            ),
        ),
        {f"{_SHARED}_each_caller_gets_its_own_result_or_error[threads]": ("assert", "Error")},
    ),
    Bug(
        "callers forget that their append may be stored with others",
        (
            Edit(
                "compaction_store/postgres/calling/_sync/shared_commits.py",
                "is_in_doubt=caller.is_in_doubt",
                "is_in_doubt=False",
            ),
        ),
        {f"{_SHARED}_an_outcome_that_stays_unknown_is_told_with_the_callers_own_key[threads]": "OutcomeUnknown"},
    ),
    Bug(
        "a batch repeats its appends without looking for their keys",
        (
            Edit(
                "compaction_store/postgres/queries/one_thread.py",
                "[call.key.is_fresh() for call in calls]",
                "[call.key._fresh for call in calls]",
            ),
        ),
        {f"{_SHARED}_an_unknown_outcome_is_settled_for_each_caller[threads]": "OutcomeUnknown"},
    ),
    Bug(
        "warnings of the server are ignored",
        (Edit("compaction_store/postgres/driver/timeouts.py", "            self._warned = True", "            pass"),),
        {
            f"{_STANDBY}_was_ended_from_outside_is_not_reported_before_the_standby_has_it[sync-pg_cancel_backend-append]": (
                "DID NOT RAISE"
            )
        },
    ),
    Bug(
        "a call waits for a server that does not answer a cancel",
        (Edit("compaction_store/postgres/driver/timeouts.py", "GRACE = 0.5", "GRACE = 2.5"),),
        {f"{_SILENCE}::test_a_read_ends_with_its_deadline_when_nothing_comes_back[sync-view]": "ended after"},
    ),
    Bug(
        "a call waits for the pool as long as the pool allows",
        (
            Edit(
                "compaction_store/postgres/calling/engines.py",
                "left if timeout is None else timeout if left is None else min(timeout, left)",
                "timeout",
            ),
        ),
        {f"{_SILENCE}::test_a_pool_that_is_used_up_is_waited_for_until_the_deadline": "ended after"},
    ),
    Bug(
        "an error repeats the database's message",
        (
            Edit(
                "compaction_store/postgres/calling/error_translation.py",
                'DatabaseError(f"{what}{constraint}{of_thread}", sqlstate=state)',
                'DatabaseError(f"{what}{constraint}{of_thread} {error}", sqlstate=state)',
            ),
        ),
        {
            "tests/database/store/test_bad_input.py::test_a_refusal_by_the_server_shows_no_content[sync]": "not in 'Postgres"
        },
    ),
)
