"""All SQL statements of a store, as plain functions that take a connection.

Each function sends one statement or one short transaction. No function retries, logs or runs a caller's code; only the
transaction of `checkpointing` stays open while a caller's code runs. Every write to the log calls a SQL function, and
so do nearly all reads of a single thread.
"""

from compaction_store.postgres.driver.cursor import Connection, fetch, reading
from compaction_store.postgres.queries.across_threads import (
    CompactionFilter,
    CompactionKey,
    EventFilter,
    ListFilter,
    OfSubject,
    clock,
    compactions,
    due,
    expiring,
    leases,
    names_of,
    recent_threads,
    sample,
    subjects_of,
    tenant_events,
    threads,
    threads_of_subject,
)
from compaction_store.postgres.queries.checkpoints import (
    HOLDER,
    Holder,
    checkpointing,
    entries_of_many,
    heads,
    held_by,
    states,
)
from compaction_store.postgres.queries.functions import *  # noqa: F403 — the derived names are its __all__
from compaction_store.postgres.queries.listing import count_heads, stored_threads
from compaction_store.postgres.queries.loads import commitments, find_load, import_bundle, load, load_threads, observe
from compaction_store.postgres.queries.one_thread import (
    Append,
    Expected,
    NewMessage,
    Written,
    append,
    append_observed,
    append_together,
    appended_tokens,
    applied_tokens,
    may_record_in_log,
    name_of,
    origins,
    other_copies,
    receipt,
    thread,
    thread_state,
)
from compaction_store.postgres.queries.overview import figures
from compaction_store.postgres.queries.server import (
    IS_WORKER,
    IS_WORKER_ASKED,
    OLDEST_SERVER,
    WORKER,
    check,
    is_worker,
    refuse_encoding,
    refuse_newer,
    revision,
)
