"""The results of probes: a question about a compaction, its answer, and the place of the text that it is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compaction_store.jsonable import AsDict
from compaction_store.module_data import ModuleData

ProbeType = Literal[
    "needed_later", "used_name", "re_derivation", "standing_order", "invented", "explained", "stale", "artifact",
    "planted_rule", "planted_constraint", "planted_fact", "planted_goal", "planted_preference", "asked_recall",
    "asked_artifact", "asked_continuation", "asked_decision", "asked_whole",
]  # fmt: skip

#: The question of each type of probe. Each type is counted separately, and there is no total.
PROBE_TYPES: dict[ProbeType, str] = ModuleData(__file__).values  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Place(AsDict):
    """The place of a text: characters `start` to `end` of the text at `field`, in a message or in a record's summary.

    For a message, `seq` is set and `record` is None. For a summary, `record` is set and `seq` is None. A field is a
    path such as `content[1].text`.
    """

    field: str
    start: int
    end: int
    seq: int | None = None
    record: int | None = None


@dataclass(frozen=True, slots=True)
class Probe(AsDict):
    """One question and its answer. `kept` is False for a loss, and for text that should not be in a summary.

    `record` is the number of the compaction that the question is about. `text` is the text in question, from a message
    or, for the types `invented` and `stale`, from the summary. A text that looks like a credential is masked, and
    `is_secret` is True. `place` is the place of the text. `again` is the later place where a name was needed, a call
    was repeated or a value was replaced. `detail` says more, such as where the text was kept.
    """

    type: ProbeType
    kind: str
    kept: bool
    record: int
    place: Place
    text: str = field(repr=False)
    again: Place | None = None
    detail: str | None = None
    is_secret: bool = False
    tokens: int | None = None
    seconds: float | None = None

    @property
    def is_loss(self) -> bool:
        """Whether something was lost or invented. A name in a list is no loss before it is needed."""
        return not self.kept and self.type != "explained"
