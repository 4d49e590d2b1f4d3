"""The store over HTTP, for programs in other languages. `routes.toml` has the routes.

Nobody holds a connection to the database, or the place of another request, while a request arrives. Every call has a
limit for its size and for its time. No answer that refuses, and no line of the log, has the content of a message.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import parse_qsl, quote, unquote

from pydantic import AfterValidator, BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from compaction_store import arguments
from compaction_store.arguments import about
from compaction_store.compaction.callbacks import Callback
from compaction_store.errors import CompactionStoreError, HeadConflict, InvalidInput
from compaction_store.jsonable import plain
from compaction_store.messages import documents
from compaction_store.models import Compaction, Message, Thread
from compaction_store.rendering.view import Rendered, View
from compaction_store.results import AsyncResults
from compaction_store.store import AsyncStore
from compaction_store.store.threads import impatient
from compaction_store.web.access import HEADERS, STATUS, Refusal, answer_to, host_of, log_access, log_failure, read
from compaction_store.web.routes import RENDERERS, ROUTES, Route, ViewUsed, asked, document

__all__ = ["Caller", "Callers", "Refusal", "TokenFile", "TrustedProxy", "api_app", "document"]
# After so many seconds without a connection, an answer says that the database is away.
_PATIENCE = 5.0
# The longest time for the arrival of a body, and the most bytes of all bodies that are in memory.
_LONGEST_ARRIVAL, _MOST_HELD = 20.0, 256 * 1024 * 1024
# A page of a list ends after so many bytes, although it may have room for more.
_LONGEST_PAGE = 8 * 1024 * 1024
# The place after which the next page begins, by the type of the rows.
_CURSORS = {Thread: "{row.thread_id}", Message: "{row.seq}", Compaction: "{row.number}:{row.thread_id}"}
_MOST_TENANTS, _MOST_PARAMETERS = 1000, 50
_JSON = re.compile(r"application/json(\s*;\s*charset=\"?utf-8\"?)?\s*", re.IGNORECASE)
_DIGITS = re.compile("[0-9]{1,15}")
# The log of a request with an unknown address, and the most characters of a thread's name in the log.
_NO_CALL: Mapping[str, Any] = MappingProxyType({"page": "unknown"})
_LONGEST_ID = 255
_PATHS = [(re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)), route) for route in ROUTES]


def api_app(
    store: AsyncStore,
    *,
    callers: Callers,
    strategies: Mapping[str, Callback] = MappingProxyType({}),
    hosts: Iterable[str] = ("127.0.0.1", "localhost", "[::1]"),
    most_at_once: int = 64,
    longest: float = 300.0,
) -> Starlette:
    """Returns the API as an ASGI application, which can be served alone or mounted in another application.

    Open `store` with the application's login. `callers`, a `TokenFile` or a `TrustedProxy`, says for which tenant and
    actor a request is, whatever the store's own are. Programs may compact with one of the `strategies`, by its name.
    `hosts` are the host names of the API; requests to any other host are refused. So are requests when `most_at_once`
    others are being answered. No call takes more than `longest` seconds, and most have a shorter limit.
    """
    names = frozenset(host.casefold() for host in hosts)
    api = _Api(impatient(store, _PATIENCE), callers, strategies, names, most_at_once, longest)
    return Starlette(routes=[Mount("/", app=api)])


@dataclass
class _Api:
    store: AsyncStore
    callers: Callers
    strategies: Mapping[str, Callback]
    hosts: frozenset[str]
    free: int
    longest: float
    held: int = 0
    # Stores are kept, because each remembers where its threads ended and notices if they have lost messages.
    stores: dict[str, AsyncStore] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        with suppress(ClientDisconnect):
            request = Request(scope, receive)
            response = await self._response(request)
            if (call := scope.get("call", _NO_CALL))["page"] is not None:
                log_access(request, **call, status=response.status_code)
            response.headers.update(HEADERS)
            await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        route = None
        try:
            route, path = _found(request)
            thread = path.get("thread_id")
            request.scope["call"] = {
                # A question whether the server works is no call.
                "page": route.name if route.rights else None,
                "id": thread and thread[:_LONGEST_ID],
            }
            async with asyncio.timeout(min(route.deadline, self.longest)):
                return await self._answer(request, route, path)
        except Refusal as refusal:
            return _error(request, STATUS[refusal.kind], refusal.kind, str(refusal), refusal.headers)
        except TimeoutError:
            wrote = route is not None and route.rights == "write"
            more = ": it may have been written, so send it again with the same key" * wrote
            return _error(request, STATUS["DeadlineExceeded"], "DeadlineExceeded", f"the answer took too long{more}")
        except CompactionStoreError as error:
            status, _, text = answer_to(error)
            if status >= STATUS["Failed"]:
                log_failure(request, error)
            return _error(request, status, type(error).__name__, text)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 — its text is not shown or logged, because it may have content
            log_failure(request, error)
            return _error(request, STATUS["Failed"], "Failed", "the server's log has the place in the code")

    async def _answer(self, request: Request, route: Route, path: dict[str, Any]) -> Response:
        caller = None
        if route.rights:
            if host_of(request.headers) not in self.hosts:
                raise Refusal("WrongHost", "the host in the address is not one of this server's")
            caller = self.callers.who(request)
            request.scope["reader"] = caller.actor
            request.scope["call"]["tenant"] = caller.tenant
            if route.rights == "write" and caller.rights != "write":
                raise Refusal("Forbidden", "the program may only read")
        body = bytearray()
        try:
            if route.method == "GET":
                given = read(asked(route), _query(request), texts=True)
            else:
                given = read(asked(route), await self._arrived(request, route, body))
            if self.free <= 0:
                raise Refusal("Unavailable", "the server is busy: try again soon")
            self.free -= 1
            try:
                found = await self._call(route, caller, path, dict(given))
            finally:
                self.free += 1
        finally:
            self.held -= len(body)
        return Response(json.dumps(found, separators=(",", ":"), allow_nan=False), route.made, None, "application/json")

    async def _call(self, route: Route, caller: Caller | None, path: dict[str, Any], given: dict[str, Any]) -> Any:
        store = self.store if caller is None else self._of_tenant(caller.tenant)
        limit = given.pop("limit", 0)
        for name, value in given.items():
            if isinstance(value, ViewUsed):
                given[name] = await _used(store, path["thread_id"], value)
            elif name == "strategy":
                if value not in self.strategies:
                    raise InvalidInput(f"strategy must be one of {', '.join(self.strategies) or '(there is none)'}")
                given[name] = self.strategies[value]
            elif name == "after" and value is not None and route.name == "compactions":
                number, _, thread = value.partition(":")
                if not _DIGITS.fullmatch(number):
                    raise InvalidInput("after must be the `next` of the page before")
                given[name] = await store.compaction(thread, int(number))
        if caller is not None and route.rights == "write":
            given["actor"] = caller.actor
        call = partial(route.call, store) if route.call.__module__ == Route.__module__ else getattr(store, route.name)
        if route.name == "threads":
            # One more shows whether there is a next page.
            given["limit"] = limit + 1
        found = call(**path, **given)
        return await _page(found, limit, given.get("order")) if limit else _whole(await found)

    def _of_tenant(self, tenant: str) -> AsyncStore:
        if tenant not in self.stores:
            if len(self.stores) >= _MOST_TENANTS:
                self.stores.clear()
            self.stores[tenant] = self.store.of_tenant(tenant)
        return self.stores[tenant]

    async def _arrived(self, request: Request, route: Route, body: bytearray) -> Any:
        """Reads a body. What is above the limit is read too, but not kept: a client that sends does not listen yet."""
        if not _JSON.fullmatch(request.headers.get("content-type", "")) or "content-encoding" in request.headers:
            raise Refusal("UnsupportedMediaType", "the body must have the Content-Type application/json, in UTF-8")
        size = 0
        try:
            async with asyncio.timeout(_LONGEST_ARRIVAL):
                async for part in request.stream():
                    size += len(part)
                    if size <= route.most_bytes:
                        self.held += len(part)
                        body += part
                    if size > 2 * route.most_bytes or self.held > _MOST_HELD:
                        break
        except TimeoutError:
            raise Refusal("RequestTimeout", f"the body did not arrive within {_LONGEST_ARRIVAL:g} seconds") from None
        if size > route.most_bytes:
            raise Refusal("TooLarge", f"the body must have at most {route.most_bytes:,} bytes")
        if self.held > _MOST_HELD:
            raise Refusal("Unavailable", "the server is busy: try again soon")
        request.scope["has_arrived"] = True
        try:
            found = documents.whole(bytes(body))
        except ValueError as error:
            raise InvalidInput(f"the body must be a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise InvalidInput("the body must be a JSON object")
        return found


def _found(request: Request) -> tuple[Route, dict[str, Any]]:
    """Returns the route of a request, and the values in its path. The name of a thread may have any character."""
    whole: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    path = whole.decode("latin-1").removeprefix(quote(request.scope.get("root_path", "")))
    found = [(route, match) for pattern, route in _PATHS if (match := pattern.fullmatch(path))]
    if not found:
        raise Refusal("NotFound", "the address is not one of this API's")
    for route, match in found:
        if route.method == request.method:
            return route, {name: _in_path(name, text) for name, text in match.groupdict().items()}
    methods = ", ".join(route.method for route, _ in found)
    raise Refusal("MethodNotAllowed", f"the method must be {methods}", {"Allow": methods})


def _in_path(name: str, text: str) -> str | int:
    try:
        if name == "thread_id":
            return unquote(text, errors="strict")
    except ValueError:
        raise InvalidInput("thread_id must be percent-encoded UTF-8") from None
    if not _DIGITS.fullmatch(text):
        raise InvalidInput(f"{name} must be an integer >= 1")
    return int(text)


def _query(request: Request) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )  # fmt: skip
    except ValueError:
        raise InvalidInput(f"the query must be at most {_MOST_PARAMETERS} percent-encoded parameters") from None
    if len(dict(pairs)) < len(pairs):
        raise InvalidInput("a parameter must be given once only")
    return dict(pairs)


async def _used(store: AsyncStore, thread_id: str, used: ViewUsed) -> View | Rendered:
    """Returns the view that a program worked with. Raises HeadConflict if the thread has another entry there."""
    found = await store.view(thread_id, at=used.pos)
    if found.head.hex() != used.head:
        text = f"the entry at pos {used.pos} is not that of the view{about(thread_id)}"
        raise HeadConflict(text, expected=bytes.fromhex(used.head), actual=found.head)
    return found if used.format is None else RENDERERS[used.format](found)


async def _page(rows: AsyncResults[Any], limit: int, order: str | None) -> Any:
    """Returns a page of a list. Its `next` is what comes `after` it, or None at the end."""
    items: list[Any] = []
    size, last = 0, ""
    async with aclosing(rows):
        async for row in rows:
            if len(items) == limit or size > _LONGEST_PAGE:
                return {"items": items, "next": last}
            items.append(plain(row))
            size += len(json.dumps(items[-1]))
            last = row.cursor if order == "recent" else _CURSORS[type(row)].format(row=row)
    return {"items": items, "next": None}


def _whole(found: Any) -> Any:
    if isinstance(found, str):
        return {"status": found}
    return {"records": plain(found)} if type(found) is tuple else plain(found)


def _error(request: Request, status: int, kind: str, text: str, headers: Mapping[str, str] | None = None) -> Response:
    more = dict(headers or ())
    if status == STATUS["Unavailable"]:
        more["Retry-After"] = "1"
    if request.method != "GET" and "has_arrived" not in request.scope:
        # The rest of the body is not read, so nothing else can follow on this connection.
        more["Connection"] = "close"
    return Response(json.dumps({"type": kind, "message": text}), status, more, "application/json")


# ---- for whom the API works: a program never names its own tenant, the file of tokens or a trusted proxy does

_LONGEST_FILE = 4 * 1024 * 1024
_UNREADABLE = "the file of tokens cannot be read, so nobody is let in until its operator has mended it"
_UNKNOWN = "the request must have the header Authorization: Bearer TOKEN, with a token that the server knows"


def _checked(name: str) -> str:
    arguments.name(name, "a name")
    return name


class Caller(BaseModel, extra="forbid", frozen=True):
    """The program that sent a request. The right to write includes the right to read."""

    tenant: Annotated[str, AfterValidator(_checked)]
    actor: Annotated[str, AfterValidator(_checked)]
    rights: Literal["read", "write"]


class _Line(Caller, extra="forbid", frozen=True):
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Callers(Protocol):
    """Identifies the program that sent a request. Raises `Refusal` if it cannot."""

    def who(self, request: Request) -> Caller: ...


class TokenFile:
    """Knows programs by the token that they send as `Authorization: Bearer …`.

    Each line of the file is a JSON object with `tenant`, `actor`, `rights`, which are "read" or "write", and `sha256`,
    the hash of the token in hexadecimal. The file is read again when it has changed. While it is wrong, every request
    is refused, because a token that was to be withdrawn may be in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, ...] = ()
        self._known: dict[bytes, Caller] = {}
        self._look()

    def who(self, request: Request) -> Caller:
        try:
            self._look()
        except InvalidInput as error:
            raise Refusal("Unavailable", _UNREADABLE) from error
        given = request.headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        hashed = sha256(token.strip().encode()).digest()
        # Compare with all of them, so that the time does not tell which one is similar.
        found = [caller for known, caller in self._known.items() if hmac.compare_digest(known, hashed)]
        if scheme.lower() != "bearer" or not found:
            raise Refusal("Unauthorized", _UNKNOWN, {"WWW-Authenticate": "Bearer"})
        return found[0]

    def _look(self) -> None:
        try:
            is_at = self._path.stat()
            state = (is_at.st_ino, is_at.st_size, is_at.st_mtime_ns, is_at.st_ctime_ns)
            if state != self._state:
                with self._path.open("rb") as file:
                    self._known = _tokens(file.read(_LONGEST_FILE + 1))
                self._state = state
        except OSError as error:
            raise InvalidInput(f"the file of tokens must be readable: {error.strerror}") from None


def _tokens(data: bytes) -> dict[bytes, Caller]:
    if len(data) > _LONGEST_FILE:
        raise InvalidInput(f"the file of tokens must have at most {_LONGEST_FILE:,} bytes")
    known: dict[bytes, Caller] = {}
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = read(_Line, documents.whole(text))
        except ValueError as error:
            raise InvalidInput(f"line {number:,} of the file of tokens must be right: {error}") from None
        if (key := bytes.fromhex(line.sha256)) in known:
            raise InvalidInput(f"line {number:,} of the file of tokens must not have the hash of another line")
        known[key] = line
    if not known:
        raise InvalidInput("the file of tokens must have at least one line")
    return known


class TrustedProxy:
    """Takes the tenant, the actor and the rights from headers that a reverse proxy sets for programs that it knows.

    Only connections from `addresses`, which are addresses or networks such as 10.0.0.0/24, are believed. The proxy must
    remove the three headers `Compaction-Store-Tenant`, `-Actor` and `-Rights` from what it is sent.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        try:
            self._networks = [ip_network(address) for address in addresses]
        except ValueError:
            raise InvalidInput("a proxy must be an address or a network, such as 10.0.0.5 or 10.0.0.0/24") from None

    def who(self, request: Request) -> Caller:
        if request.client is None or not self._is_proxy(request.client.host):
            raise Refusal("Unauthorized", "the connection does not come from a proxy that the server trusts")
        given: dict[str, str] = {}
        try:
            for name in Caller.model_fields:
                # Unless there is exactly one header, this is a ValueError.
                [value] = request.headers.getlist(f"Compaction-Store-{name}")
                given[name] = value.encode("latin-1").decode()
            return read(Caller, given)
        except ValueError as error:
            why = f": {error}" * isinstance(error, InvalidInput)
            text = f"the proxy must set each of its three headers once, in UTF-8{why}"
            raise Refusal("Unauthorized", text) from None

    def _is_proxy(self, host: str) -> bool:
        found = ip_address(host)
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)
