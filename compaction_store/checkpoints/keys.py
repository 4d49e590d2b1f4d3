"""Ed25519 keys: signers, and checks of public keys and signatures. `cryptography` is imported on first use."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Protocol, Self

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput, MissingExtra

KEY_BYTES = 32
_ED25519 = b"\x01"
_FIELD = 2**255 - 19
# The y coordinates of the points of small order. With such a point as the key, one signature is valid for any text.
_ORDER_8 = 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
WEAK = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})
_KEY_NAME = re.compile(r"[!-*,-~]{1,100}")


class Signer(Protocol):
    """A signer of notes with Ed25519: a `SigningKey`, or your own class around a key that never leaves its device."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> bytes:
        """The public key: 32 bytes."""

    def sign(self, data: bytes, /) -> bytes: ...


class SigningKey:
    """An Ed25519 key in memory, with the name of the signer, such as "example.org/audit"."""

    def __init__(self, name: str, private: Any) -> None:
        if type(name) is not str or not _KEY_NAME.fullmatch(name):
            raise InvalidInput(
                "name must be 1 to 100 printable ASCII characters without a space or a plus sign" + other(name)
            )
        self.name = name
        self._private = private
        self.key: bytes = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey({self.name!r}, key={self.key.hex()})"

    @classmethod
    def generate(cls, name: str) -> Self:
        return cls(name, _ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, name: str, private: bytes) -> Self:
        """Restores a key from the 32 bytes that `private_bytes` returned."""
        if type(private) is not bytes or len(private) != KEY_BYTES:
            given = f"{len(private)} bytes" if type(private) is bytes else type(private).__name__
            raise InvalidInput(f"private must be the {KEY_BYTES} bytes of a private key, not {given}")
        return cls(name, _ed25519().Ed25519PrivateKey.from_private_bytes(private))

    def private_bytes(self) -> bytes:
        """Returns the private key. Keep it where nobody who can write to the database can read it."""
        private: bytes = self._private.private_bytes_raw()
        return private

    def sign(self, data: bytes, /) -> bytes:
        signature: bytes = self._private.sign(data)
        return signature


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra("signing and checking checkpoints", "audit") from None
    return ed25519


def verifies(key: bytes, signature: bytes, data: bytes) -> bool:
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 — an extra

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_signer(signer: object) -> None:
    if isinstance(signer, type) or not all(hasattr(signer, part) for part in ("name", "key", "sign")):
        raise InvalidInput(f"signer must be a SigningKey, or have a name, a key and a method sign{other(signer)}")
    public_key(signer.key)  # type: ignore[attr-defined]


def key_hash(name: str, key: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + _ED25519 + key).digest()[:4]


def public_key(given: object) -> bytes:
    """Returns a public key given as 32 bytes or in hexadecimal. A malformed or weak key raises InvalidInput."""
    key = given
    if isinstance(given, str):
        try:
            key = bytes.fromhex(given)
        except ValueError:
            key = b""
    if type(key) is not bytes or len(key) != KEY_BYTES:
        size = (
            f"{len(given)} {'bytes' if isinstance(given, bytes) else 'characters'}"
            if isinstance(given, bytes | str)
            else type(given).__name__
        )
        raise InvalidInput(
            f"a public key must be {KEY_BYTES} bytes, or their {2 * KEY_BYTES} hexadecimal digits, not {size}"
        )
    y = int.from_bytes(key, "little") % 2**255
    if y >= _FIELD or y in WEAK:
        raise InvalidInput("a public key must be canonical and must not be of small order")
    return key
