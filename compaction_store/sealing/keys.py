"""The keys that seal content: one for each owner, wrapped by a master key, in a folder of small files.

The folder is not in the database, and must not be in its backups: a backup of the database that was made before
`destroy` then has only sealed text, and nothing that opens it. The owner of a thread is its subject, or the thread.
"""

from __future__ import annotations

import hmac
import json
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

from compaction_store.arguments import instance
from compaction_store.errors import InvalidInput, MissingExtra, NotConfigured, Unreadable
from compaction_store.files import sync_folder

with suppress(ImportError):
    # Windows has none, and no folder of keys: it cannot sync one.
    import fcntl

KEY_BYTES = 32
NONCE_BYTES = 12
ID_BYTES = 16
#: Names the folder of the keys where a program gives none.
ENVIRONMENT = "COMPACTION_STORE_KEYS"
_MASTER = "master.key"
_LONGEST_FILE = 64 * 1024
# How many keys a process remembers before it begins anew.
_MOST_KNOWN = 10_000


def owner_of(tenant: str, subject: str | None = None, thread_id: str | None = None) -> str:
    """Returns the owner of the key that seals a thread: its subject, or the thread alone if it has none."""
    return json.dumps(["thread", tenant, thread_id] if subject is None else ["subject", tenant, subject])


class Master(Protocol):
    """Wraps the owners' keys: your own class around a key management service.

    `name` is the owner's key's name. It must be authenticated, so that no wrapped key can be passed off as another.
    """

    def wrap(self, key: bytes, name: bytes, /) -> bytes: ...

    def unwrap(self, wrapped: bytes, name: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class OwnerKey:
    """The key of an owner. `id` is written beside each sealed text."""

    id: bytes
    secret: bytes = field(repr=False)

    @cached_property
    def cipher(self) -> Any:
        return aes_gcm(self.secret)

    def nonce(self, context: bytes, text: bytes) -> bytes:
        """Returns a nonce that only this text has in this context, and always has."""
        return hmac.digest(self._nonces, context + text, sha256)[:NONCE_BYTES]

    @cached_property
    def _nonces(self) -> bytes:
        return hmac.digest(self.secret, b"compaction-store nonce", sha256)


class FileMaster:
    """A master key of 32 bytes in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        found = b""
        with suppress(FileNotFoundError, ValueError):
            found = urlsafe_b64decode(_read(Path(path)))
        if len(found) != KEY_BYTES:
            raise InvalidInput(
                f"{os.fspath(path)!r} must have the master key, which Keys.make writes: {KEY_BYTES} bytes in base64"
            )
        self._cipher = aes_gcm(found)

    def wrap(self, key: bytes, name: bytes, /) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + bytes(self._cipher.encrypt(nonce, key, name))

    def unwrap(self, wrapped: bytes, name: bytes, /) -> bytes:
        return bytes(self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], name))


class Keys:
    """The owners' keys in a folder. Several processes may use the folder at the same time.

    Without `master`, the folder's own file `master.key` wraps the keys. A key is read again whenever its file has
    changed, so a key that another process destroyed is gone here too.
    """

    def __init__(self, folder: str | os.PathLike[str], *, master: Master | None = None) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise InvalidInput(f"{os.fspath(folder)!r} must be a folder of keys that Keys.make has made")
        self._master: Master = FileMaster(self._folder / _MASTER) if master is None else master
        self._read: dict[bytes, tuple[tuple[int, int], OwnerKey]] = {}
        self._ids: dict[str, bytes] = {}

    @classmethod
    def chosen(cls, given: object) -> Keys | None:
        """Returns the given keys, or those in the folder that the environment names."""
        if given is not None:
            instance(given, Keys, "seal")
            return cast("Keys", given)
        folder = os.environ.get(ENVIRONMENT)
        return cls(folder) if folder else None

    @classmethod
    def make(cls, folder: str | os.PathLike[str], *, master: Master | None = None) -> Keys:
        """Makes a folder of keys that only its owner can read, with a new master key if none is given."""
        path = Path(folder)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        if master is None:
            try:
                _write_new(path / _MASTER, urlsafe_b64encode(os.urandom(KEY_BYTES)))
            except FileExistsError:
                raise InvalidInput(f"{os.fspath(folder)!r} must be a new folder, but has a master key") from None
        return cls(path, master=master)

    def __repr__(self) -> str:
        return f"Keys({os.fspath(self._folder)!r})"

    def of_owner(self, owner: str) -> OwnerKey:
        """Returns the key of an owner, and makes it if there is none."""
        known = self._ids.get(owner)
        found = None if known is None else self.by_id(known)
        if found is None:
            with self._locked():
                known = self.id_of(owner)
                found = (None if known is None else self.by_id(known)) or self._make(owner)
            if len(self._ids) >= _MOST_KNOWN:
                self._ids.clear()
            self._ids[owner] = found.id
        return found

    def _make(self, owner: str) -> OwnerKey:
        made = OwnerKey(uuid4().bytes, os.urandom(KEY_BYTES))
        _write_new(self._file(made.id), urlsafe_b64encode(self._master.wrap(made.secret, made.id)))
        # The process that destroyed an earlier key may have died before its last step.
        self._pointer(owner).unlink(missing_ok=True)
        _write_new(self._pointer(owner), made.id.hex().encode())
        return made

    def by_id(self, key_id: bytes) -> OwnerKey | None:
        """Returns the key with an id, or None if it was destroyed. Raises NotConfigured if this folder never had it."""
        path = self._file(key_id)
        try:
            # The stone counts, and not the file: a process that destroys a key may die between the two.
            if self._stone(key_id).exists():
                raise FileNotFoundError
            state = path.stat()
            version = (state.st_ino, state.st_mtime_ns)
            known = self._read.get(key_id)
            if known is None or known[0] != version:
                known = version, OwnerKey(key_id, self._unwrapped(path, key_id))
                if len(self._read) >= _MOST_KNOWN:
                    self._read.clear()
                self._read[key_id] = known
            return known[1]
        except (FileNotFoundError, Unreadable) as error:
            self._read.pop(key_id, None)
            if self._stone(key_id).exists():
                return None
            if isinstance(error, Unreadable):
                raise
        raise NotConfigured(f"the content is sealed with the key {key_id.hex()}, which {self!r} does not have")

    def _unwrapped(self, path: Path, key_id: bytes) -> bytes:
        secret = b""
        try:
            secret = self._master.unwrap(urlsafe_b64decode(_read(path)), key_id)
        except Exception as error:
            if not is_refusal(error):
                raise
        if len(secret) != KEY_BYTES:
            raise Unreadable(f"{path.name!r} in {self!r} must have a key that its master key has wrapped")
        return secret

    def destroy(self, owner: str) -> bool:
        """Destroys the key of an owner. Nothing that it sealed can be opened again. Returns False if there was none.

        A copy of the folder would still have the key: do not copy it, or destroy it there too.
        """
        with self._locked():
            found = self.id_of(owner)
            if found is None:
                return False
            was_there = not self._stone(found).exists()
            self._ids.pop(owner, None)
            self._destroy_key(found)
            self._pointer(owner).unlink(missing_ok=True)
            sync_folder(self._folder)
            return was_there

    def destroy_ids(self, ids: Collection[bytes]) -> None:
        """Destroys the keys with these ids, as `destroy` does."""
        wanted = {key_id.hex().encode() for key_id in ids}
        with self._locked():
            for key_id in ids:
                self._destroy_key(key_id)
            for pointer in self._folder.glob("*.owner") if ids else ():
                if _read(pointer) in wanted:
                    pointer.unlink()
            sync_folder(self._folder)

    def _destroy_key(self, key_id: bytes) -> None:
        self._read.pop(key_id, None)
        with suppress(FileExistsError):
            _write_new(self._stone(key_id), b"")
        _destroy(self._file(key_id))

    def id_of(self, owner: str) -> bytes | None:
        """Returns the id of an owner's key, or None if there is none."""
        path, found = self._pointer(owner), b""
        try:
            text = _read(path)
        except FileNotFoundError:
            return None
        with suppress(ValueError):
            found = bytes.fromhex(text.decode("ascii"))
        if len(found) != ID_BYTES:
            raise Unreadable(f"{path.name!r} in {self!r} must have the id of a key")
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one thread of one process make or destroy keys. Without it, one could destroy another's new key."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _file(self, key_id: bytes) -> Path:
        return self._folder / f"{key_id.hex()}.key"

    def _stone(self, key_id: bytes) -> Path:
        """The file that says that a key was destroyed, and is not only missing."""
        return self._folder / f"{key_id.hex()}.destroyed"

    def _pointer(self, owner: str) -> Path:
        return self._folder / f"{sha256(owner.encode()).hexdigest()}.owner"


def aes_gcm(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra("sealed content", "audit") from None
    return AESGCM(key)


def is_refusal(error: Exception) -> bool:
    """Returns whether a cipher refused a text, which is damaged or was made with another key."""
    return isinstance(error, ValueError) or type(error).__name__ == "InvalidTag"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST_FILE)


def _write_new(path: Path, data: bytes) -> None:
    """Writes a new file whole: it appears with its content, on disk, or not at all."""
    draft = path.with_name(f".{uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def _destroy(path: Path) -> None:
    """Overwrites a file and removes it. What the disk itself keeps of it is wrapped by the master key."""
    with suppress(FileNotFoundError):
        with path.open("r+b") as file:
            file.write(os.urandom(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync_folder(path.parent)
