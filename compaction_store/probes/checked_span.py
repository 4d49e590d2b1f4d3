"""The span whose summary is checked, as the checks read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from compaction_store.messages import framing
from compaction_store.models import Element
from compaction_store.models.probe import Place, Probe, ProbeType
from compaction_store.probes.facts import ThreadFacts, ThreadMessage
from compaction_store.probes.thread_probe import Fold, ThreadProbe

# The record of the summary has no number yet.
_NO_NUMBER = 0


class Source(Protocol):
    """The request to the summarizer whose summary is checked."""

    @property
    def elements(self) -> tuple[Element, ...]: ...
    @property
    def view(self) -> Any: ...
    @property
    def start_seq(self) -> int: ...
    @property
    def end_seq(self) -> int: ...
    @property
    def unquoted_rest(self) -> Sequence[Element] | None: ...


class CheckedSpan:
    """The span whose summary is checked. It answers probes as if a given text were the span's summary."""

    def __init__(self, request: Source) -> None:
        self._request = request
        self.start_seq, self.end_seq = request.start_seq, request.end_seq
        self._known: dict[str, tuple[ThreadProbe, list[Probe]]] = {}

    @cached_property
    def _facts(self) -> ThreadFacts:
        # Include the rest of the view, because names in it are not lost. Checks quote nothing from it.
        rest = self._request.unquoted_rest or ()
        elements = sorted((*self._request.elements, *rest), key=lambda element: element.seq)
        return ThreadFacts(
            ThreadMessage(seq, payload, is_summary=element.is_summary)
            for element in elements
            for seq, payload in zip(range(element.seq, element.end_seq + 1), element.messages, strict=False)
        )

    def probes(self, text: str, *types: ProbeType) -> list[Probe]:
        """Returns the probes of the given types, answered as if `text` were the span's summary."""
        return [probe for probe in self._probed(text)[1] if probe.type in types]

    def used_names(self, text: str, *, calls: int) -> list[Probe]:
        """Returns a probe for each name that a user, or at least `calls` calls, used in the span: is it in the view?"""
        return list(self._probed(text)[0].used(self.start_seq, self.end_seq, record=_NO_NUMBER, calls=calls))

    def text_at(self, place: Place) -> str | None:
        """Returns the text at a place in a message of the span, or None if it cannot be read."""
        facts = None if place.seq is None else self._facts.messages.get(place.seq)
        value: Any = None if facts is None else facts.payload
        for step in place.field.replace("]", "").replace("[", ".").split("."):
            if isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, Mapping):
                value = value.get(step)
            else:
                return None
        return value if isinstance(value, str) else None

    def names_secret(self, text: str) -> bool:
        """Returns whether a text has a word that a user or a call of the view named as a credential."""
        return self._facts.names_secret(text)

    def _probed(self, text: str) -> tuple[ThreadProbe, list[Probe]]:
        if text not in self._known:
            probe = ThreadProbe(self._facts)
            for seq in self._facts.messages:
                probe.append(seq)
            framed = framing.frame(text, self.start_seq, self.end_seq)
            seqs = list(self._facts.messages)
            shown = (seqs[0], seqs[-1]) if seqs and getattr(self._request.view, "was_shown", False) else None
            probe.fold(Fold(_NO_NUMBER, self.start_seq, self.end_seq, (framed,), sources=shown))
            self._known[text] = probe, probe.finish()
        return self._known[text]
