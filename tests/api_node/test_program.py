"""A program in TypeScript uses the API: its types come from docs/openapi.json, and its store is a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support import platforms
from support.paths import ROOT
from web.api_clients import WRITER, token_file
from web.test_api_callers import serving

_HERE = Path(__file__).parent
_FOLDER = ROOT / ".venv-node"


def _run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=_FOLDER, capture_output=True, text=True, check=False, timeout=300, env=os.environ | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built() -> Path:
    """The program, compiled with strict types. Skips the test on a machine without Node or without its registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    _FOLDER.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json", "tsconfig.json", "program.ts", "wrong.ts"):
        shutil.copy(_HERE / name, _FOLDER)
    install = ["npm", "ci", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=_FOLDER, capture_output=True, text=True, check=False, timeout=300)
    if installed.returncode:
        pytest.skip(f"npm cannot install the packages: {installed.stderr[-300:]}")
    document = str(ROOT / "docs" / "openapi.json")
    _run("npx", "openapi-typescript", document, "-o", "api.d.ts", "--default-non-nullable=false")
    _run("npx", "tsc")
    return _FOLDER / "built" / "program.js"


@pytest.fixture
def application(superuser_url: str) -> Iterator[str]:
    """The URL of the database with the login of an application."""
    name = f"cs_node_{os.getpid()}"
    platforms.make_login(superuser_url, name, "application")
    yield platforms.as_login(superuser_url, name)
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_a_program_in_typescript_uses_every_kind_of_call(built: Path, application: str, tmp_path: Path) -> None:
    with serving(application, "--token-file", str(token_file(tmp_path))) as address:
        printed = _run("node", str(built), API_URL=address.rstrip("/"), API_TOKEN=WRITER)
    assert printed == "24 messages, record 1 revoked, 27 entries verified\n"
