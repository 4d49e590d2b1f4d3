"""Writes a session of Claude Code whose compaction keeps the progress and forgets the rules.

    python examples/forgotten_rules.py sessions
    compaction-store autopsy sessions

The session has the course of a public report, https://github.com/anthropics/claude-code/issues/19736: the summary had
what was done, but not two rules, and the next commit broke one of them. All of its words are made up.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

SESSION = str(uuid.UUID("5f0c2d3e-8a41-4b7c-9d55-6e1f0a9b3c77"))
POLICY = "Totals are rounded once, at the end, with ROUND_HALF_EVEN. " + "Every exception is listed below. " * 60
SUMMARY = """\
This session is being continued from a previous conversation that ran out of context.
The user works on credit notes (work item AB#48231). The totals were rounded twice. The assistant read the policy and
changed src/billing/rounding.py, so that quantize_total is called once. The refund cap is 2,500 euros.
Next: run the tests again and commit."""


class Session:
    """The lines of a session file."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._calls = 0

    def user(self, text: str, **more: Any) -> None:
        self._add("user", message={"role": "user", "content": text}, **more)

    def assistant(self, *parts: dict[str, Any]) -> None:
        self._add("assistant", message={"role": "assistant", "model": "claude-sonnet-4-5", "content": list(parts)})

    def says(self, text: str) -> None:
        self.assistant({"type": "text", "text": text})

    def calls(self, tool: str, result: str, **given: Any) -> None:
        """Adds a call and its result."""
        self._calls += 1
        call = f"toolu_{self._calls:02d}"
        self.assistant({"type": "tool_use", "id": call, "name": tool, "input": given})
        answer = {"type": "tool_result", "tool_use_id": call, "content": result}
        self._add("user", message={"role": "user", "content": [answer]})

    def compacted(self, summary: str) -> None:
        about = {"trigger": "auto", "preTokens": 168_000, "postTokens": 2_100}
        self._add("system", subtype="compact_boundary", content="Conversation compacted", compactMetadata=about)
        self.user(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True)

    def _add(self, kind: str, **fields: Any) -> None:
        number = len(self.lines)
        parent = str(uuid.UUID(int=number, version=4)) if number else None
        known = {
            "type": kind, "uuid": str(uuid.UUID(int=number + 1, version=4)), "parentUuid": parent,
            "sessionId": SESSION, "isSidechain": False, "cwd": "/home/anna/billing", "version": "2.0.14",
            "timestamp": f"2026-01-21T09:{number:02d}:00.000Z",
        }  # fmt: skip
        self.lines.append(json.dumps(known | fields))


def session() -> Session:
    """Returns the session: two rules, the work, a compaction, and what went wrong after it."""
    made = Session()
    made.user(
        "Never add a Co-Authored-By line to a commit. Text for Azure DevOps must always be Markdown.\n"
        "Today it is AB#48213: the totals of credit notes are rounded twice. The refund cap is 2,500 euros."
    )
    made.says("I will read the policy first, and then the code.")
    made.calls("Read", POLICY, file_path="docs/rounding_policy.md")
    made.calls("Read", "def quantize_total(amount): ...", file_path="src/billing/rounding.py")
    made.says("The cause is quantize_total: it is called for each line and again for the total.")
    made.calls(
        "Edit", "The file was changed.", file_path="src/billing/rounding.py", old_string="quantize_total(line)",
        new_string="line",
    )  # fmt: skip
    made.user("Good. The refund cap is 4,000 euros now. Write a test for it too.")
    made.calls("Write", "The file was written.", file_path="tests/test_credit_notes.py", content="def test_cap(): ...")
    made.calls("Bash", "1 failed: test_cap", command="python -m pytest tests/test_credit_notes.py")
    made.compacted(SUMMARY)
    made.user("Run tests/test_credit_notes.py again, commit, and write the comment for AB#48213.")
    made.calls("Read", POLICY, file_path="docs/rounding_policy.md")
    made.calls(
        "Bash", "[main 4c1d2e9] Round totals once",
        command='git commit -am "Round totals once (AB#48231)\n\nCo-Authored-By: An assistant <bot@example.org>"',
    )  # fmt: skip
    made.says("It is committed. Here is the comment: <b>Totals are rounded once.</b>")
    made.user("I said no Co-Authored-By line, and Markdown.")
    made.says("You are right. After the compaction I had only the summary, and it has neither rule.")
    return made


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "sessions")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SESSION}.jsonl"
    path.write_text("\n".join(session().lines) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
