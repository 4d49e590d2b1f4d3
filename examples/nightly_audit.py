"""A nightly report: the compactions of the last day, and whether every thread is as it was written.

    python examples/nightly_audit.py [FOLDER] > report.md

The program keeps the heads of all threads in FOLDER, which is `heads` by default. Keep this folder where nobody with
write access to the database can write. Only a comparison with older heads shows a recomputed chain, a cut-off end or a
missing thread. The exit code is 1 if there is a finding.

The program uses $COMPACTION_STORE_URL, or else the embedded Postgres. It needs only the auditor's role.
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
    """Prints who compacted how much, and which attempts failed."""
    groups: Counter[tuple[str, ...]] = Counter()
    saved: Counter[tuple[str, ...]] = Counter()
    failures = []
    for record in reader.compactions(since=since):
        group: tuple[str, ...] = (record.actor or "-", record.model or "-", record.outcome)
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
        print("\nFailed or rejected:\n\n" + "\n".join(failures))


def integrity(reader: Reader, folder: Path) -> list[str]:
    """Verifies every thread, compares it with last night's head, and keeps the new heads if there are no findings."""
    newest = max(folder.glob("*.json"), default=None)
    kept: Kept = {} if newest is None else json.loads(newest.read_text(encoding="utf-8"))
    heads: Kept = {}
    found = []
    for report in reader.audit.verify():
        # Walk by key: a thread may have lost its name, or have another's.
        key = str(report.thread_uid)
        findings = [*report.findings]
        if key in kept and not findings:
            # A recomputed chain is valid by itself, but it does not contain last night's head.
            pos, head = kept[key]
            held = reader.audit.verify(report.thread_id, level="structure", since=(pos, bytes.fromhex(head)))
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
        print(f"Wrote the heads to {file.name}.")
    return found


if __name__ == "__main__":
    sys.exit(main())
