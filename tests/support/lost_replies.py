"""A proxy between a store and its server that drops replies."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

READY = b"Z\x00\x00\x00\x05I"


class Proxy:
    """A proxy in front of the server, which can cut connections between an append and its reply, and be closed."""

    def __init__(self, url: str, *, call: bytes = b"compaction_store.append", is_last: bool = False) -> None:
        """Drops the replies to a call. With `is_last`, accepts no connection after the first dropped reply."""
        self._call = call
        self._is_last = is_last
        self.target = conninfo_to_dict(url)
        self.cuts = 0
        self.lost_replies = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        address = sa.make_url(url).set(host="127.0.0.1", port=self._port)
        options = {"sslmode": "disable", "gssencmode": "disable"}
        self.url = address.set(query=options).render_as_string(hide_password=False)

    def _connect(self) -> socket.socket:
        host, port = str(self.target.get("host", "127.0.0.1")), int(self.target.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += [client, server]
            appending = threading.Event()
            for source, sink, work in ((client, server, self._to_server), (server, client, self._to_client)):
                thread = threading.Thread(target=self._pump, args=(source, sink, work, appending))
                self._threads.append(thread)
                thread.start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, work: Callable[[bytes, threading.Event], bool],
        appending: threading.Event,
    ) -> None:  # fmt: skip
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and work(data, appending):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _to_server(self, data: bytes, appending: threading.Event) -> bool:
        if self._call in data:
            appending.set()
        return True

    def _to_client(self, data: bytes, appending: threading.Event) -> bool:
        """Returns False for the reply that says that the append is committed, which must be dropped."""
        if appending.is_set() and self.cuts and data.endswith(READY):
            self.cuts -= 1
            self.lost_replies += 1
            if self._is_last:
                self._listener.shutdown(socket.SHUT_RDWR)
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(10)
        for end in self._sockets:
            end.close()
        assert not any(thread.is_alive() for thread in self._threads)
