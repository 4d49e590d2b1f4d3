"""Writes docs/openapi.json, which describes the API, from the routes."""

from __future__ import annotations

import json
from pathlib import Path

from compaction_store.web.api import document

if __name__ == "__main__":
    text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    (Path(__file__).parent.parent / "docs" / "openapi.json").write_text(text, encoding="utf-8")
