"""Ten sessions of the real Claude Code: tools, messages typed while one runs, compactions, resumes, subagents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from claude_program import Claude, program
from stub_anthropic import Stub


def _many_turns(claude: Claude) -> None:
    claude.stream([
        "RUN-SLOW please", 2.0, "Stop! Never touch the production database.", "READ-FILE and RUN-TOOL",
        "/compact keep orders", "What now?", "ASK-AGENT now", "/compact", "And now?", "RUN-TOOL again",
    ])  # fmt: skip


def _resumed(claude: Claude) -> None:
    session = claude.prompt("hello A-17")["session_id"]
    claude.prompt("--resume", session, "RUN-TOOL more")
    claude.prompt("--resume", session, "and how much is it?")


def _compacted_and_resumed(claude: Claude) -> None:
    session = claude.stream(["READ-FILE now", "Order B-9 too", "/compact", "Is it late?"])
    claude.prompt("--resume", session, "RUN-TOOL more")
    claude.stream(["/compact", "and now?"], "--resume", session)


def _without_tools(claude: Claude) -> None:
    claude.stream(["What is 0.00001 of it?", "naïve café 🙂 \u2028 and \x7f", 'quotes " and \\ and <b>'])


def _typed_twice(claude: Claude) -> None:
    claude.stream(["RUN-SLOW now", 1.0, "First: mind order C-3.", 0.3, "Second: and C-4.", "Thanks"])


def _several_agents(claude: Claude) -> None:
    claude.stream(["ASK-AGENT first", "ASK-AGENT and RUN-TOOL", "What did it say?"])


def _tools_at_once(claude: Claude) -> None:
    claude.stream(["RUN-TOOL READ-FILE RUN-TWICE", "RUN-TWICE and READ-FILE", "done?"])


def _compacted_thrice(claude: Claude) -> None:
    claude.stream(["one", "/compact", "two", "RUN-TOOL three", "/compact only orders", "four", "/compact", "five"])


def _cleared(claude: Claude) -> None:
    claude.stream(["READ-FILE before", "/clear", "RUN-TOOL after"])


def _one_prompt(claude: Claude) -> None:
    claude.prompt("RUN-TOOL and READ-FILE")


SESSIONS: tuple[Callable[[Claude], None], ...] = (
    _many_turns, _resumed, _compacted_and_resumed, _without_tools, _typed_twice, _several_agents, _tools_at_once,
    _compacted_thrice, _cleared, _one_prompt,
)  # fmt: skip


def written(folder: Path) -> Iterator[Claude]:
    """Runs all sessions, and yields the program with its home folder and the stub that it talked to."""
    stub = Stub()
    try:
        claude = Claude(program(), folder, stub)
        for session in SESSIONS:
            session(claude)
        yield claude
    finally:
        stub.close()
