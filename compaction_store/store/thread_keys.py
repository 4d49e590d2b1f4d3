"""Makes the ThreadKey by which a query finds its thread."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.errors import ThreadErased
from compaction_store.integrity import erasure
from compaction_store.postgres.queries import ThreadKey


def thread_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to read. `thread_id` may be the name of an erased thread's stub."""
    arguments.check_thread_id(thread_id)
    return ThreadKey(None, tenant, thread_id)


def writable_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to write. Raises `ThreadErased` for the stub of an erased thread."""
    key = thread_key(tenant, thread_id)
    if erasure.stub_uid(thread_id) is not None:
        raise ThreadErased(f"the thread was erased{arguments.about(thread_id)}")
    arguments.check_new_thread_id(thread_id)
    return key
