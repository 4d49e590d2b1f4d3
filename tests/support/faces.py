"""Calls a store of either kind, sync or async, as if it were synchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from typing import Any

from compaction_store import AsyncStore, Store

#: The groups of a store's methods.
_GROUPS = {"audit", "custody", "load"}


def methods(kind: type) -> dict[str, Any]:
    """Returns the public methods of a store's class and of its groups by their paths, such as `audit.verify`."""
    found: dict[str, Any] = {}
    for name, member in inspect.getmembers(kind):
        if isinstance(member, property) and name in _GROUPS:
            found |= {f"{name}.{inner}": method for inner, method in methods(_group(kind, member)).items()}
        elif not name.startswith("_") and not isinstance(member, property):
            found[name] = member
    return found


def _group(kind: type, member: property) -> type:
    """Returns the class of a group, which its module has under the name in the annotation."""
    annotation = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
    room = "_async" if kind.__name__.startswith("Async") else "_sync"
    modules = (import_module(f"compaction_store.store.{room}.{name}") for name in ("audit", "custody", "loader"))
    found: type = next(vars(module)[annotation] for module in modules if annotation in vars(module))
    return found


class Face:
    """A store of either kind with synchronous methods, so that one test covers both kinds."""

    def __init__(self, store: Any, runner: asyncio.Runner | None) -> None:
        self.store = store
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.store, name)
        if name in _GROUPS:
            return Face(attribute, self.runner)
        if self.runner is None or not callable(attribute):
            return attribute

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = attribute(*arguments, **keywords)
            if inspect.isawaitable(result):
                return self._run(result)
            return self._iterate(result) if isinstance(result, AsyncIterator) else result

        return call

    def _run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        assert self.runner is not None
        return self.runner.run(wait())

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._run(anext(items))
            except StopAsyncIteration:
                return


class Faces:
    """Opens stores of one kind and closes them at the end of the test. `reach` may put a pooler in front of a URL."""

    def __init__(self, kind: str, runner: asyncio.Runner | None, reach: Callable[[str], str] = lambda url: url) -> None:
        self.kind = kind
        self.runner = runner
        self._reach = reach
        self.opened: list[Face] = []

    def open(self, url: str | None, **options: Any) -> Face:
        # A pooler does not pass on role and settings.
        if url is not None and not options.keys() & {"role", "settings"}:
            url = self._reach(url)
        if self.runner is None:
            face = Face(Store.open(url, **options), None)
        else:
            face = Face(self.runner.run(AsyncStore.open(url, **options)), self.runner)
        self.opened.append(face)
        return face
