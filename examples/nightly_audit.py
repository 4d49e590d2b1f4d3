"""A nightly report on what was compacted in the last day, by whom, and whether every thread is as it was written.

    python examples/nightly_audit.py [FOLDER] > report.md

FOLDER (else `heads`) is where the heads of all threads are kept from night to night. Keep it where whoever may write to
the database may not write: a chain that was computed anew, a tail that was cut off and a thread that vanished show
against it, and only against it. The exit code is 1 when something was found.

It uses $COMPACTION_STORE_URL, else the embedded Postgres, and needs no more than the auditor's role.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from compaction_store import Reader

Kept = dict[str, tuple[int, str]]


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "heads")
    since = datetime.now(UTC) - timedelta(days=1)
    with Reader.open() as reader:
        print(f"# Compactions since {since:%Y-%m-%d %H:%M} UTC\n")
        compactions(reader, since)
        print("\n# Integrity\n")
        found = integrity(reader, folder)
    return 1 if found else 0


def compactions(reader: Reader, since: datetime) -> None:
    """Who compacted what, and what did not come about."""
    groups: Counter[tuple[str, str, str]] = Counter()
    saved: Counter[tuple[str, str, str]] = Counter()
    failures = []
    for record in reader.compactions(since=since):
        group = (record.actor or "-", record.model or "-", record.outcome)
        groups[group] += 1
        folds = record.outcome == "applied" and record.kind != "revocation"
        if folds and record.tokens_before is not None and record.tokens_after is not None:
            saved[group] += record.tokens_before - record.tokens_after
        if record.error is not None:
            failures.append(f"- {record.thread_id}, record {record.number}: {record.outcome}, {record.error['type']}")
    print("| actor | model | outcome | records | tokens saved |\n|---|---|---|---|---|")
    for group, count in sorted(groups.items()):
        print(f"| {' | '.join(group)} | {count:,} | {saved[group]:,} |")
    if failures:
        print("\nWhat did not come about:\n\n" + "\n".join(failures))


def integrity(reader: Reader, folder: Path) -> list[str]:
    """Verifies every thread and holds it to the last night's head; keeps the new heads if nothing was found."""
    newest = max(folder.glob("*.json"), default=None)
    kept: Kept = {} if newest is None else json.loads(newest.read_text(encoding="utf-8"))
    heads: Kept = {}
    found = []
    for report in reader.verify_all():
        # By key: a thread may have lost its name, or have another's.
        key = str(report.thread_uid)
        findings = [*report.findings]
        if key in kept and not findings:
            # A chain that was computed anew is sound in itself; that it goes on from the head of then is what it lacks.
            pos, head = kept[key]
            held = reader.verify(report.thread_id, level="structure", since=(pos, bytes.fromhex(head)))
            findings += held.findings
        found += [f"{report.thread_id or key}, pos {finding.pos}: {finding.what}" for finding in findings]
        heads[key] = (report.pos, report.head.hex())
    found += [f"{key}: the thread is gone" for key in kept.keys() - heads.keys()]
    print(f"{len(heads):,} threads, {len(found):,} findings")
    print("".join(f"- {finding}\n" for finding in found), end="")
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.json"
        file.write_text(json.dumps(heads), encoding="utf-8")
        print(f"The heads are kept in {file.name}.")
    return found


if __name__ == "__main__":
    sys.exit(main())
