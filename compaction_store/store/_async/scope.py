"""The connections, the tenant and the actor of a store, which its groups of methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import ActorRequired
from compaction_store.integrity import erasure
from compaction_store.messages import encoding
from compaction_store.models import Event
from compaction_store.models.vocabulary import EventKind
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store._async import erasures
from compaction_store.store.threads import thread_key, writable_key
from compaction_store.tokens import Counter


class AsyncScope(NamedTuple):
    """`uids` has the keys of the threads whose names are not looked up."""

    db: AsyncConnections
    tenant: str
    counter: Counter
    actor: str | None
    require_actor: bool
    uids: Mapping[str, UUID]

    def key(self, thread_id: str) -> ThreadKey:
        """Returns the key of a thread to read."""
        return thread_key(self.tenant, thread_id)._replace(uid=self.uids.get(thread_id))

    def writable_key(self, thread_id: str) -> ThreadKey:
        """Returns the key of a thread to write."""
        return writable_key(self.tenant, thread_id)._replace(uid=self.uids.get(thread_id))

    def chosen_actor(self, actor: str | None) -> str | None:
        """Returns the given actor, or the store's actor if none is given."""
        arguments.optional_name(actor, "actor")
        found = self.actor if actor is None else actor
        if found is None and self.require_actor:
            raise ActorRequired("actor must be given: the store was opened with require_actor=True")
        return found

    async def record_event(
        self,
        thread_id: str,
        kind: EventKind,
        reason: str,
        actor: str | None,
        authority: Mapping[str, Any] | None,
        *,
        until: str | None = None,
        locked: bool | None = None,
        evaluation: dict[str, Any] | None = None,
    ) -> Event:
        """Records an event of a thread that has a reason."""
        thread = self.writable_key(thread_id)
        erasures.check_reasons(reason)
        actor = self.chosen_actor(actor)
        body = erasure.body(
            until=until, locked=locked, reason=reason, authority=encoding.authority(authority), evaluation=evaluation
        )
        if kind == "evaluation":
            return await erasures.record(self.db, queries.record_evaluation, thread, kind, body, actor)
        return await erasures.record(self.db, queries.record_event, thread, kind, body, actor, kind)
