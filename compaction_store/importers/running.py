"""Imports a source into a store, thread by thread, with `load.threads`.

The idempotency key of a load is made from the format and the thread's id in the source. So a second import of the same
source adds only new messages, and continues an import that was interrupted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction_store import errors
from compaction_store.importers.formats import open_source
from compaction_store.importers.line_files import LINES
from compaction_store.importers.sources import Bad, Item, LeftOut, Source, SourceThread
from compaction_store.jsonable import AsDict, named
from compaction_store.models import Loaded, ThreadLoaded, ToLoad
from compaction_store.results import AsyncResults, Results
from compaction_store.waiting import Result, UninterruptedCall, Work, iterate, iterate_async

if TYPE_CHECKING:
    from compaction_store.store._async import AsyncStore
    from compaction_store.store._sync import Store

# A worker thread reads a page for the event loop: at most this many items, for about this many seconds.
_PAGE = 256
_PAGE_SECONDS = 0.02
_REPORT_EVERY = 100


class Progress(NamedTuple):
    """The progress of an import: `done` of `total`, counted in `unit`: bytes, messages or threads."""

    done: int
    total: int | None
    unit: str
    thread_id: str

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class ThreadImported(AsDict):
    """The result of importing one thread.

    `loaded` is None if the thread had no messages, if it could not be read, or if the store refused it. In the last two
    cases, `refused` is the error. `skipped` is the number of lines, rows or messages that could not be read, and `bad`
    describes the first hundred of them. `left_out` counts the lines, rows or messages that do not belong to the
    conversation, by type and with the reason. `unknown` counts lines of types that the importer does not know, and
    `is_recognised` is False if a session file has no line of a known type. `hint` says how the source could be read
    otherwise, if it looks as if it should be.
    """

    thread_id: str
    source_id: str
    format: str
    loaded: Loaded | None
    skipped: int = 0
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    bad: tuple[Bad, ...] = field(default=(), repr=False)
    refused: Exception | None = None
    hint: str | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)
    is_recognised: bool = True

    def not_known(self) -> list[str]:
        """Returns sentences about the lines of types that the importer does not know."""
        found = [
            f"{number:,} {'line' if number == 1 else 'lines'} of the unknown type {kind[:60]!r}"
            for kind, number in self.unknown.items()
        ]
        return found if self.is_recognised else [*found, "no line of the file was recognised"]


Reporter = Callable[[Progress], object]


def import_into(
    store: Store,
    source: str | Path | Source,
    *,
    format: str | None = None,  # noqa: A002 — the name a caller would look for
    thread_id: str | None = None,
    prefix: str | None = None,
    only: Collection[str] | None = None,
    skip_bad: bool = False,
    adopt: bool = False,
    progress: Reporter | None = None,
    **options: Any,
) -> Iterator[ThreadImported]:
    """Imports the threads of a source and yields a result for each. The login needs the role compaction_store_loader.

    A thread's name is `prefix` followed by its id in the source; by default, `prefix` is the format and a colon. A
    thread of this name that another import or an application made is refused. For a source of one thread, `thread_id`
    sets the whole name, and the messages are appended if the thread exists. If `only` is given, only the threads with
    these ids in the source are imported. Titles of conversations become the thread's metadata `title`, unless it has
    one.

    A line, row or message that cannot be read, or a thread that the store refuses, raises an error and ends the import.
    With `skip_bad` it is skipped and reported in the result. Threads that were loaded before an error stay, and the
    same call continues after them. With `adopt`, the compactions of a provider or an agent are applied to the view, as
    by `store.adopt`, for which the login needs the role compaction_store_application too. `format` and `options` are as
    for `open_source`. Nothing is read or stored until the result is iterated over; if nobody does, the result warns
    when it is dropped.
    """
    importing = _Import(source, format, thread_id, prefix, only, skip_bad, progress, options)
    load = importing.load(store, iterate(_to_load(importing, iter)))
    results = iterate(_imported(store, importing, load, lambda found: next(iter(found), None), adopt=adopt))
    return Results("import_into(…)", results)


def import_into_async(
    store: AsyncStore,
    source: str | Path | Source,
    *,
    format: str | None = None,  # noqa: A002
    thread_id: str | None = None,
    prefix: str | None = None,
    only: Collection[str] | None = None,
    skip_bad: bool = False,
    adopt: bool = False,
    progress: Reporter | None = None,
    **options: Any,
) -> AsyncIterator[ThreadImported]:
    """`import_into` for an AsyncStore. A worker thread reads the source. It and the event loop call `progress`."""
    importing = _Import(source, format, thread_id, prefix, only, skip_bad, progress, options)
    load = importing.load(store, iterate_async(_to_load(importing, _Pages)))
    results = iterate_async(_imported(store, importing, load, lambda found: anext(aiter(found), None), adopt=adopt))
    return AsyncResults("import_into_async(…)", results)


def key_of(form: str, source_id: str) -> str:
    """Returns the key of a thread's load, which does not depend on the thread's name in the store."""
    return f"import:{form}:{sha256(source_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _to_load(importing: _Import, messages: Callable[[Iterator[Item]], object]) -> Work[None]:
    """Yields the input of `load.threads`: the name, the messages and the key of each thread."""
    threads = importing.threads()
    while (thread := (yield UninterruptedCall(next, threads, None))) is not None:
        try:
            items = yield UninterruptedCall(importing.begin, thread)
            if items is not None:
                key = key_of(importing.source.format, thread.source_id)
                yield Result((importing.name(thread), messages(items), key))
        finally:
            importing.end()


def _imported(
    store: Any, importing: _Import, load: Callable[[], Any], next_of: Callable[[Any], Any], *, adopt: bool
) -> Work[None]:  # fmt: skip
    """Yields each thread's result, in order. `next_of` returns the next item of an iterator, or an awaitable of it."""
    try:
        yield UninterruptedCall(importing.open)
        while (loaded := (yield from _next(lambda: next_of(load())))) is not None:
            if adopt and loaded.loaded is not None:
                yield from _adopt(store, loaded.thread_id, next_of)
            for result in importing.results(loaded):
                yield Result(result)
            if loaded.loaded is not None and (about := importing.metadata):
                found = (yield store.thread(loaded.thread_id, hidden=True)).metadata or {}
                if about.keys() - found.keys():
                    yield store.set_metadata(loaded.thread_id, {**about, **found})
        for result in importing.results(None):
            yield Result(result)
    finally:
        importing.close()


def _adopt(store: Any, thread_id: str, next_of: Callable[[Any], Any]) -> Work[None]:
    """Applies the observed compactions of a thread that were not applied yet."""
    records, found = store.compactions(thread_id), []
    while (record := (yield next_of(records))) is not None:
        found.append(record)
    last = max((number for record in found if record.kind == "adoption" for number in record.inputs), default=0)
    for record in found:
        is_summary = record.outcome == "observed" and record.kind == "summary" and record.start_seq is not None
        if is_summary and record.number > last:
            # A compaction of the store's own may be in the way. The record of the observed one stays.
            with suppress(errors.InvalidSpan):
                yield store.adopt(thread_id, record)


def _next(next_result: Callable[[], Any]) -> Work[ThreadLoaded | None]:
    """Returns the next result. Says of a thread that another import or an application made what to do about it."""
    try:
        loaded: ThreadLoaded | None = yield next_result()
    except errors.SequenceConflict as error:
        raise _foreign(error) from None
    if loaded is not None and isinstance(loaded.refused, errors.SequenceConflict):
        loaded = replace(loaded, refused=_foreign(loaded.refused))
    return loaded


def _foreign(error: errors.SequenceConflict) -> errors.ThreadExists:
    return errors.ThreadExists(f"{error}: the thread has other messages than this import's; choose another prefix")


class _Begun(NamedTuple):
    """A thread whose result was not yielded yet. Unless `is_loading`, it has no messages or was refused."""

    thread: SourceThread
    is_loading: bool
    refused: errors.CompactionStoreError | None = None


@dataclass(eq=False, repr=False)
class _Import:
    """One import: its source once it is open, the threads to import, and their names."""

    _given: str | Path | Source
    _format: str | None
    _thread_id: str | None
    _prefix: str | None
    _only: Collection[str] | None
    skip_bad: bool
    _progress: Reporter | None
    _options: Mapping[str, Any]
    source: Source = field(init=False)
    #: The metadata of the thread whose result was yielded last.
    metadata: Mapping[str, str] = field(default_factory=dict)
    _is_open: bool = False
    _items: Generator[Item] | None = None
    _begun: deque[_Begun] = field(default_factory=deque)

    def load(self, store: Any, threads: Any) -> Callable[[], Any]:
        """Returns a function whose first call begins the load, and which returns its results."""
        # Unless the caller chose the whole name, a source must not choose where its messages go.
        expected_seq = 0 if self._thread_id is None else None
        return cache(
            lambda: store.load.threads(threads, skip_refused=self.skip_bad, raw=True, expected_seq=expected_seq)
        )

    def open(self) -> None:
        """Opens the source. Keeps it as an attribute, so that `close` can close it even if the caller is cancelled."""
        if isinstance(self._given, str | Path):
            self.source = open_source(self._given, format=self._format, skip_bad=self.skip_bad, **self._options)
        elif self._format is not None or self._options:
            raise errors.InvalidInput("format and options must not be given with a source that is already open")
        else:
            self.source = self._given
        self._is_open = True

    def close(self) -> None:
        self.end()
        if self._is_open:
            self.source.close()

    def threads(self) -> Iterator[SourceThread]:
        only = self._only
        missing = set(only or ())
        threads: Iterator[SourceThread] = (
            t for t in self.source.threads() if only is None or t.source_id in only or t.lines_of in only
        )
        if self._thread_id is not None:
            threads = _one(threads)
        for thread in threads:
            missing.discard(thread.source_id)
            yield thread
        if missing:
            raise errors.InvalidSource(f"the source has no thread {min(missing)!r}")

    def name(self, thread: SourceThread) -> str:
        return self._named(thread.source_id, thread.lines_of or thread.source_id)

    def _named(self, source_id: str, of: str) -> str:
        prefix = f"{self.source.format}:" if self._prefix is None else self._prefix
        return f"{prefix}{source_id}" if self._thread_id is None else self._thread_id + source_id.removeprefix(of)

    def begin(self, thread: SourceThread) -> Iterator[Item] | None:
        """Returns the items of a thread; None if it has no message, or is skipped because it cannot be read."""
        self._items = self._read(thread)
        try:
            items = _from_first_message(self._items)
        except (errors.Conflict, errors.InvalidInput) as refusal:
            if not self.skip_bad:
                raise
            self._begun.append(_Begun(thread, is_loading=False, refused=refusal))
            return None
        self._begun.append(_Begun(thread, is_loading=items is not None))
        return items

    def end(self) -> None:
        """Closes the items of the thread that is being read."""
        if self._items is not None:
            self._items.close()

    def _read(self, thread: SourceThread) -> Generator[Item]:
        name = self.name(thread)
        try:
            for number, item in enumerate(thread.items):
                if isinstance(item, ToLoad) and item.meta and (request := item.meta.get("request")):
                    # Only here the name of the thread is known that will have the lines.
                    request["lines"] = self._named(request.get("lines", thread.source_id + LINES), thread.source_id)
                yield item
                if number % _REPORT_EVERY == 0:
                    self._report(name)
        finally:
            # A failed load leaves the generator in the middle of a file or of a database's cursor, so close it.
            if isinstance(thread.items, Generator):
                thread.items.close()

    def _report(self, name: str) -> None:
        if self._progress is not None:
            self._progress(Progress(self.source.done, self.source.total, self.source.unit, name))

    def results(self, done: ThreadLoaded | None) -> Iterator[ThreadImported]:
        """Yields the results before a loaded thread and then its own; all results that are left if `done` is None."""
        while self._begun:
            begun = self._begun.popleft()
            if begun.is_loading:
                assert done is not None  # noqa: S101 — the store returns a result for every thread
                yield self._result(begun.thread, done.loaded, done.refused)
                return
            yield self._result(begun.thread, None, begun.refused)

    def _result(self, thread: SourceThread, loaded: Loaded | None, refused: Exception | None) -> ThreadImported:
        name = self.name(thread)
        self._report(name)
        notes, self.metadata = thread.notes, thread.metadata
        is_recognised = notes.is_recognised or not notes.unknown
        return ThreadImported(
            name, thread.source_id, self.source.format, loaded, notes.skipped, notes.left_out, tuple(notes.bad),
            refused, notes.hint, notes.unknown, is_recognised,
        )  # fmt: skip


def _one(threads: Iterator[SourceThread]) -> Iterator[SourceThread]:
    """Checks that only one of the threads is no thread of lines, before any is imported."""
    chosen: list[SourceThread] = []
    for thread in threads:
        chosen.append(thread)
        if sum(each.lines_of is None for each in chosen) > 1:
            raise errors.InvalidInput(
                "thread_id must not be given for a source of several threads: choose one with only="
            )
    return iter(chosen)


def _from_first_message(items: Iterator[Item]) -> Iterator[Item] | None:
    """Reads up to the first message and returns all items; None if there is no message."""
    before: list[Item] = []
    for item in items:
        before.append(item)
        if isinstance(item, ToLoad):
            return chain(before, items)
    return None


class _Pages(AsyncIterator[Item]):
    """Items that a worker thread reads page by page. An error is raised after the items that were read before it."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._page: Iterator[Item] = iter(())
        self._failure: Exception | None = None

    async def __anext__(self) -> Item:
        while (item := next(self._page, None)) is None:
            page = [] if self._failure else await UninterruptedCall(self._read).run_async()
            if not page:
                raise self._failure or StopAsyncIteration
            self._page = iter(page)
        return item

    def _read(self) -> list[Item]:
        end = time.monotonic() + _PAGE_SECONDS
        page: list[Item] = []
        try:
            for item in self._items:
                page.append(item)
                if len(page) == _PAGE or time.monotonic() > end:
                    break
        except Exception as failure:  # noqa: BLE001 — raised after the items before it
            self._failure = failure
        return page
