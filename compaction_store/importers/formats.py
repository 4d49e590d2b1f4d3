"""Opens sources of all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compaction_store import arguments
from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.importers import agents, chatgpt, claude_ai, claude_code, codex, databases, detecting, langgraph
from compaction_store.importers.conversations import ANTHROPIC, CHAT, RESPONSES, Conversations
from compaction_store.importers.exports import Export
from compaction_store.importers.line_files import Files, LineFile
from compaction_store.importers.sources import Source

FORMATS = (
    agents.FORMAT, ANTHROPIC, chatgpt.FORMAT, claude_ai.FORMAT, claude_code.FORMAT, codex.FORMAT, langgraph.FORMAT,
    CHAT, RESPONSES,
)  # fmt: skip


class SessionFormat(NamedTuple):
    """A program that keeps its sessions in files below a folder of the home folder."""

    folder: str
    opened: Callable[..., Files]
    session_of: Callable[[LineFile], str]
    thread_of: Callable[[LineFile], str]


SESSIONS = {
    claude_code.FORMAT: SessionFormat(
        ".claude/projects", claude_code.ClaudeCode, claude_code.session_of, claude_code.thread_of
    ),
    codex.FORMAT: SessionFormat(".codex/sessions", codex.Codex, codex.session_of, codex.session_of),
}
# The formats of databases, and the option of each.
_DATABASES = {agents.FORMAT: {"messages_table"}, langgraph.FORMAT: {"channel"}}


def open_source(
    source: str | Path, *, format: str | None = None, skip_bad: bool = False, **options: Any  # noqa: A002
) -> Source:  # fmt: skip
    """Opens a source: a file or folder of JSON lines, an account export, a SQLite file, or a database's URL.

    `format` is one of `FORMATS`; without it, the format is detected. `options` depend on the format: openai-agents has
    `messages_table`, and langgraph has `channel`. JSON lines of messages have `thread_field`, the name of the field
    that says to which thread a line belongs; without it, a file of messages is one thread. With `lines=False`, sessions
    of claude-code and codex are read without the threads that keep the lines of their files. `traces` is the folder of
    Codex's traces; by default, $CODEX_ROLLOUT_TRACE_ROOT.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    database = databases.open_database(source)
    if database is not None:
        try:
            return _database(database, detecting.of_database(database, format, options), skip_bad, options)
        except BaseException:
            database.close()
            raise
    if unknown := options.keys() - {"thread_field", "lines", "traces"}:
        raise InvalidInput(f"option {min(unknown)!r} must not be given for a file")
    return _files(Path(source), format, skip_bad, **options)


def _database(database: databases.Database, form: str, skip_bad: bool, options: Mapping[str, Any]) -> Source:
    if form == agents.FORMAT and options.keys() <= {"messages_table"}:
        return agents.AgentSessions(database, skip_bad=skip_bad, **options)
    if form == langgraph.FORMAT and options.keys() <= {"channel"}:
        return langgraph.Checkpoints(database, skip_bad=skip_bad, **options)
    if form not in _DATABASES:
        raise InvalidInput(f"format must be {' or '.join(_DATABASES)} for a database, not {form!r}")
    unknown = min(options.keys() - _DATABASES[form])
    raise InvalidInput(f"the option of {form} must be {', '.join(_DATABASES[form])}, not {unknown!r}")


def _files(
    path: Path,
    form: str | None,
    skip_bad: bool,
    thread_field: str | None = None,
    lines: bool | None = None,
    **options: str,
) -> Source:
    form = form or detecting.of_files(path)
    if lines is not None and (type(lines) is not bool or form not in SESSIONS):
        raise InvalidInput(f"lines must be True or False, and only for {' or '.join(SESSIONS)}")
    if thread_field is not None and form not in (ANTHROPIC, CHAT, RESPONSES):
        raise InvalidInput(f"thread_field must be given only for JSON lines of messages, not for the format {form}")
    if thread_field is not None:
        arguments.name(thread_field, "thread_field")
    if options and form != codex.FORMAT:
        raise InvalidInput(f"traces must be given only for the format {codex.FORMAT}, not for {form}")
    if form in SESSIONS:
        return SESSIONS[form].opened(path, skip_bad=skip_bad, lines=lines is not False, **options)
    for export in (chatgpt, claude_ai):
        if form == export.FORMAT:
            return Export(path, form, export.messages, export.IDS, export.TITLE, skip_bad=skip_bad)
    if form in (ANTHROPIC, CHAT, RESPONSES):
        return Conversations(path, form, skip_bad=skip_bad, thread_field=thread_field)
    raise InvalidSource(f"{path.name} must be a database for the format {form}")
