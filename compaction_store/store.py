"""The synchronous face: Reader, which has no writing method, and Store.

Derived from `aio.py` by `scripts/unasync.py`: change that file, not this one.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, cast

from sqlalchemy import Engine

from compaction_store import audit, chain, connections, embedded, ledger, payload, tokens
from compaction_store import view as views
from compaction_store.connections import Connections
from compaction_store.errors import InvalidInput, MessageNotFound, PositionNotFound
from compaction_store.ledger import ThreadKey
from compaction_store.models import Message, Payload, Report, Thread, View

_FIRST_PAGE = 16
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
_THREADS_PAGE = 500
_LARGEST_SEQ = 2**53


class Reader:
    """Reads threads; has no method that writes. Made by `open`, closed by `close` or as a context manager."""

    def __init__(self, reach: Connections, tenant: str, counter: tokens.Counter) -> None:
        self._reach = reach
        self._tenant = tenant
        self._counter = counter

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        tenant: str = "default",
        counter: Callable[[Payload], int] | None = None,
        pool_size: int = 16,
        connect_timeout: float = 10.0,
        deadline: float = 30.0,
    ) -> Self:
        """Connects and checks the database's schema.

        Without a URL: $COMPACTION_STORE_URL, else an embedded Postgres. `deadline` is how long a call goes on
        trying while the database is away or busy.
        """
        _check_name(tenant, "tenant")
        count = tokens.bytes_over_four() if counter is None else tokens.from_callable(counter)
        if engine is None:
            url = url or os.environ.get("COMPACTION_STORE_URL") or embedded.url()
            engine = connections.create_engine(url, pool_size=pool_size, connect_timeout=connect_timeout)
        # The first contact is tried once: a wrong address should not take the deadline to show.
        first = Connections(engine, 0)
        try:
            first.run(ledger.check)
        except BaseException:
            first.close()
            raise
        return cls(Connections(engine, deadline), tenant, count)

    def close(self) -> None:
        self._reach.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, thread_id: str) -> ThreadKey:
        payload.check_thread_id(thread_id)
        return ThreadKey(chain.thread_uid(self._tenant, thread_id), self._tenant)

    def replay(
        self, thread_id: str, *, after: int = 0, until: int | None = None, last: int | None = None
    ) -> Iterator[Message]:
        """Every message as it was appended, never folded, in pages: memory does not grow with the thread.

        Messages after one seq and up to another, or the newest `last`, always oldest first.
        """
        key = self._key(thread_id)
        _check_number(after, "after", least=0)
        if until is not None:
            _check_number(until, "until", least=0)
        if last is None:
            return self._pages(key, thread_id, after, until)
        _check_number(last, "last", least=1)
        if after or until is not None:
            raise InvalidInput("last= is given alone, without after= and until=")
        return self._newest(key, thread_id, last)

    def _pages(self, key: ThreadKey, thread_id: str, after: int, until: int | None) -> Iterator[Message]:
        limit = _FIRST_PAGE
        while True:
            rows = self._reach.write(None, _about(thread_id), ledger.replay, key, after, until, limit)
            for row in rows:
                yield _message(row)
            if len(rows) < limit:
                return
            after = rows[-1][0]
            limit = _next_limit(rows, limit)

    def _newest(self, key: ThreadKey, thread_id: str, last: int) -> Iterator[Message]:
        if last > _LONGEST_PAGE:
            newest = self._reach.write(None, _about(thread_id), ledger.newest, key, 1)
            until = newest[0][0]
            for message in self._pages(key, thread_id, max(0, until - last), until):
                yield message
            return
        rows = self._reach.write(None, _about(thread_id), ledger.newest, key, last)
        for row in reversed(rows):
            yield _message(row)

    def message(self, thread_id: str, seq: int) -> Message:
        """The message at a seq."""
        key = self._key(thread_id)
        _check_number(seq, "seq", least=1)
        rows = self._reach.write(None, _about(thread_id), ledger.replay, key, seq - 1, seq, 1)
        if not rows:
            raise MessageNotFound(f"no seq {seq}{_about(thread_id)}")
        return _message(rows[0])

    def view(self, thread_id: str, *, at: int | datetime | None = None) -> View:
        """What the model should see: now, at a pos, or at the last pos not later than an aware datetime."""
        key = self._key(thread_id)
        about = _about(thread_id)
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise InvalidInput("at= needs a datetime with a time zone")
            at = self._reach.write(None, about, ledger.pos_at, key, at)
            if at == 0:
                raise PositionNotFound(f"nothing yet at that moment{about}")
        elif at is not None:
            _check_number(at, "at", least=1)
        return views.fold(thread_id, self._reach.write(None, about, ledger.view, key, at))

    def thread(self, thread_id: str) -> Thread:
        """Where a thread stands."""
        key = self._key(thread_id)
        return _thread(self._reach.write(None, _about(thread_id), ledger.thread, key))

    def threads(self, *, after: str = "") -> Iterator[Thread]:
        """The tenant's threads in the order of their names' bytes, those after a name, in pages."""
        if after:
            payload.check_thread_id(after)
        while True:
            rows = self._reach.run(ledger.threads, self._tenant, after, _THREADS_PAGE)
            for row in rows:
                yield _thread(row)
            if len(rows) < _THREADS_PAGE:
                return
            after = rows[-1][0]

    def verify(self, thread_id: str, *, level: audit.Level = "content") -> Report:
        """Recomputes a thread's chain; the report names the level reached and every finding."""
        if level not in audit.LEVELS:
            raise InvalidInput(f"the levels are {', '.join(audit.LEVELS)}")
        key = self._key(thread_id)
        about = _about(thread_id)
        walk = audit.verify(self._tenant, self.thread(thread_id), level)
        wanted = next(walk)
        while True:
            if wanted.kind == "head":
                rows = [self._reach.write(None, about, ledger.thread, key)]
            else:
                rows = self._reach.write(
                    None, about, ledger.entries, key, wanted.kind, wanted.start, level == "content", wanted.limit
                )
            try:
                wanted = walk.send(rows)
            except StopIteration as stop:
                report: Report = stop.value
                return report


class Store(Reader):
    """Reads and writes threads."""

    def append(
        self,
        thread_id: str,
        messages: Any,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        view: View | None = None,
        meta: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> list[Message]:
        """Appends one message or several, all or none; the thread appears with its first.

        A message is a dict of any JSON shape, a pydantic model or an SDK's object. With `key`, the same call again
        returns the first result. `expected_seq` is the seq the thread must end with. `view` is what a reply was
        written from, kept as its receipt. `meta` and `tokens` are one for all or one each.
        """
        thread = self._key(thread_id)
        encoded = [payload.encode(messages)] if payload.is_one(messages) else payload.encode_many(messages)
        if key is None:
            key = "~" + urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
        else:
            payload.check_key(key)
        if expected_seq is not None:
            _check_number(expected_seq, "expected_seq", least=0)
        if view is not None and view.thread_id != thread_id:
            raise InvalidInput(f"the view is one of thread {view.thread_id!r}, not of {thread_id!r}")
        counter, counts = _counted(self._counter, encoded, tokens)
        metas = _metas(meta, len(encoded))
        salts = os.urandom(16 * len(encoded))
        new = [
            ledger.NewMessage(e.text, salts[16 * i : 16 * i + 16], e.role, counts[i], metas[i])
            for i, e in enumerate(encoded)
        ]
        receipt = None if view is None else views.receipt(view)
        written = self._reach.write(
            key, _about(thread_id), ledger.append, thread, thread_id, new, counter, key, receipt, expected_seq
        )
        if written.replayed:
            # The first call's tokens and meta are what is stored, whatever this one said.
            after, count = written.first_seq - 1, len(new)
            rows = self._reach.write(None, _about(thread_id), ledger.replay, thread, after, after + count, count)
            return [_message(row) for row in rows]
        return list(_appended(written, encoded, new))

    def set_metadata(self, thread_id: str, metadata: Mapping[str, Any]) -> None:
        """Replaces the thread's metadata: one JSON object, for what is not a message."""
        key = self._key(thread_id)
        text = payload.encode_meta(metadata)
        if text is None:
            raise InvalidInput("metadata is one JSON object")
        self._reach.write(None, _about(thread_id), ledger.set_metadata, key, text)


def _about(thread_id: str) -> str:
    return f" (thread {thread_id!r})"


def _check_name(value: object, what: str) -> None:
    try:
        payload.check_thread_id(value)
    except InvalidInput:
        raise InvalidInput(f"a {what} is text of 1 to {payload.MAX_NAME_BYTES} bytes of UTF-8 without NUL") from None


def _check_number(value: object, what: str, *, least: int) -> None:
    if type(value) is not int or not least <= value < _LARGEST_SEQ:
        raise InvalidInput(f"{what}= is a whole number from {least} on")


def _next_limit(rows: list[tuple[Any, ...]], limit: int) -> int:
    """A page of about four megabytes, however large the messages are."""
    size = sum(len(row[3] or "") for row in rows) // len(rows) + 1
    return max(1, min(_LONGEST_PAGE, limit * 16, _PAGE_BYTES // size))


def _message(row: tuple[Any, ...]) -> Message:
    seq, pos, role, text, count, created_at, meta, redacted_pos = row
    return Message(
        seq,
        pos,
        role,
        None if text is None else payload.decode(text),
        count,
        created_at,
        None if meta is None else payload.decode(meta),
        redacted_pos is not None,
        text,
    )


def _thread(row: tuple[Any, ...]) -> Thread:
    thread_id, metadata, *rest = row
    return Thread(thread_id, payload.decode_object(metadata), *rest)


def _counted(
    counter: tokens.Counter, encoded: Sequence[payload.Encoded], given: int | Sequence[int] | None
) -> tuple[str, list[int]]:
    if given is None:
        name, counts = counter.name, [counter.tokens(e.payload, e.size) for e in encoded]
    else:
        name = tokens.BY_CALLER
        counts = list(given) if isinstance(given, list | tuple) else [cast("int", given)] * len(encoded)
    if len(counts) != len(encoded):
        raise InvalidInput(f"{len(counts)} token counts for {len(encoded)} messages")
    if any(type(count) is not int or not 0 <= count < 2**31 for count in counts):
        raise InvalidInput("tokens are whole numbers from 0 to 2,147,483,647")
    return name, counts


def _metas(meta: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None, count: int) -> Sequence[str | None]:
    if meta is None or isinstance(meta, Mapping):
        return [payload.encode_meta(meta)] * count
    if not isinstance(meta, list | tuple) or len(meta) != count:
        raise InvalidInput(f"meta= is one JSON object, or one for each of the {count} messages")
    return [payload.encode_meta(m) for m in meta]


def _appended(
    written: ledger.Written, encoded: Iterable[payload.Encoded], new: Iterable[ledger.NewMessage]
) -> Iterator[Message]:
    """What was stored, as a reader would get it; the caller's own objects are not held on to."""
    for i, (e, n) in enumerate(zip(encoded, new, strict=True)):
        meta = None if n.meta is None else payload.decode(n.meta)
        yield Message(
            written.first_seq + i, written.first_pos + i, e.role, payload.decode(e.text), n.tokens,
            written.written_at, meta, False, e.text,
        )  # fmt: skip
