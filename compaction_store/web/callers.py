"""Decides for whom the API works: a tenant, an actor, and whether it may write.

A program never names its own tenant. Either the file of tokens has it, or a proxy that has authenticated the program.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, BaseModel, Field
from starlette.requests import Request

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.messages import documents
from compaction_store.web.refusals import Refusal, read

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
        """Reads the file if it has changed."""
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
            text = f": {error}" * isinstance(error, InvalidInput)
            raise Refusal(
                "Unauthorized", f"the proxy must set each of its three headers once, in UTF-8{text}"
            ) from None

    def _is_proxy(self, host: str) -> bool:
        found = ip_address(host)
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)
