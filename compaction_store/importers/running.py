"""From a source into a store, thread by thread, by the bulk door; sync and async alike but for the awaiting.

The key of a thread's load is made from the source's own id of it, so that the same import again adds nothing, one that
was cut off goes on, and a source that has grown brings what is new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from compaction_store.errors import CompactionStoreError, Conflict, InvalidInput, InvalidSource
from compaction_store.importers import (
    agents,
    chatgpt,
    claude_ai,
    claude_code,
    codex,
    databases,
    detecting,
    langgraph,
)
from compaction_store.importers.conversations import ANTHROPIC, CHAT, RESPONSES, Conversations
from compaction_store.importers.exports import Export
from compaction_store.importers.sources import Bad, Item, Source, SourceThread
from compaction_store.jsonable import AsDict, named
from compaction_store.models import Loaded, ToLoad

if TYPE_CHECKING:
    from compaction_store.store._async import AsyncStore
    from compaction_store.store._sync import Store

FORMATS = (
    agents.FORMAT, ANTHROPIC, chatgpt.FORMAT, claude_ai.FORMAT, claude_code.FORMAT, codex.FORMAT, langgraph.FORMAT,
    CHAT, RESPONSES,
)  # fmt: skip
# The formats that are databases, each with its options.
_DATABASES = {agents.FORMAT: {"messages_table"}, langgraph.FORMAT: {"channel"}}
# A page is what a thread reads for the event loop at once.
_PAGE = 256
_PAGE_SECONDS = 0.02
_REPORT_EVERY = 100
_T = TypeVar("_T")


class Progress(NamedTuple):
    """The progress of an import: `done` of `total`, counted in `unit`: bytes, messages or threads."""

    done: int
    total: int | None
    unit: str
    thread_id: str

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`."""
        return named(self)


@dataclass(frozen=True, slots=True)
class ThreadImported(AsDict):
    """What became of one thread of a source.

    `loaded` is None where it had no messages, or was refused, for which `refused` is the reason. `skipped` counts what
    could not be read, of which `bad` names the first hundred; `left_out` counts lines that are no messages.
    """

    thread_id: str
    source_id: str
    format: str
    loaded: Loaded | None
    skipped: int = 0
    left_out: int = 0
    bad: tuple[Bad, ...] = field(default=(), repr=False)
    refused: CompactionStoreError | None = None


Reporter = Callable[[Progress], object]


def open_source(
    source: str | Path, *, format: str | None = None, skip_bad: bool = False, **options: Any  # noqa: A002
) -> Source:  # fmt: skip
    """What `source` is: a file of JSON lines, a folder of them, an account export, a SQLite file, or a Postgres URL.

    `format` is one of `FORMATS`, by default what it looks like. Options are the format's own: `messages_table` for
    openai-agents, `channel` for langgraph.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"format must be one of {', '.join(FORMATS)}")
    database = databases.open_database(source)
    if database is not None:
        try:
            return _database(database, detecting.of_database(database, format, options), skip_bad, options)
        except BaseException:
            database.close()
            raise
    if options:
        raise InvalidInput(f"a file takes no option {next(iter(options))!r}")
    return _files(Path(source), format, skip_bad)


def _database(database: databases.Database, form: str, skip_bad: bool, options: Mapping[str, Any]) -> Source:
    if form == agents.FORMAT and options.keys() <= {"messages_table"}:
        return agents.AgentSessions(database, skip_bad=skip_bad, **options)
    if form == langgraph.FORMAT and options.keys() <= {"channel"}:
        return langgraph.opened(database, skip_bad=skip_bad, **options)
    if form not in _DATABASES:
        raise InvalidInput(f"format= must be {' or '.join(_DATABASES)} for a database, not {form}")
    unknown = min(options.keys() - _DATABASES[form])
    raise InvalidInput(f"{form} takes the option {', '.join(_DATABASES[form])}, not {unknown}")


def _files(path: Path, form: str | None, skip_bad: bool) -> Source:
    form = form or detecting.of_files(path)
    if form == claude_code.FORMAT:
        return claude_code.ClaudeCode(path, skip_bad=skip_bad)
    if form == codex.FORMAT:
        return codex.Codex(path, skip_bad=skip_bad)
    for export in (chatgpt, claude_ai):
        if form == export.FORMAT:
            return Export(path, form, export.messages, export.IDS, skip_bad=skip_bad)
    if form in (ANTHROPIC, CHAT, RESPONSES):
        return Conversations(path, form, skip_bad=skip_bad)
    raise InvalidSource(f"{form} is a database, and {path.name} is none")


def import_into(
    store: Store,
    source: str | Path | Source,
    *,
    format: str | None = None,  # noqa: A002 — what a caller would look for
    thread_id: str | None = None,
    prefix: str | None = None,
    only: Collection[str] | None = None,
    skip_bad: bool = False,
    progress: Reporter | None = None,
    **options: Any,
) -> Iterator[ThreadImported]:
    """Loads the threads of a source, and tells of each what became of it. The login needs the loader's role.

    A thread is called by its source's own id after `prefix`, which is the format's name and a colon by default; a
    source of one thread may be given `thread_id` instead. `only` are the source's ids of the threads that are wanted.

    What cannot be read, and a thread that the store refuses, ends the import; `skip_bad` skips it and says so in the
    results. What was loaded before stays, and the same call again goes on from there. Other arguments are as for
    `open_source`.
    """
    importing = _Importing(format, thread_id, prefix, only, skip_bad, progress, options)
    with closing(importing.open(source)) as opened:
        for thread in importing.wanted(opened):
            name, items = importing.begun(opened, thread)
            loaded, refused = None, None
            try:
                if (first := _first(items)) is not None:
                    loaded = store.load(name, first, key=key_of(opened.format, thread.source_id))
            except (Conflict, InvalidInput) as refusal:
                if not skip_bad:
                    raise
                refused = refusal
            finally:
                items.close()
            yield importing.result(opened, thread, name, loaded, refused)


async def import_into_async(
    store: AsyncStore,
    source: str | Path | Source,
    *,
    format: str | None = None,  # noqa: A002
    thread_id: str | None = None,
    prefix: str | None = None,
    only: Collection[str] | None = None,
    skip_bad: bool = False,
    progress: Reporter | None = None,
    **options: Any,
) -> AsyncIterator[ThreadImported]:
    """The same, awaited. The source is read by a thread of its own, which calls `progress`, a page at a time."""
    importing = _Importing(format, thread_id, prefix, only, skip_bad, progress, options)
    opened = await _aside(importing.open, source)
    try:
        threads = importing.wanted(opened)
        while (thread := await _aside(next, threads, None)) is not None:
            name, items = importing.begun(opened, thread)
            loaded, refused = None, None
            try:
                if (first := await _aside(_first, items)) is not None:
                    loaded = await store.load(name, _Pages(first), key=key_of(opened.format, thread.source_id))
            except (Conflict, InvalidInput) as refusal:
                if not skip_bad:
                    raise
                refused = refusal
            finally:
                items.close()
            yield importing.result(opened, thread, name, loaded, refused)
    finally:
        opened.close()


def key_of(form: str, source_id: str) -> str:
    """The key of a load: bounded, and the same wherever the thread goes."""
    return f"import:{form}:{sha256(source_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass
class _Importing:
    """What both faces share: which threads, under which names, and what is told of them."""

    format: str | None
    thread_id: str | None
    prefix: str | None
    only: Collection[str] | None
    skip_bad: bool
    progress: Reporter | None
    options: Mapping[str, Any]

    def open(self, source: str | Path | Source) -> Source:
        if isinstance(source, str | Path):
            return open_source(source, format=self.format, skip_bad=self.skip_bad, **self.options)
        if self.format is not None or self.options:
            raise InvalidInput("format= and options are for a source that is opened here")
        return source

    def wanted(self, source: Source) -> Iterator[SourceThread]:
        missing = set(self.only or ())
        threads: Iterator[SourceThread] = (t for t in source.threads() if self.only is None or t.source_id in self.only)
        if self.thread_id is not None:
            chosen = list(islice(threads, 2))
            if len(chosen) > 1:
                raise InvalidInput("thread_id= names one thread, and the source has several: choose one by only=")
            threads = iter(chosen)
        for thread in threads:
            missing.discard(thread.source_id)
            yield thread
        if missing:
            raise InvalidSource(f"the source has no thread {min(missing)!r}")

    def begun(self, source: Source, thread: SourceThread) -> tuple[str, Generator[Item]]:
        prefix = f"{source.format}:" if self.prefix is None else self.prefix
        name = self.thread_id if self.thread_id is not None else f"{prefix}{thread.source_id}"
        return name, self._reported(source, thread, name)

    def _reported(self, source: Source, thread: SourceThread, name: str) -> Generator[Item]:
        try:
            for number, item in enumerate(thread.items):
                yield item
                if self.progress is not None and number % _REPORT_EVERY == 0:
                    self.progress(Progress(source.done, source.total, source.unit, name))
        finally:
            # A load that fails leaves its source in the middle of a file, or of a cursor.
            if isinstance(thread.items, Generator):
                thread.items.close()

    def result(
        self,
        source: Source,
        thread: SourceThread,
        name: str,
        loaded: Loaded | None,
        refused: CompactionStoreError | None,
    ) -> ThreadImported:
        if self.progress is not None:
            self.progress(Progress(source.done, source.total, source.unit, name))
        notes = thread.notes
        return ThreadImported(
            name, thread.source_id, source.format, loaded, notes.skipped, notes.left_out, tuple(notes.bad), refused
        )


def _first(items: Iterator[Item]) -> Iterator[Item] | None:
    """The items, of which at least one is a message; None where none is."""
    before: list[Item] = []
    for item in items:
        before.append(item)
        if isinstance(item, ToLoad):
            return chain(before, items)
    return None


class _Pages(AsyncIterator[Item]):
    """The items, read a page at a time by another thread. What fails after some of them fails after them here too."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._page: Iterator[Item] = iter(())
        self._failure: Exception | None = None

    async def __anext__(self) -> Item:
        while (item := next(self._page, None)) is None:
            page = [] if self._failure else await _aside(self._read)
            if not page and self._failure is not None:
                raise self._failure
            if not page:
                raise StopAsyncIteration
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
        except Exception as failure:  # noqa: BLE001 — it is raised where it belongs
            self._failure = failure
        return page


async def _aside(function: Callable[..., _T], *arguments: Any) -> _T:
    """A call in a thread. Cancelled, it is waited for all the same: nobody else may use the source meanwhile."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
