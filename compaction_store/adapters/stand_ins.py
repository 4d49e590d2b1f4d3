"""Converts system messages to user messages and back, because the store accepts no system message as a replacement."""

from __future__ import annotations

from compaction_store.models import Payload

_ROLE = "given_role"


def as_user(payload: Payload) -> Payload:
    """Converts a system message to a user message that keeps the original role in a field; returns others unchanged."""
    if payload.get("role") not in {"system", "developer"}:
        return payload
    return {**payload, "role": "user", _ROLE: payload["role"]}


def as_given(payload: Payload) -> Payload:
    """Reverses `as_user`."""
    if _ROLE not in payload:
        return payload
    return {name: value for name, value in payload.items() if name != _ROLE} | {"role": payload[_ROLE]}
