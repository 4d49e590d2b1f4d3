"""Detects a source's format by the tables of a database or the first lines of a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from compaction_store.errors import InvalidSource
from compaction_store.importers import (
    agents,
    chatgpt,
    claude_ai,
    claude_code,
    codex,
    conversations,
    databases,
    exports,
    langgraph,
)
from compaction_store.importers.conversations import ANTHROPIC, CHAT, RESPONSES, answered, request, said_in
from compaction_store.importers.line_files import found_in
from compaction_store.messages.parts import row_of

# The maximum number of tables or fields that an error names.
_SHOWN = 5
_WORD = re.compile(r"[a-z][a-z_]{0,30}")
_BUNDLE = "compaction-store/bundle/"


def detect(source: str | Path) -> str:
    """Returns the name of a source's format.

    Plain text messages look the same in OpenAI's chat format and in Anthropic's format. For these, the result is
    `openai-chat`.
    """
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
    if agents.MESSAGES in tables or (named == agents.FORMAT and options):
        found.append(agents.FORMAT)
    if langgraph.has_tables(database):
        found.append(langgraph.FORMAT)
    if named is not None and (named in found or named not in _TABLES):
        return named
    if not found or named is not None:
        raise InvalidSource(f"the database has {_listed(tables)}; {_known(named)}")
    if len(found) > 1:
        raise InvalidSource(f"the database has the tables of {' and '.join(found)}: choose one with format=")
    return found[0]


_TABLES = {agents.FORMAT: agents.MESSAGES, langgraph.FORMAT: langgraph.CHECKPOINTS}


def _listed(tables: Collection[str]) -> str:
    if not tables:
        return "no tables"
    names = sorted(tables)[:_SHOWN]
    more = "" if len(names) == len(tables) else f" and {len(tables) - len(names)} more"
    return f"the tables {', '.join(names)}{more}"


def _known(named: str | None) -> str:
    if named is not None:
        return f"{named} keeps its threads in {_TABLES[named]}"
    return "; ".join(f"{form} keeps its threads in {table}" for form, table in _TABLES.items())


def of_files(path: Path) -> str:
    if (form := _of_export(path)) is not None:
        return form
    plain = False
    for file in found_in(path):
        for _, found in file.sample():
            form = _of_line(found)
            if form is not None:
                return form
            plain = plain or _is_plain(found)
    if plain:
        return CHAT
    raise InvalidSource(f"{path.name}: {_seen(path)}; name the format with format= (--format)")


def _of_export(path: Path) -> str | None:
    found = exports.first_conversation(path)
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
    asked = request(found)
    return _of_answer(found) if asked is None else _of_request(found, asked)


def _of_request(found: dict[str, Any], asked: dict[str, Any]) -> str | None:
    if "messages" not in asked:
        return RESPONSES
    if "system" in asked or "params" in found:
        return ANTHROPIC
    return next(of_messages(said_in(asked)), None)


def _of_answer(found: dict[str, Any]) -> str | None:
    if (parts := answered(found)) is not None:
        return RESPONSES if found.get("object") == "response" else CHAT if parts else None
    return next(of_messages([found]), None)


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
    asked = request(found)
    messages = [found] if asked is None else said_in(asked)
    return any(conversations.is_message(message, CHAT) for message in messages)
