"""The servers of a cluster that somebody else made: kills them by the ids of their processes, and starts them again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from support import cluster

from compaction_store import migrate
from compaction_store.deploy import citus
from reliability.rigs.ground import superuser

_PATIENCE = 60.0


class Node:
    """One server, by its data folder. It must be running when this object is made."""

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        self.port = int(lines[3])
        socket = Path(lines[4]) / f".s.PGSQL.{self.port}"
        # They name a process that may still be listed after it was killed.
        self._stale = (self.data / "postmaster.pid", socket, socket.with_name(f"{socket.name}.lock"))
        [program, *_] = shlex.split((self.data / "postmaster.opts").read_text())
        self._ctl = Path(program).with_name("pg_ctl")
        # A server does not run as root.
        self._account = pwd.getpwuid(self.data.stat().st_uid)

    def processes(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").samefile(self.data):
                    found.append(int(process.name))
        return found

    def kill_postmaster(self) -> None:
        """Ends the first process by SIGKILL, as the kernel does when memory runs out; the others notice and leave."""
        _kill(int((self.data / "postmaster.pid").read_text().split()[0]))
        self._wait_until_gone()

    def kill(self) -> None:
        """Ends every process by SIGKILL."""
        while left := self.processes():
            for pid in left:
                _kill(pid)
            time.sleep(0.002)

    def _wait_until_gone(self) -> None:
        end = time.monotonic() + _PATIENCE
        while self.processes():
            assert time.monotonic() < end, f"processes of {self.data} outlive their postmaster"
            time.sleep(0.01)

    def start(self) -> None:
        """Returns when it accepts connections, after its recovery."""
        for file in self._stale:
            file.unlink(missing_ok=True)
        options: dict[str, Any] = {"cwd": self.data, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        if os.getuid() != self._account.pw_uid:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
            # Connections between the nodes look for keys in it.
            options["env"] = os.environ | {"HOME": self._account.pw_dir}
        log = self.data.with_name(f"{self.data.name}.log")
        command = (str(self._ctl), "-D", str(self.data), "-l", str(log), "-w", "-t", str(int(_PATIENCE)), "start")
        subprocess.run(command, check=True, timeout=2 * _PATIENCE, **options)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Cluster:
    """A new database on the coordinator and on all workers. The last worker is not added yet."""

    def __init__(self, url: str, folders: list[Path], name: str, *, shards: int) -> None:
        self.urls = cluster.node_urls(url)
        found = {node.port: node for node in map(Node, folders)}
        ports = [sa.make_url(one).port for one in self.urls]
        assert sorted(found) == sorted(map(int, filter(None, ports))), (
            f"the folders must be those of the nodes with the ports {ports}, not {sorted(found)}"
        )
        self.nodes = [found[port] for port in ports if port is not None]
        assert len(self.nodes) > 2, "the cluster must have a coordinator and two workers"
        self.name = name
        self.members = [self._at(one) for one in self.urls]
        self.url = self.members[0].render_as_string(hide_password=False)
        cluster.create(self.urls, name, "template0")
        try:
            cluster.connect_nodes(self.members[:-1], extensions_in=self.members)
            migrate.upgrade(self.url)
            citus.distribute(self.url, shards=shards)
        except BaseException:
            self.remove()
            raise

    def _at(self, url: str) -> sa.URL:
        return sa.make_url(url).set(database=self.name)

    @property
    def coordinator(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> list[Node]:
        return self.nodes[1:]

    def add_last_worker(self) -> None:
        last = self.members[-1]
        with superuser(self.url) as connection:
            connection.execute("SELECT citus_add_node(%s, %s)", (last.host, last.port))

    def take_shards(self, worker: Node, takes: bool) -> None:
        """Says whether a worker is to have shards. Moving them is another step."""
        host = self.members[self.nodes.index(worker)].host
        with superuser(self.url) as connection:
            connection.execute(
                "SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', %s)", (host, worker.port, takes)
            )

    def shards(self) -> dict[int, int]:
        """Returns how many shards of the threads each port has."""
        with superuser(self.url) as connection:
            return dict(
                connection.execute(
                    "SELECT nodeport, count(*)::int FROM citus_shards"
                    " WHERE table_name = 'compaction_store.threads'::regclass GROUP BY nodeport ORDER BY nodeport"
                ).fetchall()
            )

    def settle(self) -> int:
        """Returns how many prepared transactions were left, after Citus has ended all of them."""
        end = time.monotonic() + 2 * _PATIENCE
        most = 0
        while left := self._prepared():
            most = max(most, left)
            assert time.monotonic() < end, f"{left} prepared transactions were never ended"
            time.sleep(0.5)
        return most

    def _prepared(self) -> int:
        found = 0
        for url in self.members:
            with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
                rows = connection.execute("SELECT FROM pg_prepared_xacts WHERE database = current_database()")
                found += len(rows.fetchall())
        return found

    def remove(self) -> None:
        cluster.drop(self.urls, self.name)
