"""Lists the changes that a finished draft makes to a view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from compaction_store.jsonable import named
from compaction_store.models import Payload
from compaction_store.models.vocabulary import ReplacingKind
from compaction_store.strategies.truncation import Draft


class Change(NamedTuple):
    """The replacement of a span of messages.

    The seqs `start_seq` and `end_seq` are both inclusive. The kind `truncation` has `messages` as the replacement, the
    kind `summary` has `text`, and the kind `removal` has neither.
    """

    start_seq: int
    end_seq: int
    kind: ReplacingKind
    messages: tuple[Payload, ...] = ()
    allow: frozenset[str] = frozenset()
    reason: str = ""
    text: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`."""
        return named(self)


def changes_of(draft: Draft) -> list[Change]:
    """Returns a change for each removed span, each contiguous run of cut elements and each cut or joined summary."""
    summaries = [_summary(draft, *run) for run in draft.joined]
    return sorted([*summaries, *_runs(draft)], key=lambda change: change.start_seq)


def _summary(draft: Draft, low: int, high: int) -> Change:
    text, tokens, _ = draft.joined[low, high]
    elements = draft.layout.elements
    many = sum(element.is_summary for element in elements[low : high + 1])
    reason = f"{f'{many} summaries joined in' if many > 1 else 'a summary cut to'} {tokens} tokens"
    return Change(elements[low].seq, elements[high].end_seq, "summary", reason=reason, text=text)


def _runs(draft: Draft) -> Iterator[Change]:
    runs = [(low, high, False) for low, high in draft.removed]
    for index in draft.remaining(sorted(draft.forms)):
        if runs and runs[-1][2] and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index, True)
        else:
            runs.append((index, index, True))
    for low, high, cut in sorted(runs):
        start, end = draft.layout.elements[low].seq, draft.layout.elements[high].end_seq
        if cut:
            yield _truncation(draft, start, end, range(low, high + 1))
        else:
            yield Change(start, end, "removal", reason="removed from the middle outwards")


def _truncation(draft: Draft, start: int, end: int, indexes: range) -> Change:
    caps = sorted({draft.cap_of[index] for index in indexes})
    messages = tuple(message for index in indexes for message in draft.forms[index])
    allow = {"system"} if draft.layout.systems.intersection(indexes) else set()
    if draft.layout.last_user in indexes:
        allow.add("last_user")
    reason = f"contents cut to {' and '.join(map(str, caps))} tokens"
    return Change(start, end, "truncation", messages, frozenset(allow), reason)
