"""Checkpoints: signed notes of where every thread stands, kept where nobody who may write to the database may write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from compaction_store.checkpoints import CheckpointLog, SigningKey
from compaction_store.cli import options
from compaction_store.cli.options import AsJson, Tenant, Url, misuse
from compaction_store.cli.output import Output, note

_PARTS = 2

LogFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints",
        metavar="FILE",
        help="The file that checkpoint writes, for level checkpoint.",
        show_default=False,
    ),
]
PublicKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--public-key",
        metavar="HEX",
        help="Who may have signed the checkpoints. May be given again.",
        show_default=False,
    ),
]


def checkpoint(
    log: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the notes are added, and the lists of heads beside it.")
    ],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The signing key.", show_default=False)],
    new_key: Annotated[
        str | None,
        typer.Option(
            "--new-key",
            metavar="NAME",
            help="Make the key first, to sign as NAME, such as example.org/audit.",
            show_default=False,
        ),
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Over every tenant; for a login that no policy binds.")
    ] = False,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Signs where every thread stands now, after the last checkpoint of the file, and appends it there.

    Refused, with exit code 1, where the database contradicts the last checkpoint: a thread that is gone, shorter or
    another. Keep the file where nobody who may write to the database may write, and the key elsewhere.
    """
    signer = _read(key) if new_key is None else _make(key, new_key)
    out = Output(as_json=as_json)
    with options.reader(url, tenant) as store:
        made = store.checkpoint(signer, CheckpointLog(log, signer.key), all_tenants=all_tenants)
    if out.as_json:
        out.json({
            "origin": made.origin, "threads": made.size, "root": made.root, "time": made.time, "heads": made.heads,
            "previous": made.previous, "digest": made.digest, "public_key": signer.key, "note": made.note,
        })  # fmt: skip
    else:
        out.text(f"{made.origin}: {made.size:,} threads, {made.digest}")
        out.text(f"  public key {signer.key.hex()}", "dim")


def opened(log: Path | None, keys: list[str] | None) -> CheckpointLog | None:
    """The log of the options; None where none is named."""
    if log is None:
        if keys:
            raise misuse("goes with --checkpoints", "--public-key")
        return None
    if not keys:
        raise misuse("needs --public-key, with which it is believed", "--checkpoints")
    if not log.is_file():
        raise misuse(f"there is no file {log}", "--checkpoints")
    return CheckpointLog(log, *keys)


def _make(file: Path, name: str) -> SigningKey:
    made = SigningKey.generate(name)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise misuse(f"cannot make {file}: {error.strerror}", "--new-key") from None
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{name} {made.private_bytes().hex()}\n")
    note(f"made {file}: whoever has it can sign; its public key is {made.key.hex()}")
    return made


def _read(file: Path) -> SigningKey:
    try:
        parts = file.read_text(encoding="ascii").split()
        private = bytes.fromhex(parts[1] if len(parts) == _PARTS else "")
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}; --new-key makes one", "--key") from None
    except ValueError:
        private = b""
    if not private:
        raise misuse(f"{file} holds no key: a name, a space and 64 hexadecimal digits", "--key")
    return SigningKey.from_bytes(parts[0], private)
