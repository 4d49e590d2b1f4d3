"""A session of Claude Code is kept, compacted, deleted and given back.

Run it with the program and a key: ANTHROPIC_API_KEY=… python examples/coding_agent.py [PATH_OF_CLAUDE]. The session has
a home folder of its own, so it touches none of your sessions. The store is that of $COMPACTION_STORE_URL, or else the
embedded Postgres.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compaction_store import Store


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "claude"
    with tempfile.TemporaryDirectory() as name:
        home, work = Path(name, "home"), Path(name, "work")
        home.mkdir()
        work.mkdir()
        environment = os.environ | {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

        def ask(*arguments: str) -> str:
            command = [program, "-p", "--output-format", "json", *arguments]
            done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=True)
            session: str = json.loads(done.stdout)["session_id"]
            return session

        def keep(*arguments: str) -> None:
            command = [sys.executable, "-m", "compaction_store", *arguments]
            subprocess.run(command, env=environment, capture_output=True, check=True)

        session = ask("Order A-17 is late. Never ship on Sundays. Answer in one sentence.")
        ask("--resume", session, "/compact")
        ask("--resume", session, "What do you know about order A-17?")
        projects = home / ".claude" / "projects"
        keep("watch", "--once", str(projects))
        report(f"claude-code:{session}")

        [file] = projects.rglob(f"{session}.jsonl")
        before = file.read_bytes()
        file.unlink()
        keep("restore", f"claude-code:{session}", "--to", str(projects))
        print("the deleted session is back, byte for byte:", file.read_bytes() == before)


def report(thread: str) -> None:
    with Store.open() as store:
        for record in store.compactions(thread):
            print(f"record {record.number}: seqs {record.start_seq} to {record.end_seq}, {record.outcome}")
        replies = [message for message in store.replay(thread) if message.role == "assistant"]
        for reply in replies:
            seen = store.seen_by(thread, reply.seq)
            sent = "?" if seen.messages is None else len(seen.messages)
            print(f"reply {reply.seq} was written from a request of {sent} messages: {seen.evidence}")


if __name__ == "__main__":
    main()
