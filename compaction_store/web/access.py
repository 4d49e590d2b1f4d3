"""Lets readers in, sets the headers of every response, and logs who read content."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compaction_store.display.visible import shown
from compaction_store.errors import InvalidInput

LOG = logging.getLogger("compaction_store.web")
ACCESS_LOG = logging.getLogger("compaction_store.web.access")
_COOKIE = "compaction_store_audit"
_LONGEST_FORM = 64 * 1024
_HEADERS = {
    # No script, no frame, and nothing from other servers; the style sheet and the charts come from the pages' server.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none';"
        " base-uri 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access(Protocol):
    """Returns the reader's name for a request, or a response that refuses it."""

    def who(self, request: Request) -> str | Response: ...


class OneTimeToken:
    """Lets in the first browser that opens the address with the token. It gets a cookie that is valid as long as the
    server runs.

    `token` is part of the address; every process makes a new one. `reader` is the reader's name for the access log.
    """

    def __init__(self, reader: str = "the holder of the token") -> None:
        self._reader = reader
        self.token = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._is_used = False

    def who(self, request: Request) -> str | Response:
        if hmac.compare_digest(request.cookies.get(_COOKIE, "").encode(), self._cookie.encode()):
            return self._reader
        given = request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return _refused("open the address that `compaction-store serve` printed")
        if self._is_used:
            return _refused("the token has been used; start `compaction-store serve` again for another")
        self._is_used = True
        response = RedirectResponse(request.scope.get("root_path", "") + "/", status_code=303)
        response.set_cookie(
            _COOKIE, self._cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
        )
        return response


class BehindProxy:
    """Takes the reader's name from a header that a proxy in front sets after it has checked who it is.

    The proxy must remove the header from what a client sends, and must be the only one that reaches the pages.
    """

    def __init__(self, header: str) -> None:
        if not header or not header.isascii() or not header.replace("-", "").isalnum():
            raise InvalidInput(
                f"header must be the name of an HTTP header, such as X-Forwarded-User; not {header!r:.80}"
            )
        self._header = header

    def who(self, request: Request) -> str | Response:
        named = request.headers.getlist(self._header)
        if len(named) != 1 or not named[0].strip():
            return _refused(f"the header {self._header} must name the reader, once")
        return named[0].strip()[:255]


def _refused(why: str) -> Response:
    return PlainTextResponse(f"Not allowed: {why}.\n", status_code=403)


class Guard:
    """Checks the Host header and the reader, and sets the headers of every response.

    It refuses every method except GET, HEAD, and POST to the address of a form.
    """

    def __init__(self, app: ASGIApp, access: Access, hosts: Iterable[str], forms: Iterable[str] = ()) -> None:
        self._app = app
        self._access = access
        self._forms = frozenset(forms)
        self._hosts = frozenset(host.casefold() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_begun = False

        async def with_headers(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope, receive)
        try:
            await self._chosen(request)(scope, receive, with_headers)
        except Exception as error:  # noqa: BLE001 — its text may have content, so no server may log it
            log_failure(request, error)
            if not is_begun:
                failed = PlainTextResponse("These pages failed. The log of the server says where.\n", 500)
                await failed(scope, receive, with_headers)

    def _chosen(self, request: Request) -> ASGIApp:
        """Returns the pages, or the refusal of a request that may not reach them."""
        if _host(request.headers) not in self._hosts:
            return PlainTextResponse("Not allowed: the address has another host than this server's.\n", 421)
        if request.method not in ("GET", "HEAD") and not self._is_form(request):
            return PlainTextResponse("Not allowed: this page is only read.\n", 405, {"Allow": "GET, HEAD"})
        reader = self._access.who(request)
        if isinstance(reader, Response):
            return reader
        request.scope["reader"] = reader
        return self._app

    def _is_form(self, request: Request) -> bool:
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        return request.method == "POST" and path in self._forms


def _host(headers: Headers) -> str:
    """Returns the host of a request without its port; any other name that resolves to 127.0.0.1 is refused."""
    given = headers.getlist("host")
    if len(given) != 1:
        return ""
    host, _, port = given[0].rpartition(":")
    bare = host if host and port.isdecimal() else given[0]
    return bare.casefold()


class FormTokens:
    """Makes and checks the tokens of forms: only pages that were shown to this reader have the right one."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def made(self, reader: str) -> str:
        return hmac.digest(self._key, reader.encode(errors="surrogatepass"), "sha256").hex()

    def is_right(self, reader: str, given: str) -> bool:
        return hmac.compare_digest(self.made(reader).encode(), given.encode(errors="surrogatepass"))


async def form(request: Request) -> dict[str, str]:
    """Reads the fields of a form that was sent, the first of each name. Raises ValueError if it cannot."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise ValueError("it must be a form")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _LONGEST_FORM:
            raise ValueError(f"a form must be at most {_LONGEST_FORM:,} bytes")
    fields = parse_qs(data.decode("ascii"), keep_blank_values=True, max_num_fields=50)
    return {name: values[0] for name, values in fields.items()}


def log_failure(request: Request, error: Exception) -> None:
    """Notes that a page failed, by the kind of the error and its place in the code: its text may have content."""
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    entry = {"page": request.scope["path"][:200], "error": type(error).__name__, "at": places[-8:]}
    LOG.error("%s", json.dumps(entry))


def log_access(request: Request, page: str, **what: Any) -> None:
    """Logs who was shown or wrote what, and when. Of a text that was searched for, only the length is logged."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "reader": shown(request.scope["reader"]),
        "page": page, **{name: value for name, value in what.items() if value is not None},
    }  # fmt: skip
    ACCESS_LOG.info("%s", json.dumps(entry))
