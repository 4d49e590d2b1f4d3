"""Draws docs/pictures/demo.svg: the terminal after `compaction-store demo`, from a real run on an embedded Postgres.

The picture has no path of this machine, and loads no fonts from the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "demo.svg"
WIDTH = 104
# Rich's SVG template, without the fonts that a browser would fetch.
FORM = re.sub(r" *@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)


def run(folder: str) -> str:
    """Runs the demo and returns its output, with the codes for the terminal's colours."""
    environment = os.environ | {
        "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "XDG_DATA_HOME": folder, "HOME": folder, "TERM": "xterm-256color",
        "COMPACTION_STORE_LINGER": "0",
    }  # fmt: skip
    environment.pop("COMPACTION_STORE_URL", None)
    done = subprocess.run(
        [sys.executable, "-m", "compaction_store", "demo"],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip("\n")


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        printed = run(folder)
        if folder in printed:
            raise SystemExit("demo_picture: the demo printed a path of this machine")
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text("$ bash scripts/demo\n", style="bold"))
        console.print(Text.from_ansi(printed))
    PICTURE.write_text(
        console.export_svg(title="compaction-store demo", code_format=FORM, unique_id="demo"), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
