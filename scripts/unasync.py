"""Derives every `_sync` package from the `_async` package beside it. With --check, fails if they differ.

A rule that changes no file is an error. If a new rule seems necessary, the async code probably does too much.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "compaction_store"
PACKAGES = (ROOT / "postgres" / "calling", ROOT / "postgres" / "driver", ROOT / "store")

RULES = (
    (r"The async classes", "The synchronous classes"),
    (r"an AsyncConnection\b", "a Connection"),
    (r"an AsyncStore\.\n\nA call runs inside.*?\"\"\"", 'a Store."""'),
    (r"\._async\b", "._sync"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait (?:greenlet_spawn|waiting\.(?:in_thread|uninterrupted|finished))\(([\w.]+)(?:, )?", r"\1("),
    (r"\bawait ", ""),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"^from sqlalchemy\.util import greenlet_spawn\n", ""),
    (r"^from compaction_store import waiting\n", ""),
    (r"^(from compaction_store import .*), waiting$", r"\1"),
    (r", sleep_in_greenlet$", ""),
    (r"\bsleep_in_greenlet\b", "time.sleep"),
    (r"^from asyncio import CancelledError\n", ""),
    (r"\bCancelledError\b", "KeyboardInterrupt"),
    (r"\bwait_async\b", "wait"),
    (r"\basyncio\b", "time"),
    (r"\bengine\.sync_engine\b", "engine"),
    (r"\n    @awaitable_context", ""),
    (r"^from compaction_store.store.awaitable_context import awaitable_context\n", ""),
    (
        r"\bAsync(Audit|Connections?|Custody|Engine|Iterator|LeaseKeeper|Loader|Messages|Reader|Results|Scope|SharedCommits|Signal|Source|StoreAudit|Store|Threads|Turn|Waiter)\b",
        r"\1",
    ),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"create_aio_engine", "create_engine"),
    (r"\bengines_aio\b", "engines"),
    (r"\b(join|close)_aio\b", r"\1"),
    (r"\bdrive_async\b", "drive"),
    (r"_IS_ASYNC = True", "_IS_ASYNC = False"),
)


def derive(sources: dict[Path, str]) -> dict[Path, str]:
    for pattern, replacement in RULES:
        uses = 0
        for path, source in sources.items():
            sources[path], count = re.subn(pattern, replacement, source, flags=re.MULTILINE | re.DOTALL)
            uses += count
        if not uses:
            raise SystemExit(f"unasync: the rule {pattern!r} is not used")
    return sources


def main() -> None:
    derived = derive(
        {
            package / "_sync" / path.name: path.read_text(encoding="utf-8")
            for package in PACKAGES
            for path in sorted((package / "_async").glob("*.py"))
        }
    )
    there = {
        path: path.read_text(encoding="utf-8") for package in PACKAGES for path in (package / "_sync").glob("*.py")
    }
    if "--check" not in sys.argv:
        for path in there.keys() - derived.keys():
            path.unlink()
        for path, text in derived.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    elif there != derived:
        raise SystemExit("unasync: the _sync packages are out of date: run python scripts/unasync.py")


if __name__ == "__main__":
    main()
