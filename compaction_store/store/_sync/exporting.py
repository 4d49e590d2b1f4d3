"""The synchronous face of exporting: a thread as a bundle, which proves itself without us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from compaction_store import arguments
from compaction_store.bundles import line_format
from compaction_store.integrity.entry_pages import Page
from compaction_store.postgres import queries, schema, typed_rows
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store._sync.reading import Reading


class Exporting(Reading):
    """Reads threads, and writes them out as bundles."""

    def export(
        self, thread_id: str, *, bodies: line_format.Bodies = True, checkpoint: Mapping[str, Any] | None = None
    ) -> Iterator[bytes]:
        """The lines of a bundle: the whole thread up to its head, in pages, with all that is needed to check it.

        Memory does not grow with the thread. `bodies=False` withholds the content of every entry, and a callable that
        of the entries it says no to: it is given an entry's line, as a mapping without content. Commitments stay, so
        that the rest still verifies. `checkpoint` is carried in the manifest. What is appended meanwhile is left out;
        an erasure meanwhile is a `Conflict`.
        """
        key = self._key(thread_id)
        line_format.check_options(bodies, checkpoint)
        return self._export(key, thread_id, bodies, checkpoint)

    def _export(
        self, key: ThreadKey, thread_id: str, bodies: line_format.Bodies, checkpoint: Mapping[str, Any] | None
    ) -> Iterator[bytes]:
        about = arguments.about(thread_id)
        row = self._db.call(queries.thread, key)
        steps = line_format.export(
            self._tenant, typed_rows.thread(row), row[1], schema=schema.REVISION, made_at=datetime.now(UTC),
            bodies=bodies, checkpoint=checkpoint, about=about,
        )  # fmt: skip
        wanted = next(steps, None)
        while wanted is not None:
            rows: list[tuple[Any, ...]] | None = None
            if not isinstance(wanted, Page):
                yield wanted
            elif wanted.kind == "head":
                rows = [self._db.call(queries.thread, key)]
            else:
                rows = self._db.call(queries.entries, key, wanted.kind, wanted.start, True, wanted.limit)
            try:
                wanted = steps.send(rows)
            except StopIteration:
                return
