"""The web application for auditors: its addresses, its pages and its error pages."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from compaction_store import __version__, errors
from compaction_store.audit import charts, safe_text
from compaction_store.audit._async import overview, records, threads
from compaction_store.audit.facts import MOST_COUNTED, MOST_DRAWN, OutOfTime, by_run
from compaction_store.audit.marks import element_texts
from compaction_store.audit.safe_text import CUT
from compaction_store.audit.words import LEASES, described, parts, without_text
from compaction_store.checkpoints import CheckpointLog
from compaction_store.compaction.budget import TokenBudget
from compaction_store.models import LEVELS, Thread, vocabulary
from compaction_store.models.record_filters import FILTERS
from compaction_store.models.state import PARTS
from compaction_store.store import AsyncReader, AsyncStore
from compaction_store.store.threads import impatient, pinned

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

    from compaction_store.audit.templates import Whole, environment
except ImportError as error:
    raise errors.MissingExtra("the web server", "web") from error

from compaction_store.web import downloads
from compaction_store.web.access import Access, FormTokens, Guard, answer_to, form, log_access, log_failure
from compaction_store.web.caches import Alarms, Cached, ChartCache, Verifications
from compaction_store.web.job import VerificationJob
from compaction_store.web.routes import FORMS, PARAMETERS, SAMPLE, SAMPLE_FILTERS, Parameters, as_object, exact

if TYPE_CHECKING:
    from compaction_store.evaluation import Prices

_T = TypeVar("_T")
_SERVERS_OWN, _UNAVAILABLE = 500, 503
_TIMES = ("since", "until")
# After so many seconds without a connection, a page says that the database is away.
_PATIENCE = 2.0
# Addresses that have no alarms, because they are no pages.
_WITHOUT_ALARMS = ("/chart.svg", "/download", "/icon.svg", "/style.css", *FORMS)
# The largest thread that the pages verify or report, in entries. The command line does the same for larger ones.
_MOST_VERIFIED = 20_000
# For so many seconds, a reader waits for the end of a verification of all threads. A small tenant needs no more.
_SOON = 1.0
# The longest search and the longest count of a list in seconds. Longer searches are run on the command line.
_LONGEST_SEARCH, _LONGEST_COUNT = 10.0, 1.0


async def _bounded(found: AsyncIterator[_T]) -> AsyncIterator[_T]:
    """Yields what a search finds. Raises `OutOfTime` after the longest time that a page may take."""
    end = asyncio.get_running_loop().time() + _LONGEST_SEARCH
    rows = aiter(found)
    while True:
        try:
            async with asyncio.timeout_at(end):
                row = await anext(rows)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise OutOfTime from None
        yield row


def audit_app(
    reader: AsyncReader,
    *,
    access: Access,
    hosts: Iterable[str] = ("127.0.0.1", "localhost", "[::1]"),
    tenant: str = "default",
    content: bool = True,
    budget: TokenBudget | None = None,
    prices: Prices | None = None,
    checkpoints: CheckpointLog | None = None,
    reviews: AsyncStore | None = None,
    allow_empty: bool = False,
    report: Callable[[Thread, str], bytes] | None = None,
) -> Starlette:
    """Returns the pages as an ASGI application, which can be served alone or mounted in another application.

    The pages show only the threads of the reader's tenant; `tenant` is the name that they show for it. Open `reader`
    with the auditor's role. `access` decides who may read. `hosts` are the host names of the pages; requests to any
    other host are refused. Without `content`, the pages do not show the words of messages and summaries. With a
    `budget`, they list the threads that are due, and with `prices`, they show what summaries cost. With `checkpoints`,
    they show the newest checkpoint, and are red if the store lacks threads that it has. A tenant without threads makes
    them red too, unless `allow_empty` is true. With `report`, a thread's page offers the page that it returns for the
    thread and the reader's name. It is called in a worker thread, for one report at a time.

    With `reviews`, readers can record verdicts on compaction records, and verify all threads; the result is recorded.
    `reviews` is the store that writes both; open it with the role `compaction_store_reviewer`, which can write nothing
    else. Without `reviews`, nothing can be written. A verification uses one connection of `reader` at a time, and stops
    when the application is shut down.
    """
    if reviews is not None and not content:
        raise errors.InvalidInput("reviews must be None if content is False: nobody can judge words that are not shown")
    patient, reader = reader, impatient(reader, _PATIENCE)
    alarms = Alarms(reader, tenant, checkpoints, allow_empty=allow_empty)
    job = None if reviews is None else VerificationJob(patient, reviews, checkpoints, alarms)
    pages = _AuditPages(reader, tenant, content, budget, prices, checkpoints, reviews, alarms, job, report)
    forms = FORMS if reviews is not None else ()
    routes = [Route(path, pages.page(path)) for path in PARAMETERS if path not in FORMS]
    routes += [Route(path, pages.page(path), methods=["POST"]) for path in forms]
    guard = Middleware(Guard, access=access, hosts=tuple(hosts), forms=forms)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        yield
        if job is not None:
            await job.stop()

    return Starlette(routes=routes, middleware=[guard], exception_handlers={404: pages.missing}, lifespan=running)


def _address(request: Request, page: str, /, **parameters: Any) -> Whole:
    """Returns the address of a page, with the parameters that are given."""
    given = {key: value for key, value in parameters.items() if value not in (None, "")}
    root: str = request.scope.get("root_path", "")
    return Whole(root + page + (f"?{urlencode(given, doseq=True)}" if given else ""))


def _led(request: Request, page: str, /, **parameters: Any) -> Response:
    return RedirectResponse(_address(request, page, **parameters), status_code=303)


@dataclass
class _AuditPages:
    """The pages. Each has the name of its path."""

    _reader: AsyncReader
    _tenant: str
    _content: bool
    _budget: TokenBudget | None
    _prices: Prices | None
    _checkpoints: CheckpointLog | None
    _reviews: AsyncStore | None
    _alarms: Alarms
    _job: VerificationJob | None
    _report: Callable[[Thread, str], bytes] | None

    def __post_init__(self) -> None:
        self._form_tokens = FormTokens()
        self._reporting = asyncio.Lock()
        self._downloads = {
            what: [form for form in forms[not self._content] if form != "html" or self._report is not None]
            for what, forms in downloads.FORMS.items()
        }
        self._verified = Verifications(self._checkpoints)
        self._charts = ChartCache(self._reader)
        self._spent = (lambda _: 0.0) if self._prices is None else self._prices.spent
        self._figures = Cached(partial(overview.overview, self._reader, self._budget, self._spent))
        self._choices = Cached(self._reader.audit.counts)
        self._templates = environment(Path(__file__).parent / "templates", cut=True)
        self._templates.filters |= {"hex": bytes.hex, "by_run": by_run}
        self._templates.globals |= {
            "tenant": self._tenant, "content": self._content, "version": __version__, "prices": self._prices,
            "texts": partial(element_texts, content=self._content),
            "parts_of": lambda payload: parts(payload, CUT) if self._content else ([], 0),
            "described": partial(described, content=self._content), "without_text": without_text,
            "has_checkpoints": self._checkpoints is not None, "reviews": self._reviews is not None,
            "download_forms": self._downloads,
            "filters_of_records": FILTERS, "state_parts": PARTS, "vocabulary": vocabulary, "most_drawn": MOST_DRAWN,
            "csv": partial(safe_text.as_csv, self._tenant), "commands": safe_text,
        }  # fmt: skip
        # Compile all templates now, so that no request has to.
        for template in self._templates.list_templates():
            self._templates.get_template(template)
        self._css = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")

    def page(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a page so that every error, such as a wrong address or a missing thread, becomes an error page."""
        show = getattr(self, path.strip("/").partition(".")[0] or "overview")

        async def shown_page(request: Request) -> Response:
            try:
                asked = Parameters(request, PARAMETERS[path])
                if path not in _WITHOUT_ALARMS:
                    await self._alarms.look(wait=path == "/")
                response: Response = await show(request, asked)
                return response
            except errors.CompactionStoreError as error:
                status, title, text = answer_to(error)
                if status >= _SERVERS_OWN:
                    log_failure(request, error)
                return await self._error(request, status, title, text)
            except Exception as error:  # noqa: BLE001 — its text is not shown or logged, because it may have content
                log_failure(request, error)
                return await self._error(request, 500, "This page failed", "The server's log has the place in the code")

        return shown_page

    async def _error(self, request: Request, status: int, title: str, why: str) -> Response:
        answer = await self._html(request, "error.html", {"title": title, "why": why}, status=status)
        if status == _UNAVAILABLE:
            answer.headers["Retry-After"] = "5"
        return answer

    async def missing(self, request: Request, _: Exception) -> Response:
        """Returns the page for an address that there is not."""
        return await self._error(request, 404, "Not found", "There is no page with this address")

    async def _html(
        self, request: Request, name: str, more: dict[str, Any], found: object = None, status: int = 200
    ) -> Response:
        """Renders the facts of a page, and more values, in a thread, so that a slow page does not stop the others."""
        values = {
            "link": partial(_address, request), "here": request.url.path, "alarms": self._alarms.reasons,
            "form_token": self._form_tokens.made(request.scope["reader"]) if self._reviews is not None else "",
            "reader": request.scope.get("reader"), **more, **({} if found is None else vars(found)),
        }  # fmt: skip
        return HTMLResponse(await asyncio.to_thread(self._templates.get_template(name).render, values), status)

    def _seen(self, request: Request, page: str, **what: Any) -> None:
        if self._content:
            log_access(request, page, **what)

    async def overview(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — as all pages
        more = {"stored": self._alarms, "now": datetime.now(UTC), "ticks": charts.ticks}
        return await self._html(request, "overview.html", more, await self._figures.now())

    async def threads(self, request: Request, asked: Parameters) -> Response:
        after = asked.optional("after") or ""
        found = await threads.thread_list(self._reader, after, self._budget)
        return await self._html(request, "threads.html", {"after": after}, found)

    async def leases(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — as all pages
        short = self._templates.filters["brief_moment"]
        more = {"leases": await self._reader.leases(), "columns": LEASES, "short": short}
        return await self._html(request, "leases.html", more)

    async def thread(self, request: Request, asked: Parameters) -> Response:
        name = asked.text("id")
        at, seq = asked.place("at"), asked.number("seq", 1)
        if at is not None and seq is not None:
            raise errors.InvalidInput("at must not be given with seq")
        found = await threads.thread(self._reader, name, at or 1, seq)
        self._charts.draw_ahead(found.thread)
        self._seen(request, "thread", thread_id=name, at=found.start + 1)
        more = {"title": f"Thread {name}", "chart": charts, "checkpoint": await self._checkpoint_mark(found.thread)}
        return await self._html(request, "thread.html", more, found)

    async def _checkpoint_mark(self, found: Thread) -> charts.ChartMark | None:
        """Returns the mark of the newest checkpoint. If it cannot be read, only the page of integrity says so."""
        try:
            newest, signed = await asyncio.to_thread(self._verified.signed_pos, found, again=False)
        except errors.InvalidCheckpoint:
            return None
        return None if newest is None else charts.checkpoint_mark(found, newest, signed)

    async def chart(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — as all pages
        found = await self._reader.thread(asked.text("id"), hidden=True)
        return Response(await self._charts.chart(found), media_type="image/svg+xml")

    async def view(self, request: Request, asked: Parameters) -> Response:
        name, at, beside = asked.text("id"), asked.place("at"), asked.place("beside")
        found = await records.view(
            self._reader, name, at, beside, asked.number("from") or 0, only_changes=asked.optional("all") is None
        )
        self._seen(request, "view", thread_id=name, at=found.at, beside=found.beside)
        return await self._html(request, "view.html", {"title": f"View of {name} at pos {found.at}"}, found)

    async def record(self, request: Request, asked: Parameters) -> Response:
        name, number = asked.text("id"), asked.needed("number")
        found = await records.record(self._reader, name, number, asked.number("after") or 0, content=self._content)
        self._seen(request, "record", thread_id=name, number=number)
        drawn_for = asked.json_object("sample")
        back = {key: value for key, value in (drawn_for or {}).items() if key in SAMPLE}
        reader = pinned(self._reader, name, found.record.thread_uid)
        more = {
            "title": f"Record {number} of {name}", "id": name, "sample": drawn_for, "back": back,
            "place": asked.number("place", 1),
            "findings": await reader.audit.verify_entry(name, number=number),
        }  # fmt: skip
        return await self._html(request, "record.html", more, found)

    async def compare(self, request: Request, asked: Parameters) -> Response:
        name, number, other = asked.text("id"), asked.needed("number"), asked.needed("with")
        found = await records.compared(self._reader, name, number, other, content=self._content)
        self._seen(request, "compare", thread_id=name, number=number, other=other)
        title = f"Records {number} and {other} of {name}"
        return await self._html(request, "compare.html", {"title": title, "id": name}, found)

    async def _form(self, request: Request) -> dict[str, str]:
        """Returns the fields of a form that was shown to this reader."""
        try:
            given = await form(request)
        except ValueError as error:
            raise errors.InvalidInput(str(error)) from None
        if not self._form_tokens.is_right(request.scope["reader"], given.get("token", "")):
            raise errors.PermissionDenied("the form does not come from a page that was shown to you; open it again")
        return given

    async def verify(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — the form has the parameters
        """Starts the verification of all threads, or joins the one that runs."""
        assert self._job is not None  # noqa: S101 — without reviews, this page has no route
        level: Any = (await self._form(request)).get("level", "")
        await self._job.join(level, request, _SOON)
        log_access(request, "verify", level=level)
        return _led(request, "/integrity#all-threads")

    async def verdict(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — the form has the parameters
        """Writes the verdict of a submitted form, and redirects to the sample or to the record."""
        assert self._reviews is not None  # noqa: S101 — without reviews, this page has no route
        given = await self._form(request)
        name, number = exact(given, "id"), given.get("number", "")
        if not (number.isascii() and number.isdecimal() and len(number) < 16):  # noqa: PLR2004
            raise errors.InvalidInput("number must be an integer >= 1")
        sample = as_object(text, "sample") if (text := exact(given, "sample")) else None
        thread = await self._reader.thread(name, hidden=True)
        if str(thread.thread_uid) != given.get("key"):
            what = f"the name {name!r} belongs to another thread than when the form was shown: open it again"
            raise errors.Conflict(what)
        # Write to this thread, even if the name goes to another thread now.
        reviews = pinned(self._reviews, name, thread.thread_uid)
        try:
            await reviews.audit.review(
                name, int(number), cast("Any", given.get("verdict", "")), note=given.get("note", "").strip() or None,
                sample=sample, actor=request.scope["reader"],
            )  # fmt: skip
        except errors.ThreadErased:
            what = f"the thread {name!r} was erased after the form was shown: no verdict was recorded"
            raise errors.Conflict(what) from None
        log_access(request, "verdict", thread_id=name, number=int(number), verdict=given["verdict"])
        if sample is None:
            return _led(request, "/record", id=name, number=number)
        return _led(request, "/sample", **{key: value for key, value in sample.items() if key in SAMPLE}, next=1)

    async def message(self, request: Request, asked: Parameters) -> Response:
        name, seq = asked.text("id"), asked.needed("seq")
        found = await records.message(self._reader, name, seq, asked.number("part", 1) or 1, content=self._content)
        self._seen(request, "message", thread_id=name, seq=seq)
        return await self._html(request, "message.html", {"title": f"Message {seq} of {name}", "id": name}, found)

    async def whole(self, request: Request, asked: Parameters) -> Response:
        """Shows all fields of an entry or of a thread, in parts. The other pages show the beginning of each field."""
        name = asked.text("id")
        if not self._content:
            raise errors.InvalidInput("this page must not be asked for, because these pages show no words")
        places = {key: asked.number(key, 1) for key in ("pos", "number", "seq")}
        if sum(place is not None for place in places.values()) > 1:
            raise errors.InvalidInput("at most one of pos, number and seq must be given")
        found = await records.text(self._reader, name, part=asked.number("part", 1) or 1, **places)
        self._seen(request, "whole", thread_id=name, **places)
        return await self._html(request, "whole.html", {"title": f"All of {name}", "id": name, "given": places}, found)

    async def reply(self, request: Request, asked: Parameters) -> Response:
        name, seq = asked.text("id"), asked.needed("seq")
        found = await records.reply(self._reader, name, seq, asked.number("from") or 0)
        self._seen(request, "reply", thread_id=name, seq=seq)
        more = {"title": f"Message {seq} of {name} and its view", "id": name}
        return await self._html(request, "reply.html", more, found)

    def _wanted(self, asked: Parameters) -> dict[str, Any]:
        """Returns the filters of records. Raises InvalidInput for one whose answer would show words."""
        for row in FILTERS.values():
            if row.has_words and not self._content and asked.optional(row.name) is not None:
                raise errors.InvalidInput(
                    f"{row.name} must not be given, because these pages show no words: the answer would show it"
                )
        return {row.name: asked.filter(row) for row in FILTERS.values()}

    async def records(self, request: Request, asked: Parameters) -> Response:
        wanted = self._wanted(asked)
        after = asked.after()
        thread_id, order = asked.optional("id"), asked.optional("order")
        if order not in (None, "oldest"):
            raise errors.InvalidInput("order must be oldest, or be left out")
        found = await records.record_list(
            self._reader, thread_id, wanted, after, bounded=_bounded, with_costs=asked.optional("costs") is not None,
            newest_first=order is None, spent=self._spent,
        )  # fmt: skip
        if found.records.rows:
            self._seen(request, "records", thread_id=thread_id)
        given = {key: asked.written(key) for key in ("id", "order", *FILTERS)}
        is_part = found.records.more or after is not None
        # The command gets exact times, because it reads times in the time zone of its machine.
        times = {key: at.isoformat() for key in _TIMES if (at := wanted[key]) is not None}
        more = {
            "given": given, "options": {FILTERS[name].flag: (given | times)[name] for name in FILTERS},
            "has_more": any(given[row.name] for row in FILTERS.values() if not row.is_of_samples),
            "choices": await self._choices.now(), "most_counted": MOST_COUNTED,
            "matching": await self._matching(thread_id, wanted) if is_part else len(found.records.rows),
        }  # fmt: skip
        return await self._html(request, "records.html", more, found)

    async def _matching(self, thread_id: str | None, wanted: dict[str, Any]) -> int | None:
        """Counts the records that match, up to one more than are counted. None if it takes long, or reads bodies."""
        given = {name: value for name, value in wanted.items() if value is not None}
        if not any(FILTERS[name].holds for name in given):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_COUNT):
                    counted = await self._reader.audit.counts(thread_id, among=MOST_COUNTED + 1, **given)
                    return counted["all"].get("", 0)
        return None

    async def search(self, request: Request, asked: Parameters) -> Response:
        text, thread_id = asked.optional("q"), asked.optional("id")
        found = None
        if text is not None and self._content:
            places = self._reader.audit.search(text, thread_id=thread_id, after=asked.optional("after") or "")
            found = await threads.first(_bounded(places))
            self._seen(request, "search", thread_id=thread_id, characters=len(text), found=len(found.rows))
        return await self._html(request, "search.html", {"q": text, "id": thread_id, "found": found})

    async def erasures(self, request: Request, asked: Parameters) -> Response:
        thread_id, kind = asked.optional("id"), asked.optional("kind")
        after = asked.after()
        wanted = {"actor": asked.optional("actor"), **{key: asked.filter(FILTERS[key]) for key in _TIMES}}
        shown = ("legal_basis", "override", "order")
        given = {"id": thread_id, "kind": kind, **{name: asked.optional(name) for name in (*wanted, *shown)}}
        if given["legal_basis"] is not None and not self._content:
            raise errors.InvalidInput("legal_basis must not be given, because these pages show no words")
        if given["order"] not in (None, "oldest"):
            raise errors.InvalidInput("order must be oldest, or be left out for the newest first")
        found = await threads.event_list(
            self._reader, thread_id, kind, after, legal_basis=given["legal_basis"], bounded=_bounded,
            override=given["override"] is not None, oldest_first=given["order"] is not None, **wanted,
        )  # fmt: skip
        self._seen(request, "erasures", thread_id=thread_id)
        more = {"kinds": threads.ERASURES, "given": given, "wanted": wanted, "id": thread_id, "kind": kind}
        return await self._html(request, "erasures.html", more, found)

    async def certificate(self, request: Request, asked: Parameters) -> Response:
        name, pos = asked.text("id"), asked.needed("pos")
        found = await threads.event_page(self._reader, name, pos)
        self._seen(request, "certificate", thread_id=name, at=pos)
        newest, signed = await asyncio.to_thread(self._verified.signed_pos, found.thread)
        more = {
            "findings": await pinned(self._reader, name, found.thread.thread_uid).audit.verify_entry(name, pos=pos),
            "title": f"{found.event.kind} of {name} at pos {pos}", "newest": newest, "signed_pos": signed,
            "now": datetime.now(UTC), "verified": self._verified.of(found.thread),
        }  # fmt: skip
        return await self._html(request, "certificate.html", more, found)

    async def integrity(self, request: Request, asked: Parameters) -> Response:
        """Verifies a thread unless it is too long, and lists the threads that were verified last."""
        name, level = asked.optional("id"), asked.optional("level")
        report = thread = None
        chosen: Any = level or ("content" if self._checkpoints is None else "checkpoint")
        if name is not None:
            thread = await self._reader.thread(name, hidden=True)
            if thread.last_pos <= _MOST_VERIFIED:
                # Only this level compares the thread with the log.
                log = self._checkpoints if chosen == "checkpoint" else None
                report = await self._reader.audit.verify(name, level=chosen, checkpoints=log)
                if report.thread_uid != thread.thread_uid:
                    raise errors.Conflict(f"the name {name!r} has just gone to another thread: verify it again")
                self._verified.keep(name, report)
        newest = self._verified.newest_checkpoint()
        more = {
            "thread": thread, "report": report, "newest": newest, "now": datetime.now(UTC), "id": name,
            "most": _MOST_VERIFIED, "level": chosen, "levels": LEVELS, "verified": self._verified.newest_first,
            "stored": self._alarms, "job": self._job, "keys": self._checkpoints.keys if self._checkpoints else (),
        }  # fmt: skip
        return await self._html(request, "integrity.html", more)

    async def sample(self, request: Request, asked: Parameters) -> Response:
        """Draws a sample, or shows its form. With its seed and times, its address draws the same records again."""
        given = {key: asked.written(key) for key in SAMPLE_FILTERS}
        seed = asked.number("seed")
        if seed is None:
            given["until"] = given["until"] or datetime.now(UTC).isoformat(timespec="seconds")
            start = {"given": given, "seed": secrets.randbelow(1_000_000), "count": 10, "name": None}
            return await self._html(request, "sample.html", start)
        wanted = {key: asked.filter(FILTERS[key]) for key in SAMPLE_FILTERS}
        count = min(asked.number("count", 1) or 10, MOST_DRAWN)
        stated = {key: value for key, value in given.items() if value is not None}
        times = {**wanted, "until": wanted["until"] or datetime.now(UTC)}
        fixed = stated | {key: times[key].isoformat() for key in _TIMES if times[key] is not None}
        if fixed != stated:
            return _led(request, "/sample", seed=seed, count=count, **fixed)
        found = await records.sample(self._reader, wanted, fixed, seed, count)
        if asked.optional("next") is not None:
            for place, (record, verdicts) in enumerate(found.drawn, 1):
                if request.scope["reader"] not in verdicts:
                    at = {"id": record.thread_id, "number": record.number, "place": place}
                    return _led(request, "/record", **at, sample=json.dumps(found.name))
        self._seen(request, "sample", found=len(found.drawn))
        return await self._html(request, "sample.html", {"given": given}, found)

    async def reviews(self, request: Request, asked: Parameters) -> Response:
        since, until = (asked.filter(FILTERS[key]) for key in _TIMES)
        found, more = await records.reviews(self._reader, since, until)
        given = {key: asked.optional(key) for key in _TIMES}
        page = {"given": given, "since": since, "until": until, "found": found, "is_cut": more}
        return await self._html(request, "reviews.html", page)

    async def download(self, request: Request, asked: Parameters) -> Response:
        """Sends a thread, a view or the records that match as a file, while it is read."""
        what, form = asked.optional("what") or "thread", asked.text("form")
        if form not in self._downloads.get(what, ()):
            raise errors.InvalidInput(f"what must be one of {', '.join(downloads.FORMS)}, and form one of its forms")
        name, reader, found, label = asked.optional("id"), self._reader, None, what
        if what != "records" or name is not None:
            reader, found = await threads.resolved(reader, asked.text("id"))
            label = f"{found.thread_uid}.{what}".removesuffix(".thread")
        lines: AsyncIterator[Any]
        if found is None or what == "records":
            newest_first = asked.optional("order") is None
            rows: AsyncIterator[Any] = reader.compactions(name, newest_first=newest_first, **self._wanted(asked))
        elif what == "view":
            view = await reader.view(found.thread_id, at=asked.place("at") or found.last_pos)
            rows, label = downloads.each(view.elements), f"{label}.pos-{view.pos}"
        else:
            rows = downloads.entries(reader, found)
        if form == "bundle.jsonl":
            lines = reader.audit.export(asked.text("id"), bodies=self._content)
        elif form == "html" and found is not None and self._report is not None:
            if found.last_pos > _MOST_VERIFIED:
                raise errors.InvalidInput(
                    f"a report must be of at most {_MOST_VERIFIED:,} entries, not {found.last_pos:,}: run"
                    " `compaction-store report` for a longer thread"
                )
            async with self._reporting:
                lines = downloads.each([await asyncio.to_thread(self._report, found, request.scope["reader"])])
        elif form == "md" and found is not None:
            lines = downloads.written(rows, found)
        else:
            lines = downloads.listed(rows, form, None if self._content else downloads.WORDLESS)
        self._seen(request, "download", thread_id=name, what=what, form=form)
        headers = {"Content-Disposition": f'attachment; filename="{label}.{form}"'}
        return StreamingResponse(lines, media_type=downloads.MEDIA.get(form, "application/jsonl"), headers=headers)

    async def style(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — as all pages
        return Response(self._css, media_type="text/css")

    async def icon(self, request: Request, asked: Parameters) -> Response:  # noqa: ARG002 — as all pages
        return Response(self._templates.get_template("icon.svg").render(), media_type="image/svg+xml")
