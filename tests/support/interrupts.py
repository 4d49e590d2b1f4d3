"""Interrupts code at a chosen line, as Ctrl-C could."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import psycopg

import compaction_store as cs


@contextmanager
def interrupted_at(event: int, modules: Collection[ModuleType] = (cs, psycopg)) -> Iterator[list[str]]:
    """Interrupts the block at its so many-th line in these modules and packages; the function is added to the list.

    No garbage is collected meanwhile, because Python ignores errors that are raised in a finalizer.
    """
    gc.disable()
    folders = tuple(str(module.__file__).removesuffix("__init__.py") for module in modules)
    seen = 0
    before = sys.gettrace()
    where: list[str] = []

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal seen
        if what != "line" or not frame.f_code.co_filename.startswith(folders):
            return trace
        seen += 1
        if seen == event:
            where.append(frame.f_code.co_name)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
        gc.enable()
