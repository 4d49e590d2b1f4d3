"""Opens sources of all formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compaction_store import arguments
from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.importers import chatgpt, claude_ai, claude_code, codex, conversations, databases, langgraph
from compaction_store.importers.conversations import ANTHROPIC, CHAT, RESPONSES, Conversations
from compaction_store.importers.exports import Export, first_conversation
from compaction_store.importers.line_files import Files, LineFile, found_in
from compaction_store.importers.sources import Source
from compaction_store.messages.parts import row_of

FORMATS = (
    databases.AGENTS, ANTHROPIC, chatgpt.FORMAT, claude_ai.FORMAT, claude_code.FORMAT, codex.FORMAT, langgraph.FORMAT,
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
_DATABASES = {databases.AGENTS: {"messages_table"}, langgraph.FORMAT: {"channel"}}


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
            return _database(database, of_database(database, format, options), skip_bad, options)
        except BaseException:
            database.close()
            raise
    if unknown := options.keys() - {"thread_field", "lines", "traces"}:
        raise InvalidInput(f"option {min(unknown)!r} must not be given for a file")
    return _files(Path(source), format, skip_bad, **options)


def _database(database: databases.Database, form: str, skip_bad: bool, options: Mapping[str, Any]) -> Source:
    if form == databases.AGENTS and options.keys() <= {"messages_table"}:
        return databases.AgentSessions(database, skip_bad=skip_bad, **options)
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
    form = form or of_files(path)
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


# The maximum number of tables or fields that an error names.
_SHOWN = 5
_WORD = re.compile(r"[a-z][a-z_]{0,30}")
_BUNDLE = "compaction-store/bundle/"


def detect(source: str | Path) -> str:
    """Returns the name of a source's format; `openai-chat` for plain texts, which Anthropic's format has too."""
    database = databases.open_database(source)
    if database is None:
        return of_files(Path(source))
    try:
        return of_database(database)
    finally:
        database.close()


def of_database(database: databases.Database, named: str | None = None, options: Collection[str] = ()) -> str:
    """Returns the format of a database. With `named`, checks that the database has the tables of that format."""
    tables = database.tables()
    found = []
    if databases.AGENT_MESSAGES in tables or (named == databases.AGENTS and options):
        found.append(databases.AGENTS)
    needed = [langgraph.CHECKPOINTS, langgraph.BLOBS] if databases.is_postgres(database) else [langgraph.CHECKPOINTS]
    if tables.issuperset(needed):
        found.append(langgraph.FORMAT)
    if named is not None and (named in found or named not in _TABLES):
        return named
    if not found or named is not None:
        known = (f"{form} keeps its threads in {name}" for form, name in _TABLES.items() if named in (None, form))
        raise InvalidSource(f"the database has {_listed(tables)}; {'; '.join(known)}")
    if len(found) > 1:
        raise InvalidSource(f"the database has the tables of {' and '.join(found)}: choose one with format=")
    return found[0]


_TABLES = {databases.AGENTS: databases.AGENT_MESSAGES, langgraph.FORMAT: langgraph.CHECKPOINTS}


def _listed(tables: Collection[str]) -> str:
    if not tables:
        return "no tables"
    names = sorted(tables)[:_SHOWN]
    more = "" if len(names) == len(tables) else f" and {len(tables) - len(names)} more"
    return f"the tables {', '.join(names)}{more}"


def of_files(path: Path) -> str:
    if (form := _of_export(path)) is not None:
        return form
    plain = False
    for file in found_in(path):
        for _, found in file.sample():
            if (form := _of_line(found)) is not None:
                return form
            plain = plain or _is_plain(found)
    if plain:
        return CHAT
    raise InvalidSource(f"{path.name}: {_seen(path)}; name the format with format= (--format)")


def _of_export(path: Path) -> str | None:
    found = first_conversation(path)
    if found is None:
        return None
    if chatgpt.is_conversation(found):
        return chatgpt.FORMAT
    if claude_ai.is_conversation(found):
        return claude_ai.FORMAT
    raise InvalidSource(
        f"{path.name} is a JSON array of objects with {_fields(found)}: they must be conversations of ChatGPT or "
        "Claude.ai; messages of other kinds must be JSON lines, one object a line"
    )


def _seen(path: Path) -> str:
    """Describes the files, for the error that says that no format matches."""
    for file in found_in(path):
        for _, found in file.sample():
            return f"its lines are JSON objects with {_fields(found)}, which match no format"
    return "it has no line that is a JSON object"


def _fields(found: dict[str, Any]) -> str:
    """Lists the names of an object's fields. Only plain words are listed, because other names may be content."""
    names = sorted(name for name in found if _WORD.fullmatch(name))[:_SHOWN]
    return f"the fields {', '.join(names)}" if names else "no fields with plain names"


def _of_line(found: dict[str, Any]) -> str | None:
    """Returns the only format that a line can be in; None if several formats match, or none."""
    if found.get("type") == "manifest" and str(found.get("format")).startswith(_BUNDLE):
        raise InvalidSource("the file is a bundle of this package: import it with load.bundle")
    if claude_code.is_line(found):
        return claude_code.FORMAT
    if codex.is_line(found):
        return codex.FORMAT
    asked = conversations.request(found)
    if asked is None and (parts := conversations.answered(found)) is not None:
        return RESPONSES if found.get("object") == "response" else CHAT if parts else None
    if asked is not None and ("messages" not in asked or "system" in asked or "params" in found):
        return ANTHROPIC if "messages" in asked else RESPONSES
    return next(of_messages([found] if asked is None else conversations.said_in(asked)), None)


def of_messages(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        if not isinstance(message, dict):
            continue
        role, kind = message.get("role"), message.get("type")
        if role is None and isinstance(kind, str):
            yield RESPONSES
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            yield CHAT
        content = message.get("content")
        apis = {row_of(part).only_api for part in content} if isinstance(content, list) else set()
        if "responses" in apis:
            yield RESPONSES
        if "anthropic" in apis or "stop_reason" in message:
            yield ANTHROPIC
        if "chat" in apis or role == "developer" or "refusal" in message:
            yield CHAT


def _is_plain(found: dict[str, Any]) -> bool:
    asked = conversations.request(found)
    messages = [found] if asked is None else conversations.said_in(asked)
    return any(conversations.is_message(message, CHAT) for message in messages)
