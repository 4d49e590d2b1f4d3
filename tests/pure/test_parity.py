"""Store and AsyncStore are derived by a script, with the same methods and the same parameters."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
from support.faces import methods
from support.paths import ROOT

import compaction_store as cs


def _parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    return [
        (p.name, p.kind, p.default, re.sub(r"\bAsync(Engine|Messages|Threads|Turn)\b", r"\1", str(p.annotation)))
        for p in inspect.signature(function).parameters.values()
    ]


def test_the_synchronous_face_is_what_the_script_derives() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/unasync.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("sync", "aio"), [(cs.Reader, cs.AsyncReader), (cs.Store, cs.AsyncStore)])
def test_both_faces_have_the_same_methods_with_the_same_parameters(sync: type, aio: type) -> None:
    here, there = methods(sync), methods(aio)
    assert sorted(here) == sorted(there)
    for name, member in here.items():
        assert _parameters(member) == _parameters(there[name]), name
        assert inspect.getdoc(member) == inspect.getdoc(there[name]), name


_AT_ONCE = {"on_compact", "on_recorded", "turn", "of_tenant"}


@pytest.mark.parametrize("name", sorted(methods(cs.AsyncStore).keys() - _AT_ONCE))
def test_every_method_of_the_async_face_is_awaited_or_iterated(name: str) -> None:
    method = inspect.unwrap(methods(cs.AsyncStore)[name])
    returns = str(inspect.signature(method).return_annotation)
    is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    assert is_async or returns.startswith(("AsyncIterator[", "AsyncResults[", "Coroutine["))


@pytest.mark.parametrize("reader", [cs.Reader, cs.AsyncReader])
def test_a_reader_has_no_method_that_writes(reader: type) -> None:
    writing = {"append", "set_metadata", "compact", "revoke", "audit.review", "custody.redact", "load.messages"}
    assert writing < methods(cs.Store).keys()
    assert writing.isdisjoint(methods(reader))


def test_an_editor_offers_few_names_beside_append() -> None:
    for kind in (cs.Store, cs.AsyncStore):
        offered = {name for name in dir(kind) if not name.startswith("_")} - {"append"}
        assert len(offered) <= 30, sorted(offered)
        assert {"audit", "custody", "load"} <= offered
