"""Checks a summary, asks once for a repair, and appends lines with the items that are still missing.

The outcome is kept for the record. A text that looks like a credential is neither sent to the summarizer nor appended,
and is counted as exempt. If a check raises an error, or returns something other than probes, the summary has not passed
it, and the record names the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compaction_store.compaction.checks import Check
from compaction_store.compaction.summary_calls import without_text
from compaction_store.compaction.summary_request import Repair, Request
from compaction_store.errors import ChecksFailed, InvalidCallback, own_text
from compaction_store.language.secrets import has_secret
from compaction_store.models import Payload, Summary
from compaction_store.models.probe import Probe
from compaction_store.tokens import MARK
from compaction_store.waiting import Call, Work

# The maximum numbers of lines that a summarizer is given, and of examples in a record.
_MOST_LINES = 60
_MOST_KEPT = 40
_LONGEST = 400
_HEAD = "Word for word from the messages:"
_UNFOUNDED = "In none of the messages:"
# The maximum share of the room for appended lines, if the summary must be cut to make room for them.
_SHARE = 0.5
_CUT = f"\n{MARK} [shortened] {MARK}\n"

# Asks the summarizer for a repair.
Again = Callable[[Request], Work[Summary]]


@dataclass(frozen=True, slots=True)
class _CheckOutcome:
    """The outcome of a check of a text: an `error` if it failed. `exempt` counts credentials, which `lost` lacks."""

    check: Check
    asked: int
    lost: list[Probe]
    exempt: int
    passes: bool
    error: Payload | None = None


def with_checks(ask: Again, request: Request, checks: Sequence[Check], *, can_repair: bool) -> Work[Summary]:
    """Asks a summarizer for a summary, and runs its own checks on it. The caller checks a repair itself."""
    summary = yield from ask(request)
    if not checks or request.repair is not None:
        return summary
    return (yield from checked(request, summary, checks, again=ask if can_repair else None))


def checked(
    request: Request, summary: Summary, checks: Sequence[Check], *, again: Again | None = None, cut: bool = False
) -> Work[Summary]:
    """Checks a summary. Returns it with missing lines appended, and with the outcome in its field `checks`.

    `again` asks for a repair, and is called at most once. With `cut`, the summary is shortened if it is too long, or if
    the lines to append need its room. Raises ChecksFailed if a strict check fails.
    """
    if not checks:
        return summary
    # The probes are a tenth of what a store needs, and few stores check summaries.
    from compaction_store.probes.checked_span import CheckedSpan  # noqa: PLC0415

    span = CheckedSpan(request)
    summary = _shortened(request, summary) if cut else summary
    # A check may take long, so on an event loop it runs in a thread.
    outcomes = yield Call(_ask, checks, span, summary.text)
    repair: Payload | None = None
    if again is not None and summary.replacement is None and not all(one.passes for one in outcomes):
        summary, outcomes, repair = yield from _repaired(request, summary, outcomes, checks, span, again)
    failed = [one for one in outcomes if one.check.strict and not one.passes]
    lines: list[str] = []
    if not failed and summary.replacement is None:
        lines, summary = _completed(request, summary, outcomes, span, cut=cut)
    document = _document(outcomes, (yield Call(_ask, checks, span, summary.text)) if lines else outcomes, lines, repair)
    known = summary.checks or {}
    document["outcomes"] = [*known.get("outcomes", []), *document["outcomes"]]
    summary = replace(summary, checks={**known, **document})
    if failed:
        error = ChecksFailed("; ".join(map(_failure, failed)), start_seq=request.start_seq, end_seq=request.end_seq)
        error.attempted = without_text(summary)
        raise error
    return summary


def _ask(checks: Sequence[Check], span: Any, text: str) -> list[_CheckOutcome]:
    return [_outcome(check, span, text) for check in checks]


def _outcome(check: Check, span: Any, text: str) -> _CheckOutcome:
    try:
        probes = _probes(check, span, text)
        lost = [probe for probe in probes if not probe.kept]
        named = [probe for probe in lost if not probe.is_secret]
        passes = bool(check.passes(len(probes), len(named)))
    except Exception as error:  # noqa: BLE001 — a check may be the caller's, and must not cost the summary
        # Only the text of this package's own errors is recorded: other texts may quote the messages.
        said = {"type": type(error).__name__, "text": own_text(error)}
        return _CheckOutcome(check, 0, [], 0, passes=False, error=said)
    return _CheckOutcome(check, len(probes), named, len(lost) - len(named), passes)


def _probes(check: Check, span: Any, text: str) -> list[Probe]:
    found: Any = check.probes(span, text)
    if inspect.iscoroutine(found):
        found.close()
    try:
        probes = list(found)
    except TypeError:
        if hasattr(type(found), "__iter__"):
            # The check itself raised the error.
            raise
        probes = [found]
    if not all(isinstance(probe, Probe) for probe in probes):
        kinds = ", ".join(sorted({type(probe).__name__ for probe in probes}))
        raise InvalidCallback(f"a check's probes must return Probe values, not {kinds}")
    return probes


def _failure(one: _CheckOutcome) -> str:
    if one.error is not None:
        return f"{one.check.name}: it raised {one.error['type']}"
    return f"{one.check.name}: {len(one.lost)} of {one.asked} failed"


def _repaired(
    request: Request, summary: Summary, outcomes: list[_CheckOutcome], checks: Sequence[Check], span: Any, again: Again
) -> Work[tuple[Summary, list[_CheckOutcome], Payload]]:
    """Asks for a repair. Returns the better of the summary and its repair, with the cost of both."""
    lines, unfounded = _lines(outcomes, span)
    before = _failures(outcomes)
    asked = replace(request, repair=Repair(summary.text, tuple(lines[:_MOST_LINES]), tuple(unfounded[:_MOST_LINES])))
    try:
        second = yield from again(asked)
    except Exception as error:  # noqa: BLE001 — the first summary can be used in any case
        spent = getattr(error, "attempted", None)
        cost = spent.usage if isinstance(spent, Summary) else None
        return replace(summary, usage=_sum(summary.usage, cost)), outcomes, {"failed": type(error).__name__}
    seconds = (summary.duration or 0) + (second.duration or 0)
    provider = _joined_lists(summary.provider, second.provider)
    both = replace(summary, usage=_sum(summary.usage, second.usage), duration=seconds, provider=provider)
    later = outcomes
    if second.text.strip() and second.replacement is None:
        later = yield Call(_ask, checks, span, second.text)
    after = _failures(later)
    document: Payload = {"failures_before": before, "failures_after": after, "taken": after < before}
    if second.prompt not in (None, summary.prompt):
        document["prompt"] = second.prompt
    if after >= before:
        # Keep the original, unless the repair has fewer failures.
        return both, outcomes, document
    coverage = {**(both.coverage or {}), **(second.coverage or {})}
    return replace(both, text=second.text, coverage=coverage), later, document


def _failures(outcomes: Sequence[_CheckOutcome]) -> int:
    return sum(len(one.lost) for one in outcomes if not one.passes)


def _sum(one: Payload | None, other: Payload | None) -> Payload | None:
    """Adds the integers of two usages. Other values come from the first usage that has them."""
    if one is None or other is None:
        return one if other is None else other
    ints = {name for usage in (one, other) for name, value in usage.items() if type(value) is int}
    return {**other, **one, **{name: _int(one.get(name)) + _int(other.get(name)) for name in ints}}


def _int(value: object) -> int:
    return value if type(value) is int else 0


def _joined_lists(one: Payload | None, other: Payload | None) -> Payload | None:
    """Merges the provider's data of two calls. Lists, such as lists of answers, are concatenated."""
    if one is None or other is None:
        return one if other is None else other
    names = [name for name in one if isinstance(one[name], list) and isinstance(other.get(name), list)]
    return {**other, **one, **{name: [*one[name], *other[name]] for name in names}}


def _lines(outcomes: Sequence[_CheckOutcome], span: Any) -> tuple[list[str], list[str]]:
    """Returns the lines that a summary lacks, with their seqs, and the summary's texts that are in no source."""
    lines: list[str] = []
    named: dict[int, list[str]] = {}
    unfounded: list[str] = []
    for probe in (probe for one in outcomes if not one.passes for probe in one.lost):
        text = " ".join(probe.text.split())[:_LONGEST]
        if probe.type == "invented":
            unfounded.append(text)
        elif probe.place.seq is None:
            lines.extend(_newer(probe, span))
        elif probe.type in ("used_name", "artifact"):
            gone = f" ({probe.kind})" if probe.type == "artifact" and probe.kind != "written" else ""
            named.setdefault(probe.place.seq, []).append(text + gone)
        else:
            # An order from an earlier summary already begins with its seq.
            lines.append(text if text.startswith("[") else f"[{probe.place.seq}] user: {text}")
    lines += [f"[{seq}] named: {', '.join(dict.fromkeys(texts))}" for seq, texts in sorted(named.items())]
    return list(dict.fromkeys(lines)), list(dict.fromkeys(unfounded))


def _newer(probe: Probe, span: Any) -> list[str]:
    """Returns the line with the newer value, for a probe that found an outdated value in the summary."""
    place = probe.again
    whole = None if place is None else span.text_at(place)
    if place is None or whole is None:
        return []
    start = whole.rfind("\n", 0, place.start) + 1
    end = whole.find("\n", place.end)
    end = end if end >= 0 else len(whole)
    # A cut line may lack the word that says that a value is a credential.
    if has_secret(whole[start:end]) or span.names_secret(whole[start:end]):
        return []
    line = whole[max(start, place.start - _LONGEST // 2) : end].strip()[:_LONGEST]
    return [f"[{place.seq}] {' '.join(line.split())}"]


def _completed(
    request: Request, summary: Summary, outcomes: Sequence[_CheckOutcome], span: Any, *, cut: bool
) -> tuple[list[str], Summary]:
    """Appends as many missing lines as there is room for. Returns these lines and the completed summary."""
    lines, unfounded = _lines(outcomes, span)
    lines = lines[:_MOST_LINES]
    if unfounded:
        lines.append(f"{_UNFOUNDED} {', '.join(unfounded[:_MOST_LINES])}")
    while lines:
        text = _joined(summary.text, lines)
        if request.budget is None or request.count(text) <= request.budget:
            return lines, replace(summary, text=text)
        taken = request.count(_joined("", lines))
        if cut and request.counter is not None and taken <= _SHARE * request.budget:
            shorter = request.counter.cut(summary.text, max(1, request.budget - taken - 1), "ends", _CUT)
            return lines, replace(summary, text=_joined(shorter, lines))
        lines.pop()
    return [], summary


def _shortened(request: Request, summary: Summary) -> Summary:
    """Returns a summary that is cut to its room, so that nothing need be cut after the checks."""
    counter, most = request.counter, request.budget
    if counter is None or most is None or summary.replacement is not None or counter.text(summary.text) <= most:
        return summary
    text = counter.cut(summary.text, most, "ends", _CUT)
    return replace(summary, text=text, coverage={**(summary.coverage or {}), "cut_to_tokens": counter.text(text)})


def _joined(text: str, lines: Sequence[str]) -> str:
    return "\n".join([text.rstrip(), _HEAD, *lines])


def _document(
    outcomes: Sequence[_CheckOutcome], left: Sequence[_CheckOutcome], lines: Sequence[str], repair: Payload | None
) -> dict[str, Any]:
    """Returns the outcome as JSON. `failed` counts failures before lines were appended, and `left` after that."""
    found: dict[str, Any] = {
        "outcomes": [
            {
                "check": one.check.name,
                "strict": one.check.strict,
                "asked": one.asked,
                "failed": len(one.lost),
                "left": len(after.lost),
                "exempt": one.exempt,
                "passed": one.passes,
                "examples": [_example(probe) for probe in one.lost[:_MOST_KEPT]],
                **({} if (error := one.error or after.error) is None else {"error": error}),
            }
            for one, after in zip(outcomes, left, strict=True)
        ]
    }
    if lines:
        found["appended"] = len(lines)
    if repair is not None:
        found["repair"] = repair
    return found


def _example(probe: Probe) -> Payload:
    place = {name: value for name, value in probe.place.as_dict().items() if value is not None and name != "record"}
    return {"kind": probe.kind, "text": probe.text[:_LONGEST], **place}
