"""Makes the key of a thread, which every query needs to find it."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.errors import ThreadErased
from compaction_store.integrity import erasure
from compaction_store.postgres.queries import ThreadKey


def thread_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to read: by its name, or an erased thread by the name of its stub."""
    arguments.check_thread_id(thread_id)
    return ThreadKey(None, tenant, thread_id)


def writable_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to write; refuses the stub of an erased one."""
    key = thread_key(tenant, thread_id)
    if erasure.stub_uid(thread_id) is not None:
        raise ThreadErased(f"the thread was erased{arguments.about(thread_id)}")
    arguments.check_new_thread_id(thread_id)
    return key
