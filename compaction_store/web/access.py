"""Decides who may read the audit pages, sets the headers of every response, and logs who read content."""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError

from compaction_store import errors
from compaction_store.audit.safe_text import named
from compaction_store.errors import CompactionStoreError, InvalidInput, MissingExtra, own_text
from compaction_store.module_data import ModuleData

try:
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, RedirectResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingExtra("the web server", "web") from error

LOG = logging.getLogger("compaction_store.web")
ACCESS_LOG = logging.getLogger("compaction_store.web.access")
_COOKIE = "compaction_store_audit"
_LONGEST_FORM = 64 * 1024
_LONGEST_REASON = 1000
_PORTS = {"http": ":80", "https": ":443"}
_DATA = ModuleData(__file__).values
#: The headers of every response.
HEADERS: dict[str, str] = _DATA["headers"]


class Access(Protocol):
    """Identifies readers. `who` returns the name of a request's reader, or the response to send instead of a page."""

    def who(self, request: Request) -> str | Response: ...


class OneTimeToken:
    """Admits the first browser that opens the address with the token.

    That browser gets a cookie, which is valid as long as the server runs. `token` is a part of the address, and every
    instance makes a new one. `reader` is the name of the reader in the access log.

    Serve the pages under `path`, which nobody can guess. Then the browser sends the cookie to no other server on the
    same host, which would have another port.
    """

    def __init__(self, reader: str = "the holder of the token") -> None:
        self._reader = reader
        self.token = secrets.token_urlsafe(32)
        self.path = f"/{secrets.token_urlsafe(16)}"
        self._cookie = secrets.token_urlsafe(32)
        self._is_used = False

    def who(self, request: Request) -> str | Response:
        if hmac.compare_digest(request.cookies.get(_COOKIE, "").encode(), self._cookie.encode()):
            return self._reader
        if not hmac.compare_digest(request.query_params.get("token", "").encode(), self.token.encode()):
            return _refused("open the address that `compaction-store serve` printed")
        if self._is_used:
            return _refused("the token has been used; restart `compaction-store serve` to get a new one")
        self._is_used = True
        root = request.scope.get("root_path", "") + "/"
        response = RedirectResponse(root, status_code=303)
        # A browser sends a cookie to every port of a host, so it is for the path of these pages only.
        response.set_cookie(
            _COOKIE, self._cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https", path=root
        )
        return response


class BehindProxy:
    """Takes the reader's name from a header that a reverse proxy sets after it has authenticated the reader.

    The proxy must remove this header from the requests of clients. Clients must not be able to reach the pages without
    the proxy.
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
            return _refused(f"the request must have one header {self._header} with the reader's name")
        return named[0].strip()[:255]


def _refused(why: str) -> Response:
    return PlainTextResponse(f"Not allowed: {why}.\n", status_code=403)


class Guard:
    """ASGI middleware that checks host and reader, adds headers, and refuses all but GET, HEAD, and POST of forms."""

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
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope, receive)
        try:
            await self._chosen(request)(scope, receive, with_headers)
        except Exception as error:  # noqa: BLE001 — no server may log its text, which may have content
            log_failure(request, error)
            if not is_begun:
                failed = PlainTextResponse("These pages failed. The server's log has the place in the code.\n", 500)
                await failed(scope, receive, with_headers)

    def _chosen(self, request: Request) -> ASGIApp:
        """Returns the pages, or the response to send instead of a page, such as a refusal."""
        if host_of(request.headers) not in self._hosts:
            return PlainTextResponse("Not allowed: the host in the address is not one of this server's.\n", 421)
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if request.method not in ("GET", "HEAD") and not (request.method == "POST" and path in self._forms):
            return PlainTextResponse("Not allowed: this page is read-only.\n", 405, {"Allow": "GET, HEAD"})
        if request.method not in ("GET", "HEAD") and not self._is_own(request.headers):
            return PlainTextResponse(_DATA["foreign"], 403)
        reader = self._access.who(request)
        if isinstance(reader, Response):
            return reader
        request.scope["reader"] = reader
        return self._app

    def _is_own(self, headers: Headers) -> bool:
        """Returns False if a form may come from another site. Programs that send neither of the two headers pass.

        Because the pages have the referrer policy `no-referrer`, browsers send `null` as the origin of their forms.
        Then `Sec-Fetch-Site` decides, which browsers send only to HTTPS addresses and to the same machine.
        """
        site, given = headers.getlist("sec-fetch-site"), headers.getlist("origin")
        if site and site != ["same-origin"]:
            return False
        if not given or given == ["null"]:
            return not given or bool(site)
        scheme, _, place = given[0].partition("://")
        if len(given) != 1 or scheme not in _PORTS:
            return False
        port = _PORTS[scheme]
        here = headers["host"].casefold().removesuffix(port)
        origin = place.casefold().removesuffix(port)
        # A proxy may use another name for this server. Another port of the same name is another site.
        return origin == here or (_bare(origin) in self._hosts and _bare(origin) != _bare(here))


def host_of(headers: Headers) -> str:
    """Returns the host of a request without its port, or an empty string if there is not exactly one Host header."""
    given = headers.getlist("host")
    return _bare(given[0]).casefold() if len(given) == 1 else ""


def _bare(given: str) -> str:
    host, _, port = given.rpartition(":")
    return host if host and port.isdecimal() else given


class FormTokens:
    """Makes and checks the tokens of forms. A reader's token is only in the pages that were shown to that reader."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def made(self, reader: str) -> str:
        return hmac.digest(self._key, reader.encode(errors="surrogatepass"), "sha256").hex()

    def is_right(self, reader: str, given: str) -> bool:
        return hmac.compare_digest(self.made(reader).encode(), given.encode(errors="surrogatepass"))


async def form(request: Request) -> dict[str, str]:
    """Reads the fields of a submitted form. Raises ValueError if the body is not a form, or has a field twice."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise ValueError("the Content-Type of a form must be application/x-www-form-urlencoded")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _LONGEST_FORM:
            raise ValueError(f"a form must be at most {_LONGEST_FORM:,} bytes")
    fields = parse_qs(data.decode("ascii"), keep_blank_values=True, max_num_fields=50)
    for name, values in fields.items():
        if len(values) > 1:
            raise ValueError(f"{name:.80} must be given once only")
    return {name: values[0] for name, values in fields.items()}


def log_failure(request: Request, error: Exception) -> None:
    """Logs the type of a page's error, its place in the code, and only of the package's own errors the text."""
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    entry = {"page": request.scope["path"][:200], "error": type(error).__name__, "at": places[-8:]}
    if isinstance(error, CompactionStoreError):
        entry["why"] = str(error)[:_LONGEST_REASON]
    LOG.error("%s", json.dumps(entry))


def log_access(request: Request, page: str, **what: Any) -> None:
    """Logs what a reader, if it is known, saw, wrote or was refused. Of a searched text, only the length is logged."""
    reader = request.scope.get("reader")
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "reader": reader and named(reader),
        "page": page, **{name: value for name, value in what.items() if value is not None},
    }  # fmt: skip
    ACCESS_LOG.info("%s", json.dumps(entry))


# ---- the answers to a request that the pages or the API refuse: the status, the type and the text

# A name of a field, and neither a type of several nor a text that may be content.
_FIELD = re.compile("(?!(int|float|datetime)$)[a-z][a-z_0-9]{0,29}")
_M = TypeVar("_M", bound=BaseModel)
_AWAY = (errors.DatabaseUnavailable, errors.LoginRefused)
# The classes of errors, each with a status and a title. The first class that fits an error is used.
_ERRORS = [(tuple(getattr(errors, name) for name in row["of"].split()), row) for row in _DATA["errors"]]
# The refusals that are not the store's, by their types.
STATUS: dict[str, int] = _DATA["status"]


class Refusal(Exception):
    """Ends a request with an error. `kind` is a key of STATUS."""

    def __init__(self, kind: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.headers = headers


def answer_to(error: CompactionStoreError) -> tuple[int, str, str]:
    """Returns the status, the title and the text for an error, without the host that a failure to connect names."""
    status, title = next((row["status"], row["title"]) for kinds, row in _ERRORS if isinstance(error, kinds))
    if isinstance(error, _AWAY):
        return status, title, "The database does not answer now. Try again soon. The server's log has the reason"
    return status, title, own_text(error) or "The text of this error is not shown, because other code wrote it"


def read(model: type[_M], given: Any, *, texts: bool = False) -> _M:
    """Returns a value as a model; `texts` says that it has only texts.

    Raises InvalidInput, whose text says what must be, and quotes no value. It names the member that is wrong, also one
    that the model does not know, if that looks like the name of a field.
    """
    try:
        return model.model_validate_strings(given) if texts else model.model_validate(given)
    except ValidationError as error:
        all_of_them = error.errors(include_url=False, include_context=False, include_input=False)
        # A value of several types has an error for each. The last one is about the type that takes most.
        found = [each for each in all_of_them if each["loc"][:1] == all_of_them[0]["loc"][:1]][-1]
        steps = (str(step) for step in found["loc"] if isinstance(step, int) or _FIELD.fullmatch(step))
        place = ".".join(steps) or "a name"
        text = found["msg"].removeprefix("Value error, ")
        text = text.rpartition(" should ")[2] if " should " in text else f"be right: {text}"
        if found["type"].startswith("datetime"):
            text = "be a time such as 2026-05-01T12:30:00Z"
        elif found["type"] == "extra_forbidden":
            text = f"be one of {', '.join(model.model_fields)}" if len(found["loc"]) == 1 else "have no other members"
        elif found["type"] == "missing":
            text = "be given"
    raise InvalidInput(f"{place} must {text}")
