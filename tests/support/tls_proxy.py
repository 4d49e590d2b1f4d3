"""Ends TLS in front of a server that has none, as poolers and services do."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from reliability.rigs.proxy import Proxy

_ASKS_FOR_TLS = (80877103).to_bytes(4, "big")


@contextmanager
def behind_tls(url: str, folder: Path) -> Iterator[str]:
    """Yields the URL of a proxy without `sslmode`. Its certificate, which signs itself, is in `authority.pem`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(folder))
    with Proxy(url, random.Random(1)) as proxy, socket.create_server(("localhost", 0)) as listener:
        to = sa.make_url(proxy.url)
        assert to.host is not None
        assert to.port is not None
        threading.Thread(target=_accept, args=(listener, context, (to.host, to.port)), daemon=True).start()
        port = listener.getsockname()[1]
        given = to.set(host="localhost", port=port).difference_update_query(["sslmode", "gssencmode"])
        yield given.update_query_dict({"gssencmode": "disable"}).render_as_string(hide_password=False)


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    start = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "authority.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def _accept(listener: socket.socket, context: ssl.SSLContext, to: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            client = listener.accept()[0]
            threading.Thread(target=_serve, args=(client, context, to), daemon=True).start()


def _serve(plain: socket.socket, context: ssl.SSLContext, to: tuple[str, int]) -> None:
    with suppress(OSError), plain:
        begun = plain.recv(8, socket.MSG_PEEK)
        client = plain
        if begun[4:] == _ASKS_FOR_TLS:
            plain.recv(8)
            plain.sendall(b"S")
            client = context.wrap_socket(plain, server_side=True)
        with client, socket.create_connection(to) as server:
            while True:
                has_more = isinstance(client, ssl.SSLSocket) and client.pending()
                for source in [client] if has_more else select.select([client, server], [], [])[0]:
                    if not (part := source.recv(65536)):
                        return
                    (server if source is client else client).sendall(part)
