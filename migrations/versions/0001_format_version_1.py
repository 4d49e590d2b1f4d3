"""Format version 1: threads, heads, messages, compactions, events, and the functions that write and read them.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from pathlib import Path

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"

# The files in the order in which they run. A function in the language SQL comes after the functions that it calls,
# because Postgres checks its body when it is created. A table comes after the functions in its checks.
_FILES = (
    "roles/roles.sql",
    "functions/microseconds.sql",
    "functions/born_in.sql",
    "tables/threads.sql",
    "functions/refuse_in_log.sql",
    "tables/heads.sql",
    "tables/messages.sql",
    "tables/compactions.sql",
    "tables/events.sql",
    "tables/staged.sql",
    "tables/turns.sql",
    "functions/refuse_no_tenant.sql",
    "functions/tenant.sql",
    "functions/is_distributed.sql",
    "functions/find_thread.sql",
    "functions/new_thread_uid.sql",
    "functions/name_commitment.sql",
    "functions/genesis.sql",
    "functions/fields.sql",
    "functions/message_header.sql",
    "functions/compaction_header.sql",
    "functions/commitment.sql",
    "functions/meta_commitment.sql",
    "functions/entry.sql",
    "functions/next_at.sql",
    "functions/event_header.sql",
    "functions/queue_up.sql",
    "functions/checkpoint_turn.sql",
    "functions/parsable.sql",
    "functions/outside_strings.sql",
    "functions/has_name_twice.sql",
    "functions/refuse_bad_name.sql",
    "functions/refuse_bad_document.sql",
    "functions/refuse_bad_unusual_message.sql",
    "functions/refuse_bad_message.sql",
    "functions/refuse_bad_unusual_receipt.sql",
    "functions/refuse_bad_receipt.sql",
    "functions/refuse_bad_record.sql",
    "functions/new_salt.sql",
    "functions/open_thread.sql",
    "functions/refuse_taken.sql",
    "functions/refuse_no_head.sql",
    "functions/refuse_other_seq.sql",
    "functions/refuse_other_subject.sql",
    "functions/refuse_erased.sql",
    "functions/refuse_unknown.sql",
    "functions/number_at.sql",
    "functions/seq_at.sql",
    "functions/entry_at.sql",
    "functions/refuse_other_entry.sql",
    "functions/append.sql",
    "functions/append_many.sql",
    "functions/replay.sql",
    "functions/newest.sql",
    "functions/in_force.sql",
    "functions/active.sql",
    "functions/view.sql",
    "functions/element.sql",
    "functions/elements.sql",
    "functions/pos_at.sql",
    "functions/thread.sql",
    "functions/set_metadata.sql",
    "functions/set_subject.sql",
    "functions/entries.sql",
    "functions/thread_state.sql",
    "functions/span_tokens.sql",
    "functions/size.sql",
    "functions/gaps.sql",
    "functions/message_tokens.sql",
    "functions/view_parts.sql",
    "functions/outline.sql",
    "functions/compare.sql",
    "functions/neighbours.sql",
    "functions/copied_to.sql",
    "functions/times_copied.sql",
    "functions/reported.sql",
    "functions/fold.sql",
    "functions/run_records.sql",
    "functions/hidden_seq.sql",
    "functions/commit_compactions.sql",
    "functions/rewind.sql",
    "functions/append_observed.sql",
    "functions/append_together.sql",
    "functions/record_abandoned.sql",
    "functions/lease.sql",
    "functions/renew_lease.sql",
    "functions/release.sql",
    "functions/stalled.sql",
    "functions/live_turns.sql",
    "functions/take_turn.sql",
    "functions/renew_turn.sql",
    "functions/leave_turn.sql",
    "functions/hold_turn.sql",
    "functions/events.sql",
    "functions/is_of_log.sql",
    "functions/feed.sql",
    "functions/write_event.sql",
    "functions/retained_until.sql",
    "functions/term_of.sql",
    "functions/is_locked.sql",
    "functions/in_hold.sql",
    "functions/kept_by.sql",
    "functions/term_body.sql",
    "functions/redaction_body.sql",
    "functions/record_once.sql",
    "functions/record_event.sql",
    "functions/record_in_log.sql",
    "functions/record_evaluation.sql",
    "functions/record_verdict.sql",
    "functions/derived_records.sql",
    "functions/ranges.sql",
    "functions/redacted_by.sql",
    "functions/erase_content.sql",
    "functions/fork_of.sql",
    "functions/why_held.sql",
    "functions/redact_forks.sql",
    "functions/redact_forks_unless_held.sql",
    "functions/caller_may.sql",
    "functions/refuse_override.sql",
    "functions/redact.sql",
    "functions/erase.sql",
    "functions/copied_entry.sql",
    "functions/copy_log.sql",
    "functions/fork.sql",
    "functions/find_load.sql",
    "functions/load.sql",
    "functions/load_threads.sql",
    "functions/observe.sql",
    "functions/refuse_unsound_records.sql",
    "functions/begin_import.sql",
    "functions/finish_import.sql",
    "functions/tenants.sql",
    "functions/audit_tenants.sql",
    "functions/audit_json.sql",
    "functions/superseded_by.sql",
    "functions/refuse_change.sql",
    "triggers/threads.sql",
    "triggers/heads.sql",
    "triggers/messages.sql",
    "triggers/compactions.sql",
    "triggers/events.sql",
    "policies/threads.sql",
    "policies/heads.sql",
    "policies/messages.sql",
    "policies/compactions.sql",
    "policies/events.sql",
    "policies/turns.sql",
    "views/audit_threads.sql",
    "views/audit_messages.sql",
    "views/audit_compactions.sql",
    "views/audit_events.sql",
    "comments/threads.sql",
    "comments/heads.sql",
    "comments/messages.sql",
    "comments/compactions.sql",
    "comments/events.sql",
    "comments/staged.sql",
    "comments/turns.sql",
    "comments/views.sql",
    "comments/functions.sql",
    "roles/grants.sql",
)


# With partitions, the hash of thread_uid decides in which partition a thread's messages are. Only the table of messages
# has partitions, because it has nearly all data of a store. Partitions inherit row triggers from the table, but the
# statement trigger must be made on each partition.
_TABLE, _TRIGGERS = (f"{folder}/messages.sql" for folder in ("tables", "triggers"))
_PARTITION = """
    CREATE TABLE compaction_store.messages_{number} PARTITION OF compaction_store.messages
        FOR VALUES WITH (MODULUS {count}, REMAINDER {number})
"""
_TRIGGER = """
    CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON compaction_store.messages_{number}
        FOR EACH STATEMENT EXECUTE FUNCTION compaction_store.refuse_change();
    ALTER TABLE compaction_store.messages_{number} ENABLE ALWAYS TRIGGER refuse_truncate
"""


def upgrade() -> None:
    count = _partitions()
    for name in _FILES:
        text = (_SQL / name).read_text(encoding="utf-8")
        if count and name == _TABLE:
            text = text.replace("\n);\n", "\n) PARTITION BY HASH (thread_uid);\n", 1)
        op.execute(text)
        if name in (_TABLE, _TRIGGERS):
            each = _PARTITION if name == _TABLE else _TRIGGER
            for number in range(count):
                op.execute(each.format(number=number, count=count))


def downgrade() -> None:
    """Drops every table with all messages and records. Keeps the roles, because they belong to the whole server."""
    if not _may_delete_everything():
        op.execute((_SQL / "refuse_downgrade.sql").read_text(encoding="utf-8"))
    op.execute((_SQL / "downgrade.sql").read_text(encoding="utf-8"))


def _partitions() -> int:
    """Returns the number of partitions given to `migrate.upgrade` or in `-x partitions=…`. 0 means no partitions."""
    given = context.config.attributes.get("partitions")
    if given is None:
        given = context.get_x_argument(as_dictionary=True).get("partitions")
    return int(given or 0)


def _may_delete_everything() -> bool:
    """Returns whether `migrate.downgrade` or `-x delete-everything=yes` permits deleting messages and records."""
    if "delete_everything" in context.config.attributes:
        return bool(context.config.attributes["delete_everything"])
    return context.get_x_argument(as_dictionary=True).get("delete-everything") == "yes"
