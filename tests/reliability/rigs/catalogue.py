"""Every rig by its name, in its short and its long form."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliability.rigs import (
    apart,
    attack,
    cancel,
    client,
    cluster,
    cuts,
    feed,
    fuzz,
    histories,
    hostile,
    kill,
    pooler,
    silent,
    soak,
    stall,
    standby,
)
from reliability.rigs.ground import Postgres

Rig = Callable[[Postgres, random.Random, bool], dict[str, Any]]


class Missing(Exception):
    """The machine lacks what the rig needs."""


def _kill(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    kills, appends = (50, 200_000) if long else (2, 300)
    return kill.run(server, chance, kills=kills, appends=appends)


def _client(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return client.run(server, chance, kills=150 if long else 3)


def _cuts(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    appends, compactions = (20_000, 1_000) if long else (300, 10)
    return cuts.run(server, chance, appends=appends, compactions=compactions)


def _pooler(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    if pooler.program() is None:
        raise Missing("pgbouncer is not installed")
    return pooler.run(server, chance, calls=5_000 if long else 30)


def _cancel(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return cancel.run(server, chance, share=1.0 if long else 0.03)


def _histories(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return histories.run(server, chance, messages=100_000 if long else 1_500)


def _feed(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    entries, kills = (100_000, 50) if long else (2_000, 3)
    return feed.run(server, chance, entries=entries, kills=kills)


def _hostile(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return hostile.run(server, chance, long=long)


def _fuzz(_server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return fuzz.run(chance, seconds=300.0 if long else 0.3)


def _bundles(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return apart.run(server, chance, count=100_000 if long else 400)


def _attack(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return attack.run(server, chance, count=2_050 if long else 24)


def _soak(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    seconds, pause = (1800.0, 5.0) if long else (3.0, 0.3)
    return soak.run(server, chance, seconds=seconds, pause=pause)


def _silent(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return silent.run(server, chance, silences=60 if long else 3)


def _stall(server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    return stall.run(server, chance, rounds=1) if long else stall.run_some(server, chance, count=2)


def _standby(_server: Postgres, chance: random.Random, long: bool) -> dict[str, Any]:
    failovers, seconds = (12, 4.0) if long else (1, 0.7)
    return standby.run(chance, failovers=failovers, seconds=seconds)


def run_cluster(chance: random.Random, url: str, *folders: str, long: bool) -> dict[str, Any]:
    """Runs the rig that needs a cluster."""
    return cluster.run(chance, url, [Path(one) for one in folders], rounds=4 if long else 1, shards=8 if long else 4)


RIGS: dict[str, Rig] = {
    "kill": _kill, "client": _client, "cuts": _cuts, "pooler": _pooler, "cancel": _cancel, "histories": _histories,
    "feed": _feed,    "hostile": _hostile, "fuzz": _fuzz, "soak": _soak, "standby": _standby, "silent": _silent,
    "stall": _stall, "bundles": _bundles, "attack": _attack,
}  # fmt: skip
# Rigs that try a number of inputs.
COUNTED: dict[str, Callable[..., dict[str, Any]]] = {"bundles": apart.run, "attack": attack.run}
