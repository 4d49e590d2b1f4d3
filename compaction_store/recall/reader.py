"""Implements each tool as a generator that `waiting` runs, so that the same code serves sync and async readers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from heapq import heappush, heappushpop
from itertools import count
from typing import Any, ClassVar, NamedTuple

from compaction_store.compaction.element_json import ElementJson, dump, source_document
from compaction_store.errors import CompactionNotFound, ThreadNotFound, UnknownEntry
from compaction_store.integrity.erasure import ranges
from compaction_store.models import Compaction, Element, Message, Payload, Thread
from compaction_store.models.messages import shown
from compaction_store.models.state import PartName, State
from compaction_store.models.vocabulary import WITHDRAWALS
from compaction_store.recall.definitions import CURSOR, DESCRIBE, EXPAND, SEARCH, BadCall, check_arguments, tools
from compaction_store.recall.pages import Recalled, ResultPage, without_recall
from compaction_store.store.threads import refuse_unknown
from compaction_store.tokens import Counter
from compaction_store.tokens.message_text import read
from compaction_store.waiting import Call, Pause, Work

_HITS = 10
_EXCERPT_TOKENS = 160
# The maximum length of a reason, of an error, and of a summary in a list of records.
_SHORT_TOKENS = 120
# The maximum number of records that one call reads to list the records, or those of a range.
_MOST_RECORDS = 2000
_AT_ONCE = 100


class Reading:
    """Runs the tools on one thread with a sync or an async reader."""

    def __init__(self, reader: Any, thread_id: str, counter: Counter, max_tokens: int) -> None:
        self._reader = reader
        self._thread_id = thread_id
        self._counter = counter
        self._max_tokens = max_tokens
        self.tools = {tool.name: tool for tool in tools(max_tokens)}

    def call(self, name: Any, given: Any) -> Work[Recalled]:
        """Runs a call. Returns an error result for a wrong call, thread or record, or for an entry of unknown kind."""
        try:
            tool = self.tools.get(name) if isinstance(name, str) else None
            if tool is None:
                raise BadCall(f"the tool must be one of {', '.join(self.tools)}")
            if self._counter.takes_long(0):
                yield Call(self._counter.prepare)
            return (yield from self._handlers[tool.name](self, **check_arguments(tool, given)))
        except (BadCall, UnknownEntry) as error:
            return Recalled(f"Error: {error}.", is_error=True)
        except ThreadNotFound:
            return Recalled("Error: this conversation has no stored messages yet.", is_error=True)
        except CompactionNotFound:
            return Recalled("Error: no record has this number.", is_error=True)

    # ---- search

    def _search(
        self,
        query: str,
        after_seq: int = 0,
        until_seq: int | None = None,
        limit: int = _HITS,
        withdrawn: bool = False,  # noqa: FBT002 — named by the model
    ) -> Work[Recalled]:
        wanted = words(query)
        thread = yield self._reader.thread(self._thread_id)
        search = Search(wanted, limit, after_seq, (yield from self._withdrawn(thread)), withdrawn)
        until = thread.last_seq if until_seq is None else min(until_seq, thread.last_seq)
        if after_seq < until:
            yield from _for_each(self._reader.replay(self._thread_id, after=after_seq, until=until), search.look)
        page = ResultPage(self._counter, self._max_tokens, "found", _searched(search, after_seq))
        folds: list[Compaction] = []
        last = search.last if search.last < until else None
        for hit in search.hits or search.some:
            record = yield from self._fold(hit.seq, folds)
            entry: Payload = {"seq": hit.seq, "role": hit.role, "words": list(hit.words)}
            entry |= {} if record is None else {"folded_into_record": record.number}
            entry |= {"withdrawn": True} if hit.withdrawn else {}
            shown = _with_text(page, entry, "excerpt", hit.excerpt, _EXCERPT_TOKENS)
            if not page.add(shown, {"after_seq": hit.seq - 1}):
                last = hit.seq - 1
                break
        return page.written(None if last is None else {"after_seq": last})

    def _withdrawn(self, thread: Thread) -> Work[Withdrawn]:
        """Returns the seqs that rewinds and clears hide. Those that were revoked are left out."""
        refuse_unknown(thread)
        found = Withdrawn()
        if thread.last_number:
            for kind in WITHDRAWALS:
                yield from _for_each(self._reader.compactions(self._thread_id, kind=kind, outcome="applied"), found.add)
        return found

    def _fold(self, seq: int, known: list[Compaction]) -> Work[Compaction | None]:
        """Returns the active record that covers a message, or None if no active record does."""
        for record in known:
            if (record.start_seq or 0) <= seq <= (record.end_seq or 0):
                return record
        before = len(known)

        def look(record: Compaction) -> bool:
            if record.status == "active":
                known.append(record)
            return len(known) == before

        yield from _for_each(self._reader.compactions(self._thread_id, covering=seq, outcome="applied"), look)
        return known[-1] if len(known) > before else None

    # ---- expand

    def _expand(
        self,
        record: int | None = None,
        start_seq: int | None = None,
        end_seq: int | None = None,
        cursor: str | None = None,
        max_tokens: int | None = None,
        withdrawn: bool = False,  # noqa: FBT002 — named by the model
    ) -> Work[Recalled]:
        start, end, skip = yield from self._wanted(record, start_seq, end_seq, cursor)
        about: Payload = {"start_seq": start, "end_seq": end}
        page = ResultPage(self._counter, max_tokens or self._max_tokens, "messages", about)
        hidden = Withdrawn()
        if not withdrawn:
            hidden = yield from self._withdrawn((yield self._reader.thread(self._thread_id)))
        listed = _Messages(page, start, end, skip, hidden)
        yield from _for_each(self._reader.replay(self._thread_id, after=start - 1, until=end), listed.look)
        if page.is_empty:
            raise BadCall(f"no message has a seq from {start} to {end}")
        return page.written(None if listed.next is None else {"cursor": listed.next})

    def _wanted(
        self, record: int | None, start_seq: int | None, end_seq: int | None, cursor: str | None
    ) -> Work[tuple[int, int, int]]:
        """Returns the first seq, the last seq, and how many characters of the first message an earlier call read."""
        if sum(value is not None for value in (record, start_seq, cursor)) != 1:
            raise BadCall("exactly one of record, start_seq and cursor must be given")
        if cursor is not None and (parts := CURSOR.fullmatch(cursor)):
            start, end, skip = int(parts[1]), int(parts[2]), int(parts[3] or 0)
        elif start_seq is not None:
            start, end, skip = start_seq, start_seq if end_seq is None else end_seq, 0
        else:
            found = yield self._reader.compaction(self._thread_id, record)
            if found.start_seq is None:
                raise BadCall("this record has no messages")
            start, end, skip = found.start_seq, found.end_seq, 0
        if not 1 <= start <= end:
            raise BadCall("start_seq must be >= 1 and end_seq >= start_seq")
        return start, end, skip

    # ---- describe

    def _describe(
        self,
        record: int | None = None,
        start_seq: int | None = None,
        end_seq: int | None = None,
        before_record: int | None = None,
        part: PartName | None = None,
    ) -> Work[Recalled]:
        if record is not None and (start_seq, end_seq, before_record) != (None, None, None):
            raise BadCall("record must be the only argument besides part")
        if end_seq is not None and (start_seq is None or end_seq < start_seq):
            raise BadCall("end_seq must come with a start_seq <= end_seq")
        page = ResultPage(self._counter, self._max_tokens, "records", {})
        if record is not None:
            found = yield self._reader.compaction(self._thread_id, record)
            page.put(_described(page, found, page.room - 1, part), {})
            return page.written(None)
        after = None
        if before_record is not None:
            after = yield self._reader.compaction(self._thread_id, before_record)
        listed = _Records(page, start_seq, start_seq if end_seq is None else end_seq, part)
        yield from _for_each(self._reader.compactions(self._thread_id, newest_first=True, after=after), listed.look)
        return page.written(None if listed.next is None else {"before_record": listed.next})

    _handlers: ClassVar[dict[str, Callable[..., Work[Recalled]]]] = {
        SEARCH: _search,
        EXPAND: _expand,
        DESCRIBE: _describe,
    }


def _for_each(items: Any, look: Callable[[Any], bool]) -> Work[None]:
    """Calls `look` with each item of a sync or async iterator until `look` returns False. Closes the iterator."""
    is_async = hasattr(items, "__anext__")
    advance, close = (items.__anext__, items.aclose) if is_async else (items.__next__, items.close)
    try:
        for number in count(1):
            if not look((yield advance())):
                return
            # Items of a page that was fetched arrive without awaiting I/O. Let other tasks on the event loop run.
            if number % _AT_ONCE == 0:
                yield Pause(0)
    except (StopIteration, StopAsyncIteration):
        return
    finally:
        yield close()


class _Messages:
    """Adds messages to a page until it is full. If even the first message does not fit, adds a part of it."""

    def __init__(self, page: ResultPage, start: int, end: int, skip: int, withdrawn: Withdrawn) -> None:
        self.next: str | None = None
        self._withdrawn = withdrawn
        self._page = page
        self._start = start
        self._end = end
        self._skip = skip

    def look(self, message: Message) -> bool:
        place = f"{message.seq}-{self._end}"
        if message.seq in self._withdrawn:
            is_added = self._page.add(dump({"seq": message.seq, "withdrawn": True}), {"cursor": place})
            self.next = None if is_added else place
            return is_added
        piece = _piece(message)
        if self._skip and message.seq == self._start:
            piece = piece._replace(text=piece.text[self._skip :], at=self._skip)
            if not piece.text:
                # The message was erased after its first part was read, so its JSON is shorter than the part.
                piece = _piece(message)
        if self._page.fits(piece.entry):
            self._page.put(piece.entry, {"cursor": place})
            return True
        self.next = place
        if self._page.is_empty:
            kept = self._page.beginning(piece.text, lambda text: _part(piece, text), self._page.room - 1)
            self._page.put(_part(piece, kept), {"cursor": place})
            self.next = f"{place}:{(piece.at or 0) + len(kept)}"
        return False


def _piece(message: Message) -> ElementJson:
    element = Element(
        message.seq, message.seq, message.pos, (shown(message.payload),), message.tokens, None, message.created_at
    )
    return source_document([element]).pieces[0]


def _part(piece: ElementJson, text: str) -> str:
    return piece._replace(text=text, at=piece.at or 0).entry


class _Records:
    """Adds the records that overlap a range of seqs to a page until it is full."""

    def __init__(self, page: ResultPage, start: int | None, end: int | None, part: PartName | None) -> None:
        self.next: int | None = None
        self._page = page
        self._part = part
        self._start = start
        self._end = end
        self._looked_at = 0

    def look(self, record: Compaction) -> bool:
        begin = record.number + 1
        self._looked_at += 1
        if self._overlaps(record) and not self._page.add(
            _described(self._page, record, _SHORT_TOKENS, self._part), {"before_record": begin}
        ):
            self.next = begin
        elif self._looked_at >= _MOST_RECORDS and record.number > 1:
            self.next = record.number
        return self.next is None

    def _overlaps(self, record: Compaction) -> bool:
        if self._start is None or self._end is None:
            return True
        if record.start_seq is None or record.end_seq is None:
            return False
        return record.start_seq <= self._end and self._start <= record.end_seq


def _searched(search: Search, after_seq: int) -> Payload:
    about: Payload = {"searched": {"after_seq": after_seq, "until_seq": search.last}}
    if not search.with_withdrawn and (left_out := search.withdrawn.between(after_seq + 1, search.last)):
        about["withdrawn"] = left_out[:_MOST_RANGES]
    if search.erased:
        about["erased"] = {"messages": search.erased, "seqs": search.erased_seqs}
    return about


def _described(page: ResultPage, record: Compaction, room: int, part: PartName | None = None) -> str:
    """Returns a record as JSON without prompt and provider's data; `part` leaves out the summary's other parts."""
    entry: Payload = {"record": record.number, "kind": record.kind, "outcome": record.outcome}
    span = None if record.start_seq is None else [record.start_seq, record.end_seq]
    tokens = None if record.tokens_before is None else [record.tokens_before, record.tokens_after]
    parts = {
        "status": record.status, "revoked_by": record.revoked_by, "superseded_by": record.superseded_by,
        "messages": span, "revokes": record.revokes, "tokens": tokens,
        "written": record.created_at.astimezone(UTC).isoformat(timespec="seconds"),
        "callback": page.short(record.callback), "actor": page.short(record.actor), "model": page.short(record.model),
        "made_from_records": ranges(record.inputs)[:_MOST_RANGES] or None,
        "erased": True if record.redacted else None,
    }  # fmt: skip
    entry |= {name: value for name, value in parts.items() if value is not None}
    error = (record.error or {}).get("text")
    for name, text in (("error", error), ("reason", record.reason)):
        if isinstance(text, str):
            entry[name] = page.beginning(text, dump, _SHORT_TOKENS)
    text = record.summary_text
    if part is not None and (state := record.parts) is not None:
        text = State({part: state.get(part, ())}).text
    return _with_text(page, entry, "summary", text, room) if text else dump(entry)


def _with_text(page: ResultPage, entry: Payload, name: str, text: str, room: int) -> str:
    """Returns an entry as JSON with as much of a text as fits `room` tokens. `{name}_is_cut` marks a cut text."""

    def write(kept: str) -> str:
        return dump(entry | {name: kept} | ({} if len(kept) == len(text) else {f"{name}_is_cut": True}))

    return write(page.beginning(text, write, room))


# ---- a search, one message at a time: memory does not grow with the thread


_WORD = re.compile(r'"([^"]*)"|([^\s"]+)')
_MOST_WORDS = 16
_BEFORE, _AFTER = 100, 200
# One call searches at most this much, which takes a few seconds, and then returns `next`.
_MOST_MESSAGES = 20_000
_MOST_CHARACTERS = 64 * 1024 * 1024
_MOST_RANGES = 20


def words(query: str) -> list[str]:
    """Splits a query into distinct words and quoted phrases. Raises BadCall if there are none or too many."""
    found = [(quoted or plain).strip() for quoted, plain in _WORD.findall(query)]
    listed = list({word.casefold(): word for word in found if word}.values())
    if not 1 <= len(listed) <= _MOST_WORDS:
        raise BadCall(f"query must have 1 to {_MOST_WORDS} words or quoted phrases, not {len(listed)}")
    return listed


class Withdrawn:
    """The ranges of seqs that rewinds and clears hide from the view. Searches leave these messages out by default."""

    def __init__(self) -> None:
        # The ranges in order, and those that were added since they were merged.
        self._merged: list[list[int]] = []
        self._added: list[list[int]] = []

    def add(self, record: Compaction) -> bool:
        """Adds the seqs that a record hides, unless it was revoked. Returns True, so that iteration goes on."""
        if record.start_seq is not None and record.end_seq is not None and record.status != "revoked":
            self._added.append([record.start_seq, record.end_seq])
        return True

    def between(self, first: int, last: int) -> list[list[int]]:
        """Returns the hidden ranges of seqs from `first` to `last`, both inclusive."""
        overlapping = ([max(start, first), min(end, last)] for start, end in self._ranges())
        return [found for found in overlapping if found[0] <= found[1]]

    def __contains__(self, seq: int) -> bool:
        ranges = self._ranges()
        place = bisect_right(ranges, seq, key=lambda found: found[0]) - 1
        return place >= 0 and seq <= ranges[place][1]

    def _ranges(self) -> list[list[int]]:
        if self._added:
            given, self._merged, self._added = sorted(self._merged + self._added), [], []
            for start, end in given:
                if self._merged and start <= self._merged[-1][1] + 1:
                    self._merged[-1][1] = max(self._merged[-1][1], end)
                else:
                    self._merged.append([start, end])
        return self._merged


class Hit(NamedTuple):
    seq: int
    role: str | None
    words: tuple[str, ...]
    excerpt: str
    withdrawn: bool = False


@dataclass
class Search:
    """The state of a search. `hits` are the messages with all the words. `last` is the seq that was searched last."""

    words: list[str]
    limit: int
    last: int
    withdrawn: Withdrawn = field(default_factory=Withdrawn)
    with_withdrawn: bool = False
    hits: list[Hit] = field(default_factory=list)
    erased: int = 0
    #: The ranges of seqs of erased messages, at most the first twenty.
    erased_seqs: list[list[int]] = field(default_factory=list)
    _some: list[tuple[int, int, Hit]] = field(default_factory=list)
    _messages: int = 0
    _characters: int = 0

    def look(self, message: Message) -> bool:
        """Searches one message. Returns False if the search is done: enough was found or searched."""
        self.last = message.seq
        self._messages += 1
        is_withdrawn = message.seq in self.withdrawn
        if message.payload is None:
            self._note_erased(message.seq)
        elif self.with_withdrawn or not is_withdrawn:
            self._characters += len(message.text or "")
            found = self._found(message, withdrawn=is_withdrawn)
            if found is not None and len(found.words) == len(self.words):
                self.hits.append(found)
            elif found is not None and not self.hits:
                put = heappush if len(self._some) < self.limit else heappushpop
                put(self._some, (len(found.words), -found.seq, found))
        enough = self._messages >= _MOST_MESSAGES or self._characters >= _MOST_CHARACTERS
        return len(self.hits) < self.limit and not enough

    @property
    def some(self) -> list[Hit]:
        """The messages that contain the largest number of the words, in the order of their seqs."""
        return sorted(hit for _, _, hit in self._some)

    def _found(self, message: Message, *, withdrawn: bool) -> Hit | None:
        texts = read(without_recall(message.payload or {}))[0]
        best: tuple[str, ...] = ()
        anchor = ""
        there: set[str] = set()
        for text in texts:
            plain = text.casefold()
            inside = tuple(word for word in self.words if word.casefold() in plain)
            there.update(inside)
            if len(inside) > len(best):
                best, anchor = inside, text
        if not there:
            return None
        inside = tuple(word for word in self.words if word in there)
        return Hit(message.seq, message.role, inside, _excerpt(anchor, best), withdrawn)

    def _note_erased(self, seq: int) -> None:
        self.erased += 1
        if self.erased_seqs and self.erased_seqs[-1][1] == seq - 1:
            self.erased_seqs[-1][1] = seq
        elif len(self.erased_seqs) < _MOST_RANGES:
            self.erased_seqs.append([seq, seq])


def _excerpt(text: str, inside: tuple[str, ...]) -> str:
    """Returns the text around the longest matching word, because the longest word is probably the rarest."""
    place = re.search(re.escape(max(inside, key=len)), text, re.IGNORECASE)
    # Casefolding can match what IGNORECASE does not, such as "ß" and "ss". The excerpt is then the text's beginning.
    start, end = (0, 0) if place is None else place.span()
    low, high = max(0, start - _BEFORE), end + _AFTER
    return ("…" if low else "") + text[low:high] + ("…" if high < len(text) else "")
