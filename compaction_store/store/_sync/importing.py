"""The synchronous face of importing: a bundle back into a store, as the thread it was."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.bundles import import_rows, verification
from compaction_store.models import Imported
from compaction_store.postgres import queries
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading
from compaction_store.store._sync.loading import Loading


class Importing(Loading):
    """Reads, writes and loads threads, and takes whole ones in from bundles."""

    def import_bundle(self, lines: loading.Messages, *, stubs: bool = False) -> Imported:
        """Stores the thread of a bundle, given as its lines, in one piece. The login needs the loader's role.

        It is the thread it was: every entry of the chain to the byte, with its times, keys, receipts, records and
        events, and its metadata. The bundle is proved whole before anything is sent; what is wrong with it is an
        `InvalidBundle` that names the line. Content that is withheld is refused, content that was erased is not. The
        tenant is the bundle's, and the thread is not there yet: where it is, with the same head, nothing is added, and
        with another it is `ThreadExists`. Times more than a day ahead of the server's clock are refused.

        The bundle of an erased thread proves neither its tenant nor its key, because the name is gone that both follow
        from: its maker chose the key, and with it a name that can never be used again. It is refused unless
        `stubs` says that it comes from a source you trust.
        """
        arguments.instance(stubs, bool, "stubs")
        verification.check_lines(lines)
        source = loading.Source(lines)
        with import_rows.Staged(self._tenant, stubs=stubs) as staged:
            for line in source:
                staged.add(line)
            staged.finish()
            thread_id = staged.manifest["thread_id"]
            added = self._db.with_more_time(staged.seconds).call(
                queries.import_bundle,
                ThreadKey(staged.thread_uid, self._tenant, thread_id),
                staged,
                arguments.about(thread_id),
                key=staged.head.hex(),
            )
            return staged.result(added=added)
