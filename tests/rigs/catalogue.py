"""Every rig by its name, in its short and its long form."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rigs import kill
from rigs.ground import Postgres


def _kill(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return (
            kill.run(server, chance, kills=50, appends=200_000)
            if long
            else kill.run(server, chance, kills=2, appends=500)
        )


RIGS: dict[str, Callable[..., dict[str, Any]]] = {"kill": _kill}
