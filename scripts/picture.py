"""Draws docs/pictures/thread.svg, the size of a thread's view over time, with `compaction-store stats`.

With --check, fails if the picture is out of date. Uses the database $COMPACTION_STORE_URL, which must be empty, or else
a Postgres in a temporary folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from compaction_store import Store, TokenBudget, embedded
from compaction_store.cli import demo
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "thread.svg"
THREAD = "bookshop"
BUDGET = TokenBudget(context_window=8000)


def live(store: Store) -> None:
    """Stores an agent's thread, and fits the view into the budget before each reply."""
    store.on_compact(SlidingWindow(StateSummary(max_tokens=400), retain=12))
    for turn in demo.turns():
        store.append(THREAD, turn.messages)
        view = store.fit(THREAD, BUDGET, actor="agent")
        store.append(THREAD, turn.reply, view=view)


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url = os.environ.get("COMPACTION_STORE_URL") or embedded.url(Path(folder))
        with Store.open(url) as store:
            live(store)
        drawn = Path(folder) / "thread.svg"
        command = ["-m", "compaction_store", "stats", THREAD, "--url", url, "--svg", str(drawn)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        # The times below the chart are those of this run.
        picture = re.sub(r" · [-0-9:]+(?=</text>)", "", drawn.read_text(encoding="utf-8"))
        if "--check" not in sys.argv:
            PICTURE.write_text(picture, encoding="utf-8")
        elif PICTURE.read_text(encoding="utf-8") != picture:
            raise SystemExit("picture: docs/pictures/thread.svg is out of date: run python scripts/picture.py")


if __name__ == "__main__":
    main()
