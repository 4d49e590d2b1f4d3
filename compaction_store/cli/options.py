"""The options that verbs share, what is read from them, and the store that they open."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from compaction_store import Reader, Store, TokenBudget
from compaction_store.arguments import MAX_NAME_BYTES
from compaction_store.cli.output import Output
from compaction_store.cli.visible import shown
from compaction_store.errors import InvalidInput, ThreadNotFound

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d{1,6})([mhdw])")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="COMPACTION_STORE_URL",
        show_default=False,
        help="The database. [default: embedded]",
    ),
]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", envvar="COMPACTION_STORE_TENANT", help="Whose threads.")
]
AsJson = Annotated[
    bool | None,
    typer.Option(
        "--json/--table",
        help="JSON lines, or tables. [default: tables on a terminal, JSON lines in a pipe]",
        show_default=False,
    ),
]
Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's name.", show_default=False)]
Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who does it, for the record.", show_default="user@host")
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for the record. It is kept for good.", show_default=False)
]
Window = Annotated[
    int | None,
    typer.Option("--window", metavar="TOKENS", min=1, help="The model's context window.", show_default=False),
]
Reserve = Annotated[
    int, typer.Option("--reserve", metavar="TOKENS", min=0, help="Tokens of the window to keep free for the answer.")
]
Trigger = Annotated[
    str, typer.Option("--trigger", metavar="MARK", help="Compact above this: tokens, or a fraction such as 0.8.")
]
Target = Annotated[str, typer.Option("--target", metavar="MARK", help="Aim for this: tokens, or a fraction.")]


class Kind(StrEnum):
    summary = "summary"
    truncation = "truncation"
    removal = "removal"
    revocation = "revocation"


class Outcome(StrEnum):
    applied = "applied"
    rejected = "rejected"
    failed = "failed"
    observed = "observed"


def misuse(text: str, option: str) -> typer.BadParameter:
    """To be raised: the verb's usage and what is wrong with it."""
    return typer.BadParameter(shown(text), param_hint=f"'{option}'")


def with_text(as_json: bool | None, *, text: bool) -> Output:
    """The output of a verb whose --text is JSON: content has no place in a table."""
    if text and as_json is False:
        raise misuse("is JSON, and cannot be a table", "--text")
    return Output(as_json=True if text else as_json)


@contextmanager
def reader(url: str | None, tenant: str) -> Iterator[Reader]:
    with naming(tenant), Reader.open(url, tenant=tenant) as opened:
        yield opened


@contextmanager
def store(url: str | None, tenant: str, *, pool_size: int = 4) -> Iterator[Store]:
    with naming(tenant), Store.open(url, tenant=tenant, pool_size=pool_size, actor=user_at_host()) as opened:
        yield opened


@contextmanager
def naming(tenant: str) -> Iterator[None]:
    """Says of a thread that is not there which tenant was asked: it may be another's."""
    try:
        yield
    except ThreadNotFound as error:
        raise ThreadNotFound(f"{error} of tenant {tenant!r}") from None


def user_at_host() -> str:
    """Who is recorded for a verb that is given no --actor."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user that has no name.
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}".encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


def moment(text: str | None, option: str) -> datetime | None:
    """A moment: ISO 8601, in the machine's time zone if it names none; or how long ago: 30m, 24h, 7d, 2w."""
    if text is None:
        return None
    if found := _AGO.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
        except OverflowError:
            raise misuse(f"{text} is too long ago", option) from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise misuse(
            f"{text!r} is no moment: 2026-05-01, 2026-05-01T12:30+02:00, or 30m, 24h, 7d, 2w ago", option
        ) from None


def budget(window: int | None, reserve: int, trigger: str, target: str) -> TokenBudget | None:
    """The budget of the options; None without a window."""
    if window is None:
        given = {"--reserve": reserve != 0, "--trigger": trigger != "0.8", "--target": target != "0.5"}
        if alone := next((option for option, said in given.items() if said), None):
            raise misuse("needs --window", alone)
        return None
    return TokenBudget(
        window, reserve_output=reserve, trigger=_mark(trigger, "--trigger"), target=_mark(target, "--target")
    )


def _mark(text: str, option: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise misuse(f"{text!r} is neither tokens nor a fraction", option) from None


def json_object(text: str | None, option: str) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise misuse("is one JSON object", option)
    return value


def head(text: str | None, option: str) -> bytes | None:
    """An entry of a thread's chain, as `threads --json`, `verify` and `append --json` write it."""
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise misuse(f"must be 64 hexadecimal digits, not {text!r}", option)
    return None if text is None else bytes.fromhex(text)


def seqs(texts: list[str]) -> list[range]:
    """Seqs and spans of seqs, as 7 and 12-20."""
    found: list[range] = []
    for text in ",".join(texts).split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip())
        if match is None:
            raise misuse(f"{text!r} is neither a seq, such as 7, nor a span of seqs, such as 12-20", "SEQS")
        start, end = int(match[1]), int(match[2] or match[1])
        if not 1 <= start <= end:
            raise misuse(f"{text!r} is no span of seqs: they begin with 1", "SEQS")
        found.append(range(start, end + 1))
    return found


def asked_to_go_on(question: str, *, yes: bool) -> None:
    """Asks a person before what cannot be undone; a program says `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} stdin is not a terminal; pass --yes")
    typer.confirm(shown(question), abort=True, err=True)
