"""Proves that all threads of a tenant are erased, and signs that, in a note like a checkpoint, with JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compaction_store.checkpoints import notes
from compaction_store.checkpoints.compare import EarlierHeads
from compaction_store.checkpoints.heads import HeadsWriter
from compaction_store.checkpoints.keys import Signer, public_key
from compaction_store.checkpoints.make import StoredThreads, prove
from compaction_store.errors import CheckpointRefused, Conflict, InvalidCheckpoint
from compaction_store.integrity.rows import ThreadHead
from compaction_store.jsonable import AsDict
from compaction_store.models import Event, Payload

_STATEMENT = re.compile(r"([!-~]{1,1000})\nremoval\n(\{[ -~]*\})\n")
#: The beginning of a statement, to tell its file from others.
BEGINNING = re.compile(rb"[!-~]{1,1000}\nremoval\n\{")
_OF_NOTE = ("note", "name", "key")
_OF_EVENT = ("actor", "login", "pos", "created_at")


@dataclass(frozen=True, slots=True)
class Removal(AsDict):
    """The removal of a tenant: the numbers of its erased threads, their messages and records, and of destroyed keys.

    `root` and `heads` are those of a checkpoint over the tenant at this moment. `login`, `pos` and `created_at` are
    those of the event in the log of the database. `note` is the signed statement, `name` and `key` are its signer's.
    Of a dry run, there are only the numbers of what is left to erase.
    """

    tenant: str
    threads: int
    messages: int
    records: int
    keys: int = 0
    root: str = ""
    heads: str = ""
    reason: str = ""
    legal_basis: str | None = None
    authority: Payload | None = None
    actor: str | None = None
    login: str = ""
    pos: int = 0
    created_at: datetime | None = None
    note: str = field(default="", repr=False)
    name: str = ""
    key: bytes = field(default=b"", repr=False)


def body(removal: Removal) -> dict[str, Any]:
    """Returns the body of the event."""
    names = [each.name for each in fields(removal) if each.name not in _OF_NOTE + _OF_EVENT]
    return {name: getattr(removal, name) for name in names}


def proved(tenant: str, stored: StoredThreads) -> Removal:
    """Computes the chains of all threads of a tenant, and counts them. Refuses a thread that is not erased."""
    stubs: list[tuple[int, int]] = []
    left = 0

    def see(state: ThreadHead) -> None:
        nonlocal left
        left += state.erased_pos is None and not state.is_log
        stubs.extend([] if state.is_log else [(state.last_seq, state.last_number)])

    with TemporaryDirectory() as folder:
        writer = HeadsWriter(Path(folder))
        try:
            prove(stored, EarlierHeads(()), writer, see)
        finally:
            writer.discard()
    if left:
        raise Conflict(f"{left:,} threads were opened meanwhile: stop the tenant's programs, and repeat the call")
    if not stubs:
        raise CheckpointRefused("the tenant has no threads; nothing was signed", findings=())
    messages, records = map(sum, zip(*stubs, strict=True))
    return Removal(tenant, len(stubs), messages, records, root=writer.tree.root().hex(), heads=writer.hash)


def sign(signer: Signer, removal: Removal, event: Event) -> Removal:
    """Signs the statement of a removal that an event records."""
    removal = replace(removal, **{name: getattr(event, name) for name in _OF_EVENT})
    said = {name: value for name, value in removal.as_dict().items() if name not in _OF_NOTE}
    text = f"{notes.origin(signer.name, removal.tenant)}\nremoval\n{json.dumps(said, separators=(',', ':'))}\n"
    return check_removal(notes.with_signature(signer, text), signer.key)


def check_removal(statement: str, *keys: bytes | str) -> Removal:
    """Reads a statement, and checks that one of the public keys signed it. They must not come with the statement."""
    if type(statement) is not str:
        raise InvalidCheckpoint("the text is not the statement of a removal")
    text, name, key = notes.signed_by(statement, *map(public_key, keys))
    found = _STATEMENT.fullmatch(text)
    try:
        said: Any = json.loads(found[2] if found else "")
        if said.keys() != {each.name for each in fields(Removal)} - {*_OF_NOTE}:
            raise ValueError
        is_of_tenant = found is not None and found[1] == notes.origin(name, said["tenant"])
        made_at = datetime.fromisoformat(said.pop("created_at"))
        removal = Removal(**said, created_at=made_at, note=statement, name=name, key=key)
    except (ValueError, TypeError, RecursionError, AttributeError):
        raise InvalidCheckpoint("the text is not the statement of a removal") from None
    if not is_of_tenant:
        raise InvalidCheckpoint("the statement's origin names another tenant than the statement")
    return removal
