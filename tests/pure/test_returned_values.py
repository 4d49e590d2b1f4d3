"""Every value that a public function, method or property returns can be written as JSON."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

import compaction_store as cs
from compaction_store import (
    api_rules,
    embedded,
    grants,
    importers,
    migrate,
    models,
    recall,
    strategies,
    summarizers,
    tokens,
)
from compaction_store.deploy import citus, doctor
from compaction_store.store._async import audit as audit_aio
from compaction_store.store._async import custody as custody_aio
from compaction_store.store._async import loader as loader_aio
from compaction_store.store._sync import audit, custody, loader
from compaction_store.strategies.base import BaseStrategy

MODULES = (cs, models, recall, strategies, summarizers, tokens, importers, api_rules, grants)
FUNCTIONS = (
    migrate.upgrade, migrate.current, migrate.check, embedded.url, embedded.default_folder, citus.distribute,
    doctor.diagnose, doctor.installation,
)  # fmt: skip
# These do something or can be read only once, so they need no form in JSON.
NOT_VALUES = {
    "Ask", "Asked", "AsyncAudit", "AsyncCustody", "AsyncLoader", "AsyncStoreAudit", "Audit", "Custody", "Loader",
    "StoreAudit", "AsyncReader", "AsyncRecallTools", "AsyncStore", "Carry", "CheckpointLog", "CompactionContext",
    "Counter", "Item", "Mark", "Note", "Notes", "Observed", "Placed", "Planned", "Reader", "RecallTools", "Request",
    "Ruler", "SigningKey", "Source", "SourceThread", "Store", "Strategy", "TokenBudget", "ToLoad", "Window",
}  # fmt: skip

#: The groups of a store's methods, which a store imports on first use.
_GROUPS = {
    name: found
    for module in (audit, custody, loader, audit_aio, custody_aio, loader_aio)
    for name, found in vars(module).items()
    if inspect.isclass(found) and found.__module__ == module.__name__
}


def public_objects() -> Iterator[Any]:
    for module in MODULES:
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        yield from (getattr(module, name) for name in names)
    yield from FUNCTIONS


def returned_by(found: Any) -> Iterator[Any]:
    """Yields the annotation of a function's result, or those of a class's methods, properties and fields."""
    if not inspect.isclass(found):
        if inspect.isfunction(found):
            yield returned(found)
        return
    yield found
    for name, member in inspect.getmembers(found):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield returned(function)


def returned(function: types.FunctionType) -> Any:
    # Arguments may quote names of another module, so only this annotation is evaluated.
    inner: Any = inspect.unwrap(function)
    alone = types.FunctionType((lambda: None).__code__, inner.__globals__)
    alone.__annotations__ = {"return": inner.__annotations__.get("return")}
    return hints(alone)["return"]


def hints(found: Any) -> dict[str, Any]:
    # Names that a module imports for its annotations only.
    late = ("AsyncReader", "AsyncStore", "CompactionContext", "Reader", "Store", "View")
    return typing.get_type_hints(found, localns=_GROUPS | {name: getattr(cs, name) for name in late})


def classes_in(annotation: Any) -> Iterator[type]:
    if inspect.isclass(annotation) and not typing.get_origin(annotation):
        yield annotation
    for part in (typing.get_origin(annotation), *typing.get_args(annotation)):
        if part is not None:
            yield from classes_in(part)


def is_no_value(kind: type) -> bool:
    """A strategy has options and objects, which are never written as JSON."""
    return kind.__name__ in {*NOT_VALUES, "Fold", "Folded"} or issubclass(kind, BaseStrategy)


def values() -> dict[str, type]:
    """Returns the package's classes that public objects return, and those in their fields."""
    found: dict[str, type] = {}
    waiting = [annotation for item in public_objects() for annotation in returned_by(item)]
    while waiting:
        for kind in classes_in(waiting.pop()):
            is_ours = kind.__module__.startswith("compaction_store") and not issubclass(kind, Exception)
            is_value = dataclasses.is_dataclass(kind) or issubclass(kind, (tuple, list, dict))
            if is_ours and is_value and kind.__name__ not in found and not is_no_value(kind):
                found[kind.__name__] = kind
                waiting += hints(kind).values()
    return found


VALUES = values()


def sample(annotation: Any) -> Any:
    """Makes a value of an annotated type, with all of its fields filled."""
    if isinstance(annotation, typing.TypeVar):
        return {"role": "user"}
    origin, parts = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in VALUES.values():
        return made(origin)
    if origin in {tuple, list, frozenset}:
        return origin([sample(parts[0])])
    if origin in {typing.Union, types.UnionType}:
        return sample(parts[0])
    return parts[0] if origin is typing.Literal else PLAIN[origin]


PLAIN: dict[Any, Any] = {
    int: 1, float: 0.5, str: "text", bytes: b"\xff", bool: True, type(None): None, Any: {"name": 1},
    datetime: datetime(2026, 1, 2, tzinfo=UTC), UUID: UUID(int=1), Exception: ValueError("quotes a message"),
    cs.CompactionStoreError: cs.Conflict("refused"), dict: {"name": None}, Mapping: {"name": None},
}  # fmt: skip


def made(kind: type) -> Any:
    if issubclass(kind, cs.Appended):
        return cs.Appended([made(cs.Message)], b"\xff")
    if issubclass(kind, cs.Rendered):
        return cs.Rendered({"messages": [None]}, made(cs.View), "anthropic/1", {"cache": None})
    if kind is models.CompactionTree:
        return models.CompactionTree(made(cs.Compaction), ())
    fields = (
        {field.name: True for field in dataclasses.fields(kind)}
        if dataclasses.is_dataclass(kind)
        else dict.fromkeys(getattr(kind, "_fields", ()))
    )
    return kind(**{name: sample(kind_of) for name, kind_of in hints(kind).items() if name in fields})


def test_the_walk_meets_the_values_that_an_application_sees() -> None:
    assert {
        "Appended", "Attempt", "Checkpoint", "Compaction", "CompactionPlan", "CompactionRun", "CompressResult",
        "Distributed", "Element", "Explanation", "Finding", "Found", "Imported", "Loaded", "Measured", "Message",
        "Problem", "Recalled", "Remark", "Rendered", "Report", "SeenView", "Slid", "Span", "Thread", "ThreadImported",
        "View",
    } <= set(VALUES)  # fmt: skip


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_value_that_is_returned_can_be_written_as_json(name: str) -> None:
    value = made(VALUES[name])
    written = json.loads(json.dumps(value.as_dict(), allow_nan=False))
    assert isinstance(written, dict)
    assert written
    assert "quotes a message" not in json.dumps(written)
