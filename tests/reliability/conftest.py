"""A Postgres of the rigs' own, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reliability.rigs.ground import Postgres


@pytest.fixture(scope="session")
def own() -> Iterator[Postgres]:
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with Postgres() as server:
        yield server
