"""Seals JSON documents with an owner's key, and opens them.

A sealed document keeps what the database itself reads, such as a message's role and a reply's reported usage, and has
all of its text in one box: `{"role":"user","sealed":"cs1.…"}`. The nonce is a hash of the key and the text, so that a
write that is repeated sends the same text again. The chain commits to the sealed text, so verifying needs no key.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from hashlib import sha256
from typing import Any

from compaction_store.errors import InvalidInput, InvalidMeta, MessageTooLarge, Unreadable
from compaction_store.messages import documents
from compaction_store.models.limits import MOST_BYTES
from compaction_store.sealing.keys import ID_BYTES, NONCE_BYTES, Keys, OwnerKey, aes_gcm

MARK = '"sealed":"cs1.'
_FIELD = "sealed"
_PREFIX = "cs1."
# The name of a sealed value that is not a document.
_VALUE = ""
_WHOLE = re.compile(r'\{(?:"role":"[^"\\]*",)?(?:"usage":\{[^{}]*\},)?"sealed":"cs1\.([A-Za-z0-9_=-]+)"\}')
# The fields of an event that are sealed, and those of a record that are not. Auditors filter by these in SQL.
_EVENT = ("reason", "override")
_RECORD = ("authority", "usage", "summarizer", "measured", "allow", "duration")
_MOST_CIPHERS = 10_000


class Destroyed(Exception):
    """Raised inside this module for a box whose key is gone."""


def is_sealed(document: object) -> bool:
    """Returns whether a document is sealed, and was not opened."""
    return isinstance(document, dict) and isinstance(box := document.get(_FIELD), str) and box.startswith(_PREFIX)


class Seals:
    """Seals and opens the documents of a store with the keys of their owners."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._ciphers: OrderedDict[bytes, tuple[Any, bytes]] = OrderedDict()

    def message(self, key: OwnerKey, text: str, role: str | None) -> str:
        return self._document(key, text, role, "payload", MessageTooLarge)

    def meta(self, key: OwnerKey, text: str | None) -> str | None:
        return None if text is None else self._document(key, text, None, "meta", InvalidMeta)

    def metadata(self, key: OwnerKey, text: str) -> str:
        """Seals each value. The names of the fields stay in the clear, because events say which ones changed."""
        found = {
            name: {_FIELD: self._box(key, json.dumps({_VALUE: value}))} for name, value in json.loads(text).items()
        }
        sealed = json.dumps(found, separators=(",", ":"))
        _refuse_large(sealed, "metadata", InvalidMeta)
        return sealed

    def event(self, key: OwnerKey, text: str) -> str:
        """Seals the words in an event's body. What SQL and auditors compute with stays in the clear, in its place."""
        body = json.loads(text)
        inside = {name: body.pop(name) for name in _EVENT if name in body}
        return documents.body_text(body | {_FIELD: self._box(key, json.dumps(inside))}) if inside else text

    def record(self, key: OwnerKey, text: str) -> str:
        """Seals a record's body. Each message of its replacement keeps its role, which the database checks."""
        body = json.loads(text)
        clear = {name: body.pop(name) for name in _RECORD if name in body}
        if isinstance(messages := body.pop("replacement", None), list):
            clear["replacement"] = [
                json.loads(self.message(key, json.dumps(m), documents.role_of(m))) for m in messages
            ]
        return documents.body_text(clear | {_FIELD: self._box(key, json.dumps(body))})

    def records(self, key: OwnerKey, text: str) -> str:
        """Seals the bodies in the records of a commit."""
        found = json.loads(text)
        for record in found:
            record["body"] = self.record(key, record["body"])
        return json.dumps(found)

    def opened(self, text: str) -> str | None:
        """Returns a stored text with every box opened, or None if the key of a box was destroyed."""
        try:
            if whole := _WHOLE.fullmatch(text):
                return self._open(whole[1])
            return json.dumps(self._opened(json.loads(text)), ensure_ascii=True, separators=(",", ":"))
        except Destroyed:
            return None

    def _opened(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._opened(item) for item in value]
        if not isinstance(value, dict):
            return value
        if not is_sealed(value):
            return {name: self._opened(item) for name, item in value.items()}
        clear = {name: self._opened(item) for name, item in value.items() if name != _FIELD}
        inside = json.loads(self._open(value[_FIELD].removeprefix(_PREFIX)))
        return inside[_VALUE] if inside.keys() == {_VALUE} else clear | inside

    def _document(self, key: OwnerKey, text: str, role: str | None, kind: str, refused: type[InvalidInput]) -> str:
        kept: dict[str, Any] = {} if role is None else {"role": role}
        if '"usage":{' in text and isinstance(usage := json.loads(text).get("usage"), dict):
            kept["usage"] = usage
        sealed = json.dumps(kept | {_FIELD: self._box(key, text)}, separators=(",", ":"))
        _refuse_large(sealed, kind, refused)
        return sealed

    def _box(self, key: OwnerKey, text: str) -> str:
        cipher, secret = self._cipher(key)
        data = text.encode()
        nonce = hmac.digest(secret, data, sha256)[:NONCE_BYTES]
        return _PREFIX + urlsafe_b64encode(key.id + nonce + cipher.encrypt(nonce, data, key.id)).decode()

    def _open(self, box: str) -> str:
        try:
            data = urlsafe_b64decode(box)
        except ValueError:
            data = b""
        key_id, nonce, sealed = data[:ID_BYTES], data[ID_BYTES : ID_BYTES + NONCE_BYTES], data[ID_BYTES + NONCE_BYTES :]
        key = self.keys.by_id(key_id)
        if key is None:
            raise Destroyed
        try:
            return str(self._cipher(key)[0].decrypt(nonce, sealed, key_id), "utf-8")
        except Exception as error:
            if type(error).__name__ != "InvalidTag":
                raise
        raise Unreadable("a sealed text does not fit its key: it was changed; run verify")

    def _cipher(self, key: OwnerKey) -> tuple[Any, bytes]:
        """Returns the cipher of a key, and the secret that its nonces are made with."""
        found = self._ciphers.get(key.secret)
        if found is None:
            found = aes_gcm(key.secret), hmac.digest(key.secret, b"compaction-store nonce", sha256)
            self._ciphers[key.secret] = found
            if len(self._ciphers) > _MOST_CIPHERS:
                self._ciphers.popitem(last=False)
        return found


def _refuse_large(sealed: str, kind: str, refused: type[InvalidInput]) -> None:
    if len(sealed) > MOST_BYTES[kind]:
        raise refused(f"the {kind} must have at most {MOST_BYTES[kind]:,} bytes when it is sealed, not {len(sealed):,}")
