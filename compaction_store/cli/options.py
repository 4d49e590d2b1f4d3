"""The options that commands share, their parsing, and the store that a command opens."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn
from uuid import UUID

import typer

import compaction_store
from compaction_store import errors
from compaction_store.arguments import written_bounds, written_time
from compaction_store.audit.safe_text import shown
from compaction_store.cli.bundles import Bundle, argument, misuse, option
from compaction_store.cli.output import Column, Output
from compaction_store.models.record_filters import FILTERS, Filter
from compaction_store.models.vocabulary import NAME_BYTES

if TYPE_CHECKING:
    from compaction_store import Reader, Store, TokenBudget

_MISSING = (errors.ThreadNotFound, errors.MessageNotFound, errors.CompactionNotFound, errors.PositionNotFound)
_LINGER = "COMPACTION_STORE_LINGER"
# The tenant of a row, its value for JSON, and its cells for a table.
TenantRow = tuple[str, dict[str, Any], list[str]]

Url = Annotated[str | None, option("--url URL", envvar="COMPACTION_STORE_URL")]
Tenant = Annotated[str, option("--tenant NAME", envvar="COMPACTION_STORE_TENANT")]
AllTenants = Annotated[bool, option("--all-tenants")]
AsJson = Annotated[bool | None, option("--json/--table")]
AsCsv = Annotated[bool, option("--csv")]
Thread = Annotated[str, argument("THREAD")]
Number = Annotated[int, argument("NUMBER", "The record's number.", min=1)]
Actor = Annotated[str | None, option("--actor NAME", show_default="user@host")]
Authority = Annotated[
    Mapping[str, Any] | None, option("--authority JSON", parser=lambda text: json_object(text, "--authority"))
]
Reason = Annotated[str, option("--reason TEXT", show_default=False)]
Subject = Annotated[str | None, option("--subject NAME")]
Window = Annotated[int | None, option("--window TOKENS", min=1)]
Reserve = Annotated[int, option("--reserve TOKENS", min=0)]
Trigger = Annotated[str, option("--trigger MARK")]
Target = Annotated[str, option("--target MARK")]
Idle = Annotated[float, option("--idle MINUTES", min=0, max=525_600)]


class FilterOptions(Bundle):
    """The options that filter records, one for each row of FILTERS. `given` has the values of those that were given."""

    def __init__(self, **values: Any) -> None:
        times = {name: moment(values[name], row.flag) for name, row in FILTERS.items() if row.form == "time"}
        self.given = {name: value for name, value in (values | times).items() if value not in (None, [])}

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Any]]:
        return {name: (_option(row), None) for name, row in FILTERS.items()}


_METAVARS = {"text": "NAME", "range": "RANGE", "time": "WHEN", "uuid": "UUID", "object": "JSON"}


def _option(row: Filter) -> Any:
    kinds = {"number": int, "uuid": UUID, "range": Any, "object": Mapping[str, Any]}
    kind: Any = Literal[row.choices] if row.choices else kinds.get(row.form, str)
    help_text, metavar = row.help, row.metavar or _METAVARS.get(row.form)
    if row.form == "choices":
        kind, help_text, metavar = list[str], f"{row.help} May be given several times.", "|".join(row.choices)
    parsers: dict[str, Any] = {"range": bounds, "object": json_object}
    more: dict[str, Any] = {"min": 1} if row.form == "number" else {}
    if (parse := parsers.get(row.form)) is not None:
        more["parser"] = lambda text: parse(text, row.flag)
    elif row.form == "choices":
        more["parser"] = lambda text: text if text in row.choices else _refuse_choice(text, row)
    return Annotated[kind | None, option(f"{row.flag} {metavar or ''}".strip(), help_text, **more)]


def _refuse_choice(text: str, row: Filter) -> NoReturn:
    raise misuse(f"must be one of {', '.join(row.choices)}, not {text!r}", row.flag)


class PrintOptions(Bundle):
    as_json: AsJson = None
    as_csv: ClassVar[bool] = False

    def output(self, content: str | None = None) -> Output:
        """Returns the output. `content` is the name of a given option that adds values too long for a table."""
        if self.as_csv and self.as_json is not None:
            raise misuse("must not be given with --json or --table", "--csv")
        if content is not None and self.as_json is False:
            raise misuse("prints JSON; it must not be given with --table", content)
        return Output(as_json=True if content is not None else self.as_json, as_csv=self.as_csv)


class ListOptions(PrintOptions):
    as_csv: AsCsv = False  # type: ignore[misc]


class DeedOptions(Bundle):
    actor: Actor = None
    authority: Authority = None

    @property
    def given(self) -> dict[str, Any]:
        return {"actor": self.actor, "authority": self.authority}


class BudgetOptions(Bundle):
    """The budget that says which threads are due."""

    window: int = option("--window TOKENS", min=1)
    reserve: Reserve = 0
    trigger: Trigger = "0.8"
    target: Target = "0.5"

    def budget(self) -> TokenBudget:
        return compaction_store.TokenBudget(
            self.window, reserve_output=self.reserve, trigger=_mark(self.trigger, "--trigger"),
            target=_mark(self.target, "--target"),
        )  # fmt: skip


class ServerOptions(Bundle):
    url: Url = None

    def reachable(self) -> AbstractContextManager[str]:
        return reachable(self.url)


class TenantOptions(ServerOptions):
    tenant: Tenant = "default"

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        with self.reachable() as at, naming(self.tenant), compaction_store.Reader.open(at, tenant=self.tenant) as store:
            yield store

    @contextmanager
    def store(self, *, pool_size: int = 4) -> Iterator[Store]:
        how: dict[str, Any] = {"tenant": self.tenant, "pool_size": pool_size, "actor": user_at_host()}
        with self.reachable() as at, naming(self.tenant), compaction_store.Store.open(at, **how) as opened:
            yield opened


class TenantsOptions(TenantOptions):
    all_tenants: AllTenants = False

    def readers(self, opened: Reader) -> Iterator[tuple[str, Reader]]:
        """Yields the name and the reader of the tenant, or of every tenant."""
        if not self.all_tenants:
            yield self.tenant, opened
            return
        for name in opened.audit.tenants():
            yield name, opened.of_tenant(name)

    def only_one(self, given: object, option: str) -> None:
        if given and self.all_tenants:
            raise misuse("must not be given with --all-tenants", option)

    @property
    def where(self) -> str:
        """The end of a message such as "no matches in tenant 'default'"."""
        return "any tenant" if self.all_tenants else f"tenant {self.tenant!r}"


class ReadOptions(PrintOptions, TenantOptions):
    """The options of a command that reads a tenant."""


class WriteOptions(PrintOptions, TenantOptions, DeedOptions):
    """The options of a command that writes to a tenant."""


class TenantsListOptions(ListOptions, TenantsOptions):
    """The options of a command that lists one tenant, or all."""

    def rows(self, out: Output, columns: Sequence[str | Column], rows: Iterable[TenantRow], none: str) -> None:
        """Prints rows with their tenant if all are listed: a field of the JSON, and the first column of the table."""
        every = self.all_tenants
        listed = (
            ({"tenant": name} | value if every else value, [*[name] * every, *cells]) for name, value, cells in rows
        )
        out.rows([*[Column("tenant", fold=True)] * every, *columns], listed, none)


@contextmanager
def reachable(url: str | None) -> Iterator[str]:
    """Yields the database's URL: the given one, or that of the embedded server, which runs on for a while."""
    from compaction_store import embedded
    from compaction_store.postgres.calling import engines

    if (given := engines.chosen_url(url)) is not None:
        yield given
        return
    linger = _linger()
    share = embedded.join()
    try:
        yield share.url
    finally:
        share.close(linger=linger)


def _linger() -> int:
    """Returns how many seconds the embedded server keeps running for the next command."""
    from compaction_store.embedded import LONGEST_LINGER

    text = os.environ.get(_LINGER, "60")
    if re.fullmatch("[0-9]{1,4}", text) is None or int(text) > LONGEST_LINGER:
        raise errors.NotConfigured(f"${_LINGER} must be a number of seconds from 0 to {LONGEST_LINGER}, not {text!r}")
    return int(text)


@contextmanager
def naming(tenant: str) -> Iterator[None]:
    """Adds the tenant to errors for a missing thread, message, record or pos, because another tenant may have it."""
    where = f" of tenant {tenant!r}"
    try:
        yield
    except _MISSING as error:
        if str(error).endswith(where):
            raise
        told = type(error)(f"{error}{where}")
        for more in getattr(error, "__notes__", ()):
            told.add_note(more)
        raise told from None


def user_at_host() -> str:
    """Returns the default actor: the names of the user and of the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user may have no name.
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}".encode(errors="replace")[:NAME_BYTES].decode(errors="ignore")


def moment(text: str | None, option: str) -> datetime | None:
    """Parses a time in ISO 8601, by default in the machine's time zone, or an age such as 30m, 24h, 7d or 2w."""
    if text is None:
        return None
    try:
        return written_time(text).astimezone()
    except (ValueError, OverflowError):
        raise misuse(
            f"must be a time such as 2026-05-01T12:30+02:00 or an age such as 30m, 24h, 7d or 2w, not {text!r}", option
        ) from None


def budget(window: int | None, reserve: int, trigger: str, target: str) -> TokenBudget | None:
    """Returns the budget that the options describe; None without a window."""
    if window is None:
        differs = {"--reserve": reserve != 0, "--trigger": trigger != "0.8", "--target": target != "0.5"}
        if alone := next((option for option, is_given in differs.items() if is_given), None):
            raise misuse("needs --window", alone)
        return None
    return BudgetOptions(window=window, reserve=reserve, trigger=trigger, target=target).budget()


def _mark(text: str, option: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise misuse(f"must be a number of tokens or a fraction, not {text!r}", option) from None


def bounds(text: str, option: str) -> tuple[int | None, int | None]:
    try:
        return written_bounds(text)
    except ValueError:
        raise misuse(f"must be a range such as 1000..5000, 1000.. or ..5000, not {text!r:.80}", option) from None


def json_object(text: str | None, option: str) -> Mapping[str, Any] | None:
    return None if text is None else _json(text, dict, "must be a JSON object", option)


def _json(text: str, kind: type, must: str, option: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        given = "null or text that is not JSON" if value is None else type(value).__name__
        raise misuse(f"{must}, not {given}", option)
    return value


def file_text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise misuse(f"cannot read {path}: {error.strerror}", option) from None
    except UnicodeDecodeError:
        raise misuse(f"{path} must be text in UTF-8", option) from None


def json_list(path: Path, option: str) -> list[Any]:
    found: list[Any] = _json(file_text(path, option), list, f"{path} must have a JSON list", option)
    return found


def head(text: str | None, option: str) -> bytes | None:
    """Parses a head in the form that `threads --json`, `verify` and `append --json` print."""
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise misuse(f"must be 64 hexadecimal digits, not {text!r}", option)
    return None if text is None else bytes.fromhex(text)


def seqs(texts: list[str]) -> list[range]:
    """Parses seqs and spans, such as 7 and 12-20."""
    found: list[range] = []
    for text in ",".join(texts).split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip())
        if match is None:
            raise misuse(f"must be seqs such as 7 or spans such as 12-20, not {text!r}", "SEQS")
        start, end = int(match[1]), int(match[2] or match[1])
        if not 1 <= start <= end:
            raise misuse(f"a span must begin at 1 or later and end at or after its beginning, not {text!r}", "SEQS")
        found.append(range(start, end + 1))
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation before an action that cannot be undone. The option --yes answers in advance."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidInput(f"{question} stdin is not a terminal; pass --yes")
    typer.confirm(shown(question), abort=True, err=True)
