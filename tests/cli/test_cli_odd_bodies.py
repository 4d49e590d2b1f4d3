"""The program prints bodies of any JSON, which an imported thread may have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.handmade_bundles import Thread

import compaction_store as cs
from cli.program import Run

_ODD: tuple[Any, ...] = (5, None, "x", [], {}, [5], [[5]], [[1, "2"]], [{}], -1, 1.5, 10**400)


@pytest.fixture
def odd(store: cs.Store) -> str:
    """Imports a thread of records and events that no release of the package writes."""
    made = Thread("default", "odd")
    made.message('{"role":"user","content":"hi"}')
    for value in _ODD:
        failed = {"type": value, "summarizer": value, "model": value, "usage": {"input_tokens": value}}
        made.compaction(
            json.dumps({
                "error": value, "summarizer": "s", "usage": {"input_tokens": value, "requests": value},
                "coverage": {"failed_before": [failed, {"usage": value}]}, "prompt": value, "duration": value,
            }),
            outcome="failed",
        )  # fmt: skip
        made.compaction(json.dumps({"coverage": value, "error": {"type": value, "message": value}}), outcome="rejected")
        made.event("refusal", json.dumps({"refused": value, "seqs": value, "because": value}))
        made.event("hold", json.dumps({"reason": value}))
    store.load.bundle(made.lines())
    return "odd"


@pytest.mark.parametrize("form", ["--table", "--json"])
def test_every_verb_prints_any_body(run: Run, odd: str, form: str) -> None:
    for arguments in (
        ("events", odd), ("compactions", odd), ("stats",), ("stats", odd), ("show", odd, "1"),
        ("show", odd, "2"), ("show", odd, "7"), ("threads",), ("view", odd),
    ):  # fmt: skip
        done = run(*arguments, form)
        assert (done.returncode, done.stderr) == (0, ""), arguments
