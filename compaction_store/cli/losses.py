"""Writes the losses and inventions of a compaction as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compaction_store.cli.exits import misuse
from compaction_store.cli.output import Column, Output, line

if TYPE_CHECKING:
    from compaction_store import Reader
    from compaction_store.evaluation import Replayed
    from compaction_store.probes import Probe, ProbeType


@dataclass(frozen=True)
class Loss:
    """A failed probe, with the name of its session."""

    session: str
    probe: Probe

    def as_dict(self) -> dict[str, Any]:
        return {"thread_id": self.session, **self.probe.as_dict()}


def losses_of(sessions: Sequence[Replayed]) -> list[Loss]:
    """Returns all failed probes. The probes that cost the most tokens come first."""
    found = [Loss(run.thread_id, probe) for run in sessions for probe in run.probes if not probe.kept]
    return sorted(found, key=lambda loss: (-(loss.probe.tokens or 0), loss.session, loss.probe.record))


def counts(run: Replayed) -> dict[ProbeType, tuple[int, int]]:
    """Returns, for each type of probe, the number of probes and the number of failed probes."""
    from compaction_store.probes import ProbeType

    asked, failed = Counter[ProbeType](), Counter[ProbeType]()
    for probe in run.probes:
        asked[probe.type] += 1
        failed[probe.type] += not probe.kept
    return {kind: (asked[kind], failed[kind]) for kind in asked}


def repeated_tokens(run: Replayed) -> int:
    """Returns the number of tokens of results that the agent fetched again because they had been folded."""
    return sum(probe.tokens or 0 for probe in run.probes if probe.type == "re_derivation" and not probe.kept)


def sentence(probe: Probe) -> str:
    """Returns a sentence that describes a failed probe and quotes its text."""
    where = "" if probe.place.seq is None else f" of seq {probe.place.seq:,}"
    again = "" if probe.again is None or probe.again.seq is None else f", and came again at seq {probe.again.seq:,}"
    text = f"“{line(probe.text)}”"
    record = f"record {probe.record}"
    return {
        "needed_later": f"{text}{where} was lost by {record}{again}",
        "re_derivation": f"{text}{where} was folded by {record}{again}, for {probe.tokens or 0:,} tokens",
        "standing_order": f"the order {text}{where} is not in {record}",
        "invented": f"{record} has {text}, and no message has it",
        "stale": f"{record} has {text}, and a newer value{where} replaced it",
        "artifact": f"the file {text}{where} is not in {record}",
    }.get(probe.type, f"{text}{where} was lost by {record}")


def read(store: Reader, thread: str, seq: int | None) -> list[Loss]:
    """Returns the losses and inventions of a thread's own compactions, or only the losses of one message."""
    from compaction_store.errors import InvalidInput
    from compaction_store.evaluation import read_thread
    from compaction_store.evaluation.evaluator import lost_in

    recorded = read_thread(store, thread)
    try:
        found = lost_in(recorded)
    except InvalidInput as error:
        raise misuse(f"cannot be used for this thread: {error}", "--lost") from None
    return [Loss(thread, probe) for probe in found if seq is None or probe.place.seq == seq]


def show(out: Output, losses: Sequence[Loss], *, text: bool) -> None:
    """Prints losses in the order of their records. Their texts are content of messages, so only `text` prints them."""
    ordered = sorted(losses, key=lambda loss: (loss.probe.record, loss.probe.place.seq or 0))
    columns: list[str | Column] = ["type", "kind", *(Column(name, right=True) for name in ("record", "seq", "again"))]
    rows = []
    for loss in ordered:
        probe = loss.probe
        value = {name: one for name, one in loss.as_dict().items() if text or name != "text"}
        seqs = (probe.place.seq, None if probe.again is None else probe.again.seq)
        shown = ["" if one is None else f"{one:,}" for one in seqs]
        rows.append((value, [probe.type, line(probe.kind), f"{probe.record:,}", *shown]))
    out.rows(columns, rows, "nothing was lost or invented")
