"""The command `checkpoint`, and the options of other commands that read checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compaction_store.cli import exits
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import ReadOptions
from compaction_store.cli.output import note
from compaction_store.errors import InvalidCheckpoint

if TYPE_CHECKING:
    from compaction_store.checkpoints import CheckpointLog, SigningKey

_PARTS = 2

LogFile = Annotated[Path | None, option("--checkpoints FILE")]
PublicKeys = Annotated[list[str] | None, option("--public-key HEX")]


AllowEmpty = Annotated[bool, option("--allow-empty")]


def refuse_empty(where: str, *, allowed: bool) -> None:
    """Ends the command with an error if there are no threads. A mistyped tenant must not look like a good one."""
    if not allowed:
        note(f"no threads of {where}; if this is right, give --allow-empty")
        raise typer.Exit(exits.REFUSED)


def checkpoint(
    log: Path = argument("FILE"),
    key: Path = option("--key FILE"),
    new_key: str | None = option("--new-key NAME", default=None),
    all_tenants: bool = option("--all-tenants", default=False),
    public_key: list[str] | None = option("--public-key HEX", default=None),
    allow_empty: AllowEmpty = False,
    *,
    call: ReadOptions,
) -> None:
    from compaction_store.checkpoints import CheckpointLog

    signer = read_key(key) if new_key is None else _make(key, new_key)
    out = call.output()
    try:
        opened = CheckpointLog(log, signer.key, *(public_key or ()))
        with call.reader() as store:
            made = store.audit.checkpoint(signer, opened, all_tenants=all_tenants, allow_empty=allow_empty)
    except BaseException:
        # A new key that has signed nothing is removed, so that the command can be repeated.
        if new_key is not None and not _has_signed(log, signer):
            key.unlink()
        raise
    if new_key is not None:
        note(f"created {key}: keep it secret, it can sign checkpoints; its public key is {signer.key.hex()}")
    if out.as_json:
        out.json({
            "origin": made.origin, "threads": made.size, "root": made.root, "time": made.time, "heads": made.heads,
            "previous": made.previous, "digest": made.digest, "public_key": signer.key, "note": made.note,
        })  # fmt: skip
    else:
        out.text(f"{made.origin}: {made.size:,} threads, {made.digest}")
        out.text(f"  public key {signer.key.hex()}", "dim")


def open_log(log: Path | None, keys: list[str] | None) -> CheckpointLog | None:
    """Opens the log that the options name; returns None if they name none."""
    from compaction_store.checkpoints import CheckpointLog

    if log is None:
        if keys:
            raise misuse("needs --checkpoints", "--public-key")
        return None
    if not keys:
        raise misuse("needs --public-key, to check its signatures", "--checkpoints")
    if not log.is_file():
        raise misuse(f"file {log} does not exist", "--checkpoints")
    return CheckpointLog(log, *keys)


def _make(file: Path, name: str) -> SigningKey:
    from compaction_store.checkpoints import SigningKey

    made = SigningKey.generate(name)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise misuse(f"cannot create {file}: {error.strerror}", "--new-key") from None
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{name} {made.private_bytes().hex()}\n")
    return made


def _has_signed(log: Path, signer: SigningKey) -> bool:
    """Returns whether the last checkpoint of a file is by this signer."""
    from compaction_store.checkpoints import CheckpointLog

    try:
        return CheckpointLog(log, signer.key).last() is not None
    except (InvalidCheckpoint, OSError):
        return False


def read_key(file: Path) -> SigningKey:
    """Reads the file of a signing key."""
    from compaction_store.checkpoints import SigningKey

    try:
        parts = file.read_text(encoding="ascii").split()
        private = bytes.fromhex(parts[1] if len(parts) == _PARTS else "")
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}; --new-key creates one", "--key") from None
    except ValueError:
        private = b""
    if not private:
        raise misuse(f"{file} must contain a key: a name, a space and 64 hexadecimal digits", "--key")
    return SigningKey.from_bytes(parts[0], private)
