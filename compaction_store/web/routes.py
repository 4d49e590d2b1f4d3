"""The parameters of the pages, and the routes of the API, which the TOML file has. Most call a method of the store.

The types of the method's parameters and result make the models of request and answer, and of the OpenAPI document.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from inspect import Parameter, getdoc, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field, create_model
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request

from compaction_store import __version__
from compaction_store.arguments import written_bounds, written_time
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback
from compaction_store.compaction.plan import CompactionRun
from compaction_store.errors import InvalidInput
from compaction_store.models import Appended, Compaction, Message, Report, Thread
from compaction_store.models.record_filters import FILTERS, Filter, RecordFilters
from compaction_store.models.state import State, StateLine
from compaction_store.module_data import ModuleData
from compaction_store.rendering.view import Rendered, View
from compaction_store.store import AsyncStore

_DATA: dict[str, Any] = ModuleData(__file__).values
#: The filters of a sample, and all parameters of its page.
SAMPLE_FILTERS = tuple(row.name for row in FILTERS.values() if row.is_of_samples)
SAMPLE = ("seed", "count", *SAMPLE_FILTERS)
_MORE: dict[str, Iterable[str]] = {"/records": FILTERS, "/download": FILTERS, "/sample": SAMPLE}
#: The query parameters of each page. The forms, which are sent with POST, have none.
PARAMETERS: dict[str, tuple[str, ...]] = {
    page: (*names.split(), *_MORE.get(page, ())) for page, names in _DATA["parameters"].items()
}
FORMS: tuple[str, ...] = tuple(_DATA["forms"])
# The parameters that may be given several times.
_SEVERAL = tuple(row.name for row in FILTERS.values() if row.form == "choices")
_MOST_DIGITS = 15
_PERCENT = "_percent"


class Parameters:
    """Reads the parameters of an address. Raises InvalidInput, whose text says what a parameter must be."""

    def __init__(self, request: Request, known: Sequence[str]) -> None:
        """Raises InvalidInput for a parameter that is given twice, or that the page does not know, such as a typo."""
        self._given = request.query_params
        for name in self._given:
            if len(self._given.getlist(name)) > 1 and name not in _SEVERAL:
                raise InvalidInput(f"{name:.80} must be given once only")
            if name.removesuffix(_PERCENT) not in known:
                its = f"one of {', '.join(known)}" if known else "left out, because this page has none"
                raise InvalidInput(f"a parameter must be {its}; not {name!r:.80}")

    def text(self, name: str) -> str:
        found = self.optional(name)
        if found is None:
            raise InvalidInput(f"{name} must be given")
        return found

    def optional(self, name: str) -> str | None:
        return exact(self._given, name) or None

    def written(self, name: str) -> str | list[str] | None:
        """Returns the value of a filter as it is in the address: a list if it is given several times."""
        several = [text for text in self._given.getlist(name) if text]
        return several if len(several) > 1 else self.optional(name)

    def number(self, name: str, least: int = 0) -> int | None:
        text = self.optional(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or int(text) < least:
            raise InvalidInput(f"{name} must be an integer >= {least}")
        return int(text)

    def place(self, name: str) -> int | datetime | None:
        """Returns a pos or a time."""
        text = self.optional(name)
        try:
            return self.number(name, 1) if text is None or text.isdecimal() else _moment(text)
        except (ValueError, OverflowError):
            raise InvalidInput(f"{name} must be a pos >= 1, or a time such as 2026-05-01T12:30 or 7d") from None

    def needed(self, name: str) -> int:
        found = self.number(name, 1)
        if found is None:
            raise InvalidInput(f"{name} must be given")
        return found

    def after(self) -> tuple[str, int] | None:
        """Returns the last row of the page before: the name of a thread, and a number in it."""
        name, number = self.optional("after_id"), self.number("after", 1)
        return None if name is None or number is None else (name, number)

    def filter(self, row: Filter) -> Any:
        """Returns the value of a filter of records."""
        if row.form == "number":
            return self.number(row.name, 1)
        text = self.written(row.name)
        if not isinstance(text, str) or row.form not in _READERS:
            return text
        try:
            return _READERS[row.form](text)
        except (ValueError, OverflowError):
            raise InvalidInput(f"{row.name} must be {_DATA['values'][row.form]}") from None

    def json_object(self, name: str) -> dict[str, Any] | None:
        text = self.optional(name)
        return None if text is None else as_object(text, name)


def _moment(text: str) -> datetime:
    """Reads a time that is given as an age, such as `7d`, or in ISO 8601. The default time zone is UTC."""
    found = written_time(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def exact(given: Mapping[str, str], name: str) -> str:
    """Returns a parameter, or an empty string if it is not given.

    A form sends a text with invisible characters also percent-encoded, because browsers change line breaks in forms.
    """
    percent = given.get(name + _PERCENT)
    return given.get(name, "") if percent is None else unquote(percent)


def as_object(text: str, name: str = "the value") -> dict[str, Any]:
    """Parses a JSON object. Raises InvalidInput for any other text, and for values that cannot be written as JSON."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} must be {_DATA['values']['object']}")
    return found


_READERS: dict[str, Callable[..., Any]] = {"range": written_bounds, "time": _moment, "uuid": UUID, "object": as_object}


# ---- the routes of the API


# How long a compaction waits for another one of the same thread, in seconds.
_LONGEST_WAIT = 5.0
_MOST_VERIFIED = 20_000
RENDERERS: dict[str, Callable[[View], Rendered]] = {
    "anthropic": View.for_anthropic,
    "openai-chat": View.for_openai,
    "openai-responses": partial(View.for_openai, api="responses"),
}


Format = Literal["anthropic", "openai-chat", "openai-responses"]


class ViewUsed(BaseModel, extra="forbid", strict=True):
    """The view that a program worked with, and the format of the request that was made from it, if there was one."""

    pos: int
    head: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    format: Format | None = None


Object = dict[str, Any]
Mark = int | float
# The types in a request, by the type of the store. A strategy has a name, and a record has a place in a list.
_TAKEN: dict[Any, Any] = {
    bytes: Annotated[str, Field(pattern="^[0-9a-f]{64}$"), AfterValidator(bytes.fromhex)],
    tuple: Annotated[str, AfterValidator(written_bounds)],
    View: ViewUsed,
    Rendered: ViewUsed,
    Callback: str,
    Compaction: str,
    Thread: str,
}


class Route(NamedTuple):
    """A call of a method of the store, or of a function of this module, with those of its parameters that are `named`.

    A program needs the `rights` for it, if any. `deadline` is in seconds, and `most_bytes` is the limit of the body.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    named: str = ""
    rights: Literal["read", "write", ""] = "read"
    deadline: float = 30.0
    most_bytes: int = 64 * 1024
    made: int = 200

    @property
    def call(self) -> Callable[..., Any]:
        """The function. Its first parameter is the store."""
        found: Callable[..., Any] = _OWN.get(self.name) or getattr(AsyncStore, self.name)
        return found


@cache
def asked(route: Route) -> type[BaseModel]:
    """Returns a model of the query or the body. Other names than those of the model are refused."""
    hints, given = get_type_hints(route.call, include_extras=True), signature(route.call).parameters
    made: Any = {}
    for name in route.named.split():
        if name == "filters":
            filters = get_type_hints(RecordFilters)
            made |= {row: (_taken(filters[row], route), Field(None, description=FILTERS[row].help)) for row in FILTERS}
            continue
        kind = list[Object] if name == "messages" else hints[name]
        made[name] = (_taken(kind, route), ... if given[name].default is Parameter.empty else given[name].default)
    if get_origin(hints["return"]) is AsyncIterator:
        made["limit"] = (Annotated[int, Field(ge=1, le=1000)], 100)
    return create_model(f"{_title(route)}Body", __config__={"extra": "forbid", "strict": True}, **made)


@cache
def answer(route: Route) -> type[BaseModel]:
    """Returns a model of the answer."""
    hint = get_type_hints(route.call)["return"]
    parts: Any = {"messages": list[Message], "head": bytes, "durable": bool} if hint is Appended else None
    if get_origin(hint) is AsyncIterator:
        parts = {"items": list[get_args(hint)], "next": str | None}  # type: ignore[misc]
    elif get_origin(hint) is tuple:
        parts = {"records": list[get_args(hint)[0]]}  # type: ignore[misc]
    elif hint is str:
        parts = {"status": str}
    return _model_of(hint) if parts is None else _model(f"{_title(route)}Answer", parts, None)


def _title(route: Route) -> str:
    return route.name.title().replace("_", "")


def _taken(hint: Any, route: Route) -> Any:
    """Returns the type in a request, for a parameter of this type. In a query, an object is a text."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _TAKEN:
        return _TAKEN[hint]
    if origin in (Union, UnionType):
        # A view at a record is a view at its pos. A query has each parameter once.
        kinds = [
            _taken(part, route)
            for part in parts
            if (part is not Compaction or datetime not in parts)
            and (get_origin(part) is not Sequence or route.method == "POST")
        ]
        return Union[tuple(kinds)]  # noqa: UP007 — the members are computed
    if origin is Mapping:
        return Object if route.method == "POST" else Annotated[str, AfterValidator(as_object)]
    if origin is Sequence:
        return list[_taken(parts[0], route)]  # type: ignore[misc]
    return _TAKEN.get(origin, hint)


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    """Returns a model of what `as_dict()` of a class of the store returns."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        found = {field.name: hints[field.name] for field in fields(kind)}
        derived: tuple[str, ...] = getattr(kind, "_derived", ())
        found |= {name: get_type_hints(getattr(kind, name).fget)["return"] for name in derived}
    elif kind is Rendered:
        found = {"thread_id": str, "pos": int, "head": bytes, "renderer": str, "options": Object, "arguments": Object}
    else:
        found = {name: hints[name] for name in kind._fields if (kind, name) != (Message, "text")}
    return _model(kind.__name__, found, kind.__doc__)


def _model(name: str, hints: Mapping[str, Any], about: str | None) -> type[BaseModel]:
    made: Any = {field: (_given(hint), ...) for field, hint in hints.items()}
    # Only the first paragraph, because the rest is about Python.
    text = " ".join((about or "").partition("\n\n")[0].split())
    return create_model(name, __doc__=text or None, __config__={"extra": "forbid"}, **made)


def _given(hint: Any) -> Any:
    """Returns the type of a value after `jsonable.plain`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(map(_given, parts))]  # noqa: UP007 — the members are computed
    if origin in (tuple, list, frozenset):
        return list[_given(parts[0])]  # type: ignore[misc]
    if hint is State:
        return dict[str, list[_model_of(StateLine)]]  # type: ignore[misc]
    if hint is bytes:
        return Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
    if hint is Exception:
        return _model("Raised", {"type": str, "text": str | None}, "An error. The text of other code is null.")
    is_value = isinstance(hint, type) and origin is None and (is_dataclass(hint) or hasattr(hint, "_fields"))
    return _model_of(hint) if is_value else hint


# ---- functions that are no methods of the store


async def healthz(_store: AsyncStore) -> str:
    """Says that the process answers."""
    return "ok"


async def readyz(store: AsyncStore) -> str:
    """Says that the database answers too."""
    async for _ in store.threads():
        break
    return "ready"


async def request(
    store: AsyncStore,
    thread_id: str,
    *,
    format: Format,  # noqa: A002
    at: int | datetime | None = None,
) -> Rendered:
    """Returns the arguments of a request to a model's API, with the thread's view."""
    return RENDERERS[format](await store.view(thread_id, at=at))


async def compact(
    store: AsyncStore,
    thread_id: str,
    *,
    strategy: Callback,
    window: int | None = None,
    reserve: int = 0,
    trigger: Mark = 0.8,
    target: Mark = 0.5,
    force: bool = False,
    authority: Object | None = None,
    actor: str | None = None,
) -> CompactionRun:
    """Compacts a thread with a strategy that the server has. With a window, only if the view is over the trigger."""
    budget = None if window is None else TokenBudget(window, reserve, trigger=trigger, target=target)
    return await store.compact(
        thread_id, strategy, budget=budget, force=force, wait=_LONGEST_WAIT, actor=actor, authority=authority
    )


async def verify(
    store: AsyncStore, thread_id: str, *, level: Literal["structure", "content", "schema"] = "content"
) -> Report:
    """Recomputes the thread's hash chain, and returns what was found."""
    count = (await store.thread(thread_id, hidden=True)).last_pos
    if count > _MOST_VERIFIED:
        most = f"at most {_MOST_VERIFIED:,} entries, not {count:,}"
        raise InvalidInput(f"the thread must have {most}: use the command line")
    return await store.audit.verify(thread_id, level=level)


_OWN: dict[str, Any] = {own.__name__: own for own in (healthz, readyz, request, compact, verify)}
ROUTES = tuple(Route(*at.split(), **more) for at, more in _DATA["routes"].items())


# ---- the OpenAPI document


_NAMES = re.compile(r"{(\w+)}")
_ABOUT = "A persistent conversation store with auditable compaction records."


class Error(BaseModel):
    """The answer to a request that was refused. `type` does not change; `message` is for people, and has no content."""

    type: str
    message: str


@cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI document."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Error, "serialization")]
    models += [(asked(route), "validation") for route in ROUTES if route.method == "POST"]
    models += [(answer(route), "serialization") for route in ROUTES]
    names, made = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, names)
    return {
        "openapi": "3.1.0",
        "info": {"title": "compaction-store", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": _without_titles(made["$defs"]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, names: Any) -> dict[str, Any]:
    def content(model: type[BaseModel], mode: JsonSchemaMode = "serialization") -> Any:
        return {"application/json": {"schema": names[model, mode]}}

    kinds = {"thread_id": "string", "seq": "integer", "number": "integer"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": kinds[name]}}
        for name in _NAMES.findall(route.path)
    ]
    found: dict[str, Any] = {"operationId": route.name}
    limits = f"The answer takes at most {route.deadline:g} seconds"
    if route.method == "POST":
        limits += f", and the body has at most {route.most_bytes:,} bytes"
        found["requestBody"] = {"required": True, "content": content(asked(route), "validation")}
    else:
        query = _without_titles(asked(route).model_json_schema())
        parameters += [
            {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
            for name, schema in query["properties"].items()
        ]
    # The rest of a docstring is about Python.
    about = " ".join((getdoc(route.call) or "").partition("\n\n")[0].split())
    return {
        **found,
        "summary": about.partition(". ")[0].removesuffix("."),
        "description": f"{about} {limits}.",
        "parameters": parameters,
        "security": [{"token": []}] if route.rights else [],
        "responses": {
            str(route.made): {"description": "Done.", "content": content(answer(route))},
            "default": {"description": "The request was refused.", "content": content(Error)},
        },
    }


def _without_titles(schema: Any) -> Any:
    """Returns a schema without what only says that pydantic made it: titles from names, and the default null."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {name for name, value in (("title", str), ("default", NoneType)) if isinstance(schema.get(name), value)}
    return {name: _without_titles(part) for name, part in schema.items() if name not in left_out}
