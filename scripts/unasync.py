"""Derives `compaction_store/store.py` from `compaction_store/aio.py`. With --check, says whether it is as derived.

A rule that is not used any more is an error; when a new one seems to be needed, the shell is doing too much.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "compaction_store"

DOCSTRING = '''"""The synchronous face: Reader, which has no writing method, and Store.

Derived from `aio.py` by `scripts/unasync.py`: change that file, not this one.
"""'''

RULES = (
    (r'^"""The async face.*?\n\n.*?"""', DOCSTRING),
    (r"from sqlalchemy\.ext\.asyncio import AsyncEngine", "from sqlalchemy import Engine"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bAsync(Connections|Engine|Iterator|Reader|Store)\b", r"\1"),
    (r"\bIterator, Callable, Iterable, Iterator\b", "Callable, Iterable, Iterator"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"create_aio_engine", "create_engine"),
)


def derive(source: str) -> str:
    for pattern, replacement in RULES:
        source, uses = re.subn(pattern, replacement, source, flags=re.MULTILINE | re.DOTALL)
        if not uses:
            raise SystemExit(f"unasync: the rule {pattern!r} is not used")
    return source


def main() -> None:
    derived = derive((PACKAGE / "aio.py").read_text(encoding="utf-8"))
    target = PACKAGE / "store.py"
    if "--check" not in sys.argv:
        target.write_text(derived, encoding="utf-8")
    elif target.read_text(encoding="utf-8") != derived:
        raise SystemExit("unasync: store.py is not what aio.py makes: run python scripts/unasync.py")


if __name__ == "__main__":
    main()
