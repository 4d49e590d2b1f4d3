"""Derives the synchronous classes in `store/_sync` from the async ones in `store/_async`.

With --check, says whether they are as derived.

A rule that no file uses any more is an error; when a new one seems to be needed, the shell is doing too much.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "compaction_store" / "store"
SOURCE = PACKAGE / "_async"
TARGET = PACKAGE / "_sync"

RULES = (
    (r"The async face", "The synchronous face"),
    (
        r"\n\nThe files of this package are.*?\"\"\"",
        '\n\nEvery file of this package is derived from `_async` by `scripts/unasync.py`: edit those.\n"""',
    ),
    (r"compaction_store\.store\._async\b", "compaction_store.store._sync"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\n    @opening\.opens", ""),
    (r"^from compaction_store.store import opening\n", ""),
    (
        (
            r"\bAsync(Connections|Engine|Exporting|Importing|Iterator|Loading|Messages|Reader|Reading|Redacting|Source"
            r"|Store|Verifying|Watched|Writing)\b"
        ),
        r"\1",
    ),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"create_aio_engine", "create_engine"),
    (r"\b(join|close)_aio\b", r"\1"),
    (r"run_callback_async", "run_callback"),
    (r"_AWAITS = True", "_AWAITS = False"),
)


def derive(sources: dict[str, str]) -> dict[str, str]:
    for pattern, replacement in RULES:
        uses = 0
        for name, source in sources.items():
            sources[name], count = re.subn(pattern, replacement, source, flags=re.MULTILINE | re.DOTALL)
            uses += count
        if not uses:
            raise SystemExit(f"unasync: the rule {pattern!r} is not used")
    return sources


def main() -> None:
    derived = derive({path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.py"))})
    there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
    if "--check" not in sys.argv:
        TARGET.mkdir(exist_ok=True)
        for name in there.keys() - derived.keys():
            (TARGET / name).unlink()
        for name, text in derived.items():
            (TARGET / name).write_text(text, encoding="utf-8")
    elif there != derived:
        raise SystemExit("unasync: store/_sync is not what store/_async makes: run python scripts/unasync.py")


if __name__ == "__main__":
    main()
