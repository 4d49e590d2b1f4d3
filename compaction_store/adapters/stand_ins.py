"""The messages that an adapter puts in place of others. The store takes no system message there."""

from __future__ import annotations

from compaction_store.models import Payload

_ROLE = "given_role"


def as_user(payload: Payload) -> Payload:
    """Returns a system message as one of the user, with its role beside; other messages as they are."""
    if payload.get("role") not in {"system", "developer"}:
        return payload
    return {**payload, "role": "user", _ROLE: payload["role"]}


def as_given(payload: Payload) -> Payload:
    """Undoes `as_user`."""
    if _ROLE not in payload:
        return payload
    return {name: value for name, value in payload.items() if name != _ROLE} | {"role": payload[_ROLE]}
