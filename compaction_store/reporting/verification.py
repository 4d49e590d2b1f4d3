"""Verifies a report from its file alone: the hash, the bundles, and whether the page shows these bundles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from compaction_store import __version__
from compaction_store.bundles.verification import verify_bundle
from compaction_store.errors import MissingExtra
from compaction_store.models import Compaction, Report
from compaction_store.reporting import envelope
from compaction_store.reporting.document import FORMAT, Contents, ReportDocument, ReportedThread, contents_of
from compaction_store.reporting.envelope import build

_BUILD = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+]{1,40}")


@dataclass(frozen=True)
class CheckedReport:
    """The result of a verification: findings and notes about the file, and a report on each bundle in it.

    `is_compared` is False if this build cannot compare the page with its data. A note then says why.
    """

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    threads: list[Report] = field(default_factory=list)
    is_compared: bool = True


def verify_report(data: bytes, *, public_keys: Iterable[bytes | str] = ()) -> CheckedReport:
    """Verifies a report. With `public_keys`, each bundle must have a checkpoint that one of these keys signed."""
    keys = list(public_keys)
    found = CheckedReport()
    try:
        document = _document(data, found.findings)
    except ValueError as error:
        found.findings.append(str(error))
        return found
    found.findings.extend(_incomplete(document))
    for thread in document.threads:
        report = _verified(thread, keys)
        found.threads.append(report)
        # Findings about the key of the checkpoint do not count here, because they do not concern the thread.
        has_findings = bool(report.findings and (not keys or _verified(thread, []).findings))
        if has_findings and not thread.verdict.findings:
            found.findings.append(f"the report has no findings about {report.thread_id!r}, but its bundle has findings")
        elif thread.verdict.findings and not has_findings:
            # The verification in the database may have used more than the bundle has, such as the newest checkpoint.
            found.notes.append(f"the bundle of {report.thread_id!r} has none of the findings that the report lists")
        try:
            found.findings.extend(_differences(document, contents_of(thread)))
        except ValueError as error:
            found.findings.append(f"a bundle cannot be read: {error}")
    if not envelope.is_json(data) and not found.findings:
        return replace(found, is_compared=_compare_page(data, document, found))
    return found


def _incomplete(document: ReportDocument) -> Iterator[str]:
    """Yields what contradicts the report's own statement of completeness."""
    stated = document.completeness
    if stated.reported != len(document.threads):
        yield f"the report must have {stated.reported:,} threads, and has {len(document.threads):,}"
    if stated.gone and not document.findings:
        yield "the report has no findings, but says that threads are gone"


def _verified(thread: ReportedThread, keys: list[bytes | str]) -> Report:
    return verify_bundle((line.encode() + b"\n" for line in thread.bundle), public_keys=keys)


def _document(data: bytes, findings: list[str]) -> ReportDocument:
    if envelope.is_json(data):
        carried, stated = envelope.opened(data)
        actual = envelope.sha256(carried)
    else:
        stated, actual = envelope.own_hash(data)
        packed = envelope.carried_data(data)
        if packed is None:
            raise ValueError("the page must contain the data of a report exactly once")
        carried = envelope.unpacked(packed)
    if stated is None:
        findings.append("the hash at the end is missing: part of the file may be missing")
    elif stated != actual:
        findings.append("the file was changed after it was written: its hash does not match")
    envelope.refuse_many_values(carried)
    try:
        return ReportDocument.model_validate_json(carried)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        wrong = f": {place} is wrong" if place else ""
        raise ValueError(_maker(carried, wrong) or f"the data in the file is not a report{wrong}") from None


def _maker(carried: bytes, wrong: str) -> str | None:
    """Says which build made a report that this build cannot read. None if it was this build, or no build is named."""
    try:
        data = json.loads(carried)
        form, made_by, version = (data[name] for name in ("format", "build", "version"))
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    is_named = form == FORMAT and _BUILD.fullmatch(str(made_by)) and _VERSION.fullmatch(str(version))
    if not is_named or (version, made_by) == (__version__, build()):
        return None
    return f"this build cannot read the report{wrong}; {_builds(made_by, version)}. Verify it with the former build"


def _builds(made_by: str, version: str) -> str:
    return (
        f"build {made_by[:12]} of version {version} made it, and this is build {build()[:12]} of version {__version__}"
    )


def _compare_page(data: bytes, document: ReportDocument, found: CheckedReport) -> bool:
    """Renders the page again from its data, and compares it with the file. Returns whether this is conclusive.

    A difference is a finding if this build made the report, else a note, because builds may render data differently.
    """
    try:
        from compaction_store.reporting.page import render  # noqa: PLC0415 — needs an extra
    except MissingExtra:
        found.notes.append("the page was not compared with its data: install compaction-store[web]")
        return False
    if render(document, envelope.carried_data(data)) == data:
        return True
    if (document.version, document.build) == (__version__, build()):
        found.findings.append("the page does not match its data")
        return True
    found.notes.append(
        f"the page was not compared with its data: {_builds(document.build, document.version)}, which makes another"
        f" page from the same data. Verify the report with build {document.build[:12]} to compare them. The hash and"
        " the bundles were verified"
    )
    return False


def _differences(document: ReportDocument, found: Contents) -> Iterator[str]:
    """Yields findings about differences between the report and a bundle in it."""
    name = found.manifest["thread_id"]
    if found.manifest["tenant"] != document.tenant:
        yield f"the bundle of {name!r} and the report have different tenants"
    if any(gone.thread_uid == found.manifest["thread_uid"] for gone in document.completeness.gone):
        yield f"the report says that {name!r} is gone, and has its bundle"
    if not document.content and any('"payload":"' in line or '"body":"' in line for line in found.thread.bundle):
        yield f"the report must have no content, but the bundle of {name!r} has content"
    records = {record.number: record for record in found.records}
    if sorted(records) != sorted(standing.number for standing in found.thread.standings):
        yield f"the report and the bundle of {name!r} have different records"
    revoked = {record.revokes: record.number for record in found.records if record.outcome == "applied"}
    for record in found.records:
        if record.revoked_by != revoked.get(record.number) or not _may_supersede(record, records):
            yield f"the report contradicts the bundle of {name!r} about record {record.number}"
    for reply in found.thread.replies:
        if (reply.evidence == "reconstructed") == (reply.seq in found.receipts):
            yield f"the report contradicts the bundle of {name!r} about the receipt of seq {reply.seq}"


def _may_supersede(record: Compaction, records: dict[int, Compaction]) -> bool:
    if record.superseded_by is None:
        return True
    later = records.get(record.superseded_by)
    if record.revokes is not None or record.revoked_by is not None:
        return False
    return later is not None and later.number > record.number and later.outcome == "applied"
