"""The shell commands of docs/http.md, as its reader runs them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.paths import ROOT

_PAGE = ROOT / "docs" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_of_the_page_work(url: str, tmp_path: Path) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks = [part.partition("\n```")[0] for part in _PAGE.read_text(encoding="utf-8").split("```bash\n")[1:]]
    assert len(blocks) == 2
    script = "trap 'kill %1; wait' EXIT\n" + "\n".join(blocks).replace(":8781", f":{port}").replace(
        "compaction-store api", f"{sys.executable} -m compaction_store api --listen 127.0.0.1:{port}"
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=120, env=os.environ | {"COMPACTION_STORE_URL": url},
    )  # fmt: skip
    log = (tmp_path / "api.log").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr + log
    ready, *answers = done.stdout.splitlines()
    assert ready == '{"status":"ready"}'
    assert len(answers) == 8
    assert '"actor":"support-bot"' in answers[0]
    assert '"content":"Where is my order?"' in answers[1]
    assert [answer for answer in answers if '"type":' in answer and '"message":' in answer] == [answers[6]]
    assert "there is nothing before seq 1" in answers[6]
    assert '"findings":[]' in answers[7]
    assert '"page": "append", "id": "ticket-8812", "tenant": "acme", "status": 201' in log
    assert "Traceback" not in log
