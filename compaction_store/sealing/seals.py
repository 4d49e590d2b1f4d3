"""Seals JSON documents with an owner's key, and opens them.

A sealed document keeps what the database itself reads, such as a message's role and the tokens that a reply reports,
and has all of its text in one box: `{"role":"user","sealed":"cs1.…"}`. A box opens only in its tenant, and only in the
places where this module puts boxes: what callers write in the clear may look like a box, and is never opened. The nonce
is a hash of the key and the text, so that a write that is repeated sends the same text again. The chain commits to the
sealed text, so verifying needs no key.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from compaction_store.errors import InvalidInput, InvalidMeta, MessageTooLarge, NotConfigured, Unreadable
from compaction_store.messages import documents
from compaction_store.models.vocabulary import MOST_BYTES
from compaction_store.sealing.keys import ID_BYTES, NONCE_BYTES, Keys, OwnerKey, is_refusal

MARK = '"sealed":"cs1.'
_FIELD = "sealed"
_PREFIX = "cs1."
# The name of a sealed value that is not a document.
_VALUE = ""
# A document with no other fields has all of its text in its box.
_WHOLE = {"role", "usage", _FIELD}
# The fields of a reported usage that stay in the clear, if they are numbers.
_TOKENS = re.compile("[a-z_]{0,50}tokens")
# The fields of an event that are sealed, and those of a record that are not. Auditors filter by these in SQL.
_EVENT = ("reason", "override")
_RECORD = ("authority", "summarizer", "measured", "allow", "duration")


class _Destroyed(Exception):
    """Raised inside this module for a box whose key is gone."""


def is_sealed(document: object) -> bool:
    """Returns whether a document is sealed, and was not opened."""
    return isinstance(document, dict) and isinstance(box := document.get(_FIELD), str) and box.startswith(_PREFIX)


def is_sealed_whole(document: Mapping[str, Any]) -> bool:
    """Returns whether a document is sealed, and has nothing else to say: a message, or most others."""
    return is_sealed(document) and document.keys() <= _WHOLE


class Seals(NamedTuple):
    """Seals and opens the documents of a tenant. Returns an unsealed text as it is, and None if the key is gone."""

    keys: Keys
    tenant: str

    def message(self, key: OwnerKey, text: str, role: str | None) -> str:
        return self._document(key, text, role, "payload", MessageTooLarge)

    def meta(self, key: OwnerKey, text: str | None) -> str | None:
        return None if text is None else self._document(key, text, None, "meta", InvalidMeta)

    def metadata(self, key: OwnerKey, text: str) -> str:
        """Seals each value. The names of the fields stay in the clear, because events say which ones changed."""
        found = {
            name: {_FIELD: self._box(key, json.dumps({_VALUE: value}))} for name, value in json.loads(text).items()
        }
        sealed = _text(found)
        _refuse_large(sealed, "metadata", InvalidMeta)
        return sealed

    def event(self, key: OwnerKey, text: str) -> str:
        """Seals the words in an event's body. What SQL and auditors compute with stays in the clear, in its place."""
        body = json.loads(text)
        inside = {name: body.pop(name) for name in _EVENT if name in body}
        return documents.body_text(body | {_FIELD: self._box(key, _text(inside))}) if inside else text

    def record(self, key: OwnerKey, text: str) -> str:
        """Seals a record's body. Each message of its replacement keeps its role, which the database checks."""
        body = json.loads(text)
        clear = _usage(body) | {name: body.pop(name) for name in _RECORD if name in body}
        if isinstance(messages := body.pop("replacement", None), list):
            clear["replacement"] = [json.loads(self.message(key, _text(m), documents.role_of(m))) for m in messages]
        return documents.body_text(clear | {_FIELD: self._box(key, _text(body))})

    def records(self, key: OwnerKey, text: str) -> str:
        """Seals the bodies in the records of a commit."""
        found = json.loads(text)
        for record in found:
            record["body"] = self.record(key, record["body"])
        return json.dumps(found)

    def opened_message(self, text: str) -> str | None:
        """Opens a message or a meta. One with more fields than a sealed one has is what somebody said."""
        found = _read(text)
        try:
            return self._open(found[_FIELD]) if is_sealed_whole(found) else text
        except _Destroyed:
            return None

    def opened_body(self, text: str) -> str | None:
        """Opens the body of an event or a record, and the messages in its replacement."""
        found = _read(text)
        if not is_sealed(found) or is_sealed_whole(found):
            return self.opened_message(text)
        try:
            inside = json.loads(self._open(found.pop(_FIELD)))
            if isinstance(messages := found.get("replacement"), list):
                found["replacement"] = [
                    json.loads(self._open(m[_FIELD])) if is_sealed_whole(m) else m for m in messages
                ]
        except _Destroyed:
            return None
        return _text(found | inside)

    def opened_metadata(self, text: str) -> str | None:
        """Opens each value. One that cannot be opened stays as it is, because it must not stop a list of threads."""
        found = _read(text)
        for name, value in found.items():
            if is_sealed(value):
                try:
                    found[name] = json.loads(self._open(value[_FIELD]))[_VALUE]
                except _Destroyed:
                    return None
                except (NotConfigured, Unreadable):
                    continue
        return _text(found)

    def _document(self, key: OwnerKey, text: str, role: str | None, kind: str, refused: type[InvalidInput]) -> str:
        kept: dict[str, Any] = {} if role is None else {"role": role}
        if '"usage":{' in text:
            kept |= _usage(json.loads(text))
        sealed = _text(kept | {_FIELD: self._box(key, text)})
        _refuse_large(sealed, kind, refused)
        return sealed

    def _box(self, key: OwnerKey, text: str) -> str:
        context, data = self._context(key.id), text.encode()
        nonce = key.nonce(context, data)
        return _PREFIX + urlsafe_b64encode(key.id + nonce + key.cipher.encrypt(nonce, data, context)).decode()

    def _open(self, box: str) -> str:
        try:
            data = urlsafe_b64decode(box.removeprefix(_PREFIX))
        except ValueError:
            data = b""
        key_id, nonce, sealed = data[:ID_BYTES], data[ID_BYTES : ID_BYTES + NONCE_BYTES], data[ID_BYTES + NONCE_BYTES :]
        if len(nonce) == NONCE_BYTES:
            key = self.keys.by_id(key_id)
            if key is None:
                raise _Destroyed
            try:
                return str(key.cipher.decrypt(nonce, sealed, self._context(key_id)), "utf-8")
            except Exception as error:
                if not is_refusal(error):
                    raise
        raise Unreadable("a sealed text does not fit its key and its tenant: it was changed or copied; run verify")

    def _context(self, key_id: bytes) -> bytes:
        """Returns what a box is bound to."""
        return b"%b\0%b\0" % (key_id, self.tenant.encode())


def _text(document: object) -> str:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def _read(text: str) -> dict[str, Any]:
    """Reads a document. Returns an empty one for a text that is none, which a damaged row may have."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _usage(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a document that reports its usage, with only the numbers of tokens."""
    if not isinstance(usage := document.get("usage"), dict):
        return {}
    return {"usage": {
        name: value for name, value in usage.items()
        if type(value) is int and 0 <= value < 2**63 and _TOKENS.fullmatch(name)
    }}  # fmt: skip


def _refuse_large(sealed: str, kind: str, refused: type[InvalidInput]) -> None:
    if len(sealed) > MOST_BYTES[kind]:
        raise refused(f"the {kind} must have at most {MOST_BYTES[kind]:,} bytes when it is sealed, not {len(sealed):,}")
