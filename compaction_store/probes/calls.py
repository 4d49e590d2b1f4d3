"""Reads tool calls: which are equal, which only look something up, and which files they write.

A stored call does not say what its tool does, so the name of the tool and the first word of a shell command decide. A
tool with an unknown name counts neither as a look-up nor as a write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from compaction_store.probes.reading import Call

FileState = Literal["written", "deleted", "moved"]

_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LOOKS_UP = frozenset(
    """
    read get list ls search find grep glob view cat fetch open show head tail stat query lookup describe browse
    inspect tree locate retrieve load scroll goto
    """.split()  # noqa: SIM905
)
_CHANGES = frozenset(
    """
    write edit update create delete remove set send run execute insert replace put post patch add move rename book
    cancel modify apply submit save commit push install kill start stop close multi
    """.split()  # noqa: SIM905
)
_WRITES = frozenset(
    """
    write edit create save replace insert update append put multi patch apply overwrite
    """.split()  # noqa: SIM905
)
_PATH_FIELDS = (
    "path", "file_path", "filepath", "file", "filename", "file_name", "notebook_path", "target_file", "target",
    "absolute_path", "relative_path", "relative_workspace_path", "destination", "new_path", "uri",
)  # fmt: skip
_SHELLS = frozenset(
    """
    bash shell sh exec command terminal run cmd zsh powershell console execute
    """.split()  # noqa: SIM905
)
_COMMAND_FIELDS = ("command", "cmd", "script", "commands", "code")
_SHELL_LOOKS_UP = frozenset(
    """
    cat ls grep rg find head tail less more wc tree stat file which pwd du df sed awk fd ag bat jq nl diff env
    printenv git open goto scroll_down scroll_up find_file search_dir search_file
    """.split()  # noqa: SIM905
)
_GIT_LOOKS_UP = frozenset(["log", "show", "diff", "status", "blame", "ls-files", "grep", "branch"])
_TOKEN = re.compile(
    # Tokens: a word in quotes, the end of a command, a redirection, a word.
    r""""(?:[^"\\]|\\.){0,600}"|'[^']{0,600}'|(?P<end>&&|\|\||[;|\n])|(?P<copy>\d?>&\d)|(?P<to>[\d&]?>>?)|[^\s"';|&<>]+""",
    re.DOTALL,
)
_HERE = re.compile(r"<<-?[ \t]*['\"]?(\w+)['\"]?[^\n]*\n")
_PATCHED = re.compile(r"^\*\*\* (Add|Update|Delete|Move to)(?: File)?: ([^\n]{1,500})", re.MULTILINE)
_LONGEST_PATH = 400
# Patterns, variables and other characters that are not in file names.
_NO_PATH = re.compile(r"[\n*?$`(){}<>|;\"]")
# Commands are read up to this length; the rest is mostly text to be written.
_LONGEST_COMMAND = 4000


class FileChange(NamedTuple):
    """A file that a call wrote, deleted or moved away, by the name in the call."""

    path: str
    state: FileState


def signature(call: Call) -> str:
    """Returns a text that is the same for two calls if their tools and their inputs are equal."""
    given = call.given
    if isinstance(given, str):
        given = " ".join(given.split())
    elif isinstance(given, dict):
        given = {name: value for name, value in given.items() if name not in _ABOUT_THE_CALL}
    try:
        written = json.dumps(given, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        written = repr(given)
    return f"{call.name}\n{written}"


# Input fields that say why a call is made, not what it does.
_ABOUT_THE_CALL = frozenset({"description", "explanation", "reason", "toolSummary", "toolAction", "timeout", "thought"})


def _humps(name: str) -> list[str]:
    return [hump.lower() for hump in _HUMP.findall(name)]


def looks_up(call: Call) -> bool:
    """Returns whether a call only reads or searches."""
    command = shell_command(call)
    if command is not None:
        return _shell_looks_up(command)
    humps = _humps(call.name)
    # An editor with several commands has the command in its input.
    if isinstance(call.given, dict) and isinstance(verb := call.given.get("command"), str) and verb in ("view", "read"):
        return True
    return any(hump in _LOOKS_UP for hump in humps) and not any(hump in _CHANGES for hump in humps)


def shell_command(call: Call) -> str | None:
    """Returns the shell command in a call; None if the call runs none."""
    given = call.given
    if not any(hump in _SHELLS for hump in _humps(call.name)):
        return None
    if isinstance(given, str):
        return given
    for field in _COMMAND_FIELDS:
        value = given.get(field) if isinstance(given, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            # For example ["bash", "-lc", "ls"].
            return str(value[-1]) if len(value) > 2 and value[1].startswith("-") else " ".join(value)  # noqa: PLR2004
    return None


def _steps(command: str) -> Iterator[list[str]]:
    """Yields the words of each simple command. A file that output is redirected to has `>` before it."""
    step: list[str] = []
    for token in _TOKEN.finditer(_without_documents(command[:_LONGEST_COMMAND])):
        if token["end"] is not None:
            yield step
            step = []
        elif token["to"] is not None:
            step.append(">")
        elif token["copy"] is None:
            word = token[0]
            step.append(word[1:-1] if word[0] in "\"'" else word)
    yield step


def _without_documents(command: str) -> str:
    """Returns a command without its here-documents (`<<EOF`)."""
    kept: list[str] = []
    last = 0
    while (here := _HERE.search(command, last)) is not None:
        kept.append(command[last : here.end()])
        end = command.find(f"\n{here[1]}", here.end() - 1)
        last = len(command) if end < 0 else end + 1 + len(here[1])
    return "".join([*kept, command[last:]])


def _shell_looks_up(command: str) -> bool:
    steps = [step for step in _steps(command) if step and step[0] not in ("cd", "echo", "set", "true")]
    return bool(steps) and all(map(_step_looks_up, steps)) and not list(_shell_changes(command))


def _step_looks_up(step: Sequence[str]) -> bool:
    if step[0] == "git":
        return len(step) > 1 and step[1] in _GIT_LOOKS_UP
    return step[0] in _SHELL_LOOKS_UP or step[0] in ("sort", "uniq", "cut", "tr", "xargs", "column")


def changed_files(call: Call) -> list[FileChange]:
    """Returns the files that a call changes, in order. Folders are left out."""
    command = shell_command(call)
    if command is not None:
        return [change for change in _shell_changes(command) if _is_file(change.path)]
    patch = _patch(call)
    if patch is not None:
        return [FileChange(path.strip(), _patched(verb)) for verb, path in _PATCHED.findall(patch)]
    change = _edited(call)
    return [change] if change is not None else []


def _edited(call: Call) -> FileChange | None:
    """Returns the file that an editor's call changes. A tool that edits orders or users has no path in its input."""
    given = call.given
    if not isinstance(given, dict):
        return None
    humps = _humps(call.name)
    verb = given.get("command")
    deletes = any(hump in ("delete", "remove") for hump in humps)
    changes = deletes or any(hump in _WRITES for hump in humps)
    if isinstance(verb, str):
        changes = verb in ("create", "str_replace", "insert", "write", "edit")
    path = next((given[field] for field in _PATH_FIELDS if isinstance(given.get(field), str)), None)
    if not changes or not path or not _is_path(path):
        return None
    return FileChange(path, "deleted" if deletes else "written")


def _is_file(path: str) -> bool:
    """Returns whether a path in a shell command is a file's: its last part has an extension, or is a known name."""
    name = path.rstrip("/").rpartition("/")[2]
    return "." in name.strip(".") or name.startswith(".") or name in ("Makefile", "Dockerfile", "LICENSE", "README")


def _patch(call: Call) -> str | None:
    given = call.given
    if isinstance(given, str):
        return given if "*** Begin Patch" in given else None
    if isinstance(given, dict):
        if isinstance(given.get("path"), str) and isinstance(given.get("type"), str) and "diff" in given:
            # The operation of OpenAI's apply_patch tool.
            verb = {"create_file": "Add", "delete_file": "Delete"}.get(given["type"], "Update")
            return f"*** {verb} File: {given['path']}"
        texts = (value for value in given.values() if isinstance(value, str) and "*** Begin Patch" in value)
        return next(texts, None)
    return None


def _patched(verb: str) -> FileState:
    return "deleted" if verb == "Delete" else "written"


def _is_path(path: str) -> bool:
    return len(path) <= _LONGEST_PATH and _NO_PATH.search(path) is None and any(c.isalnum() for c in path)


def _shell_changes(command: str) -> Iterator[FileChange]:
    for step in _steps(command):
        words: list[str] = []
        is_target = False
        for word in step:
            if is_target and not word.startswith("/dev/") and _is_path(word):
                yield FileChange(word, "written")
            elif not is_target and word != ">":
                words.append(word)
            is_target = word == ">"
        yield from _command_changes(words)


def _command_changes(step: Sequence[str]) -> Iterator[FileChange]:
    step = step[1:] if step[:1] in (["sudo"], ["git"]) else step
    if not step:
        return
    named = [word for word in step[1:] if not word.startswith("-") and _is_path(word)]
    if step[0] in ("rm", "unlink", "rmdir"):
        yield from (FileChange(path, "deleted") for path in named)
    elif step[0] in ("mv", "rename") and len(named) > 1:
        yield from (FileChange(path, "moved") for path in named[:-1])
        yield FileChange(named[-1], "written")
    elif step[0] == "cp" and len(named) > 1:
        yield FileChange(named[-1], "written")
    elif step[0] in ("touch", "tee", "create"):
        yield from (FileChange(path, "written") for path in named)
    elif step[0] == "sed" and any(word.startswith("-i") or word == "--in-place" for word in step) and named:
        yield FileChange(named[-1], "written")
