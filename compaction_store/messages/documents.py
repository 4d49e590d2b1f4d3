"""Checks the JSON documents that a thread stores: payload, meta, metadata, and the body of a record or an event. Pure.

Every JSON parser can read a document that obeys these rules, so one bad row cannot stop a query over a whole tenant.
All parsers get the same result, if they take the last value of a name that a payload repeats. `docs/integrity.md`
states the rules. The SQL functions, `verify`, imports and both verifiers of bundles apply them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Literal, cast

from pydantic_core import from_json, to_json

from compaction_store.errors import InvalidInput
from compaction_store.models import Payload
from compaction_store.models.vocabulary import MOST_BYTES, WITHDRAWALS

Kind = Literal["payload", "meta", "metadata", "body", "receipt"]

# A body may nest deeper than a message, because it holds whole messages.
LEVELS = 200
BODY_LEVELS = 210
DIGITS = 4300
# The largest pos that a receipt may name, with one digit less than the largest integer of SQL.
_MOST_POS = 10**18

_ROLE = re.compile(r"[!-~]{1,64}")
_BRACKETS = b"{[}]"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEP = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}


class _DocumentRefused(ValueError):
    """Raised for a document that breaks the rules. Only this module sees it."""


def fault(kind: Kind, text: str, rule: Callable[[Payload], str | None] = lambda _document: None) -> str | None:
    """Returns the problem of a document as a sentence that does not quote it, or None if it obeys all rules."""
    try:
        return rule(read(kind, text))
    except ValueError as refusal:
        return str(refusal)


def record_fault(kind: str, outcome: str, text: str) -> str | None:
    """Returns the problem of a record's body, or None. Only an applied compaction, no revocation, has a replacement."""

    def applied(body: Payload) -> str | None:
        if kind == "revocation":
            return "the body of a revocation has a replacement" if "replacement" in body else None
        stand_ins = body.get("replacement")
        if type(stand_ins) is not list or any(type(message) is not dict for message in stand_ins):
            return "the body's replacement is not a list of JSON objects"
        return f"the body of a {kind} has a replacement" if stand_ins and kind in WITHDRAWALS else None

    return fault("body", text, applied) if outcome == "applied" else fault("body", text)


def message_fault(role: str | None, text: str) -> str | None:
    """Returns the problem of a message's payload, or None. The role column must have the result of `role_of`."""
    return fault("payload", text, lambda said: None if role_of(said) == role else "the role is not the message's")


def receipt_fault(text: str) -> str | None:
    """Returns the problem of a receipt, or None. A receipt is a document that names the pos of a view."""

    def names_pos(receipt: Payload) -> str | None:
        is_pos = type(pos := receipt.get("pos")) is int and 0 <= pos < _MOST_POS
        return None if is_pos else "the receipt does not have the pos of a view"

    return fault("receipt", text, names_pos)


def role_of(payload: Payload) -> str | None:
    """Returns the value for the role column: a message's role, or None if it has no role that the column can store."""
    role = payload.get("role")
    return role if type(role) is str and _ROLE.fullmatch(role) else None


def read(kind: Kind, text: str) -> dict[str, Any]:
    """Parses a document. If it breaks the rules, raises ValueError with the problem as its text."""
    levels = BODY_LEVELS if kind == "body" else LEVELS
    most = MOST_BYTES[kind]
    try:
        data = text.encode()
        if len(data) > most:
            raise _DocumentRefused(f"is longer than {most:,} bytes")
        if _is_deeper(data, levels):
            raise _DocumentRefused(f"nests deeper than {levels} levels")
        found = _parsed(text, data, unique=kind not in {"payload", "receipt"})
    except _DocumentRefused as refusal:
        raise ValueError(f"the {kind} {refusal}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"the {kind} is not JSON") from None
    if type(found) is not dict:
        raise ValueError(f"the {kind} is not a JSON object")
    return cast("dict[str, Any]", found)


def whole(data: bytes) -> Any:
    """Parses any JSON. Raises ValueError for what is not JSON, and for what other parsers would read differently."""
    try:
        if _is_deeper(data, BODY_LEVELS):
            raise _DocumentRefused(f"nests deeper than {BODY_LEVELS} levels")
        return _DECODE(data.decode())
    except _DocumentRefused as refusal:
        what = str(refusal)
    except UnicodeDecodeError:
        what = "is not UTF-8"
    except (ValueError, RecursionError):
        what = "is not JSON"
    raise ValueError(f"the text {what}")


def parsed(kind: Kind, text: str) -> tuple[dict[str, Any] | None, str | None]:
    """Parses a stored document for a reader. Returns it, or None and its problem. Only `verify` checks all rules."""
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        try:
            return read(kind, text), None
        except ValueError as refusal:
            return None, str(refusal)
    return (found, None) if type(found) is dict else (None, f"the {kind} is not a JSON object")


def _is_deeper(data: bytes, levels: int) -> bool:
    # Count brackets instead of parsing, because the depth that a parser can reach depends on the caller's stack.
    if data.count(b"{") + data.count(b"[") <= levels:
        return False
    without_escapes = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = b"".join(without_escapes.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, outside_strings)), default=0) > levels


def _parsed(text: str, data: bytes, *, unique: bool) -> Any:
    # If the fast parser's result encodes to the same bytes again, no object in the text has the same name twice.
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        return _DECODE(text) if unique else _DECODE_LAST(text)
    return _DECODE(text) if unique and to_json(found) != data else found


def _whole(digits: str) -> int:
    if len(digits.removeprefix("-")) > DIGITS:
        raise _DocumentRefused(f"has an integer of more than {DIGITS:,} digits")
    return int(digits)


def _refuse_constant(_name: str) -> None:
    raise _DocumentRefused("has a number that is NaN or infinite")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DocumentRefused("has a name twice in one object")
    return found


_DECODE = json.JSONDecoder(object_pairs_hook=_once, parse_int=_whole, parse_constant=_refuse_constant).decode
_DECODE_LAST = json.JSONDecoder(parse_int=_whole, parse_constant=_refuse_constant).decode


def record(columns: Mapping[str, Any], body: Payload) -> Payload:
    """Converts a record to the form that the SQL functions take: the columns, the body as text, and a new salt."""
    return {"columns": columns, "salt": os.urandom(16).hex(), "body": body_text(body)}


def body_text(body: Payload) -> str:
    """Returns the JSON text of the body of a record or an event."""
    # Write ASCII with escapes, because UTF-8 cannot encode a lone surrogate.
    text = json.dumps(body, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    if len(text) > MOST_BYTES["body"]:
        raise InvalidInput(f"the body of an entry must be at most {MOST_BYTES['body']:,} bytes, not {len(text):,}")
    return text
