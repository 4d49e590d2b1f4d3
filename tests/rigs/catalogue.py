"""Every rig by its name, in its short and its long form."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rigs import cancel, client, cuts, fuzz, histories, hostile, kill, pooler, soak
from rigs.ground import Postgres


def _kill(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        kills, appends = (50, 200_000) if long else (2, 500)
        return kill.run(server, chance, kills=kills, appends=appends)


def _cuts(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        appends, compactions = (20_000, 1_000) if long else (300, 10)
        return cuts.run(server, chance, appends=appends, compactions=compactions)


def _histories(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return histories.run(server, chance, messages=100_000 if long else 3_000)


def _client(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return client.run(server, chance, kills=150 if long else 3)


def _cancel(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return cancel.run(server, chance, share=1.0 if long else 0.1)


def _pooler(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return pooler.run(server, chance, calls=5_000 if long else 30)


def _hostile(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        return hostile.run(server, chance, long=long)


def _soak(chance: random.Random, *, long: bool) -> dict[str, Any]:
    with Postgres() as server:
        seconds, pause = (1800.0, 5.0) if long else (4.0, 0.3)
        return soak.run(server, chance, seconds=seconds, pause=pause)


def _fuzz(chance: random.Random, *, long: bool) -> dict[str, Any]:
    return fuzz.run(chance, seconds=300.0 if long else 1.0)


RIGS: dict[str, Callable[..., dict[str, Any]]] = {
    "kill": _kill, "client": _client, "cuts": _cuts, "histories": _histories, "cancel": _cancel,
    "pooler": _pooler,
    "hostile": _hostile, "fuzz": _fuzz, "soak": _soak,
}  # fmt: skip
