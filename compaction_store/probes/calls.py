"""Classifies tool calls: which calls are the same, which only look something up, and which files a call changes.

A stored call does not say what its tool does. So this module uses the name of the tool and the first word of a shell
command. A tool with an unknown name counts neither as a look-up nor as a write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from compaction_store.messages.stand_ins import files_of_cleared
from compaction_store.module_data import ModuleData
from compaction_store.probes.speech import ToolCall

FileState = Literal["written", "deleted", "moved"]

_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_DATA = ModuleData(__file__)
_LOOKS_UP = _DATA.words("looks_up")
_CHANGES = _DATA.words("changes")
_WRITES = _DATA.words("writes")
_PATH_FIELDS = tuple(_DATA.text("path_fields").split())
_SHELLS = _DATA.words("shells")
_COMMAND_FIELDS = ("command", "cmd", "script", "commands", "code")
_ABOUT_THE_CALL = _DATA.words("about_the_call")
_SHELL_LOOKS_UP = _DATA.words("shell_looks_up")
_SHELL_READS = _DATA.words("shell_reads")
_FINDS = _DATA.words("finds")
_GIT_LOOKS_UP = _DATA.words("git_looks_up")
_TOKEN = re.compile(_DATA.pattern("token"), re.DOTALL)
_HERE = re.compile(r"<<-?[ \t]*['\"]?(\w+)['\"]?[^\n]*\n")
_PATCHED = re.compile(r"^\*\*\* (Add|Update|Delete|Move to)(?: File)?: ([^\n]{1,500})", re.MULTILINE)
_LONGEST_PATH = 400
_READ = "read"
# Characters of patterns, variables and other syntax. A text with one of them is not taken for a path.
_NO_PATH = re.compile(r"[\n*?$`(){}<>|;\"]")
# Only this many characters of a command are read. The rest is mostly text that the command writes to a file.
_LONGEST_COMMAND = 4000


class FileChange(NamedTuple):
    """A file that a call wrote, deleted or moved. The path is written as in the call."""

    path: str
    state: FileState


def signature(call: ToolCall) -> str:
    """Returns a text that is equal for calls of a tool with the same input, apart from a reason or a timeout."""
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


def _humps(name: str) -> list[str]:
    return [hump.lower() for hump in _HUMP.findall(name)]


def looks_up(call: ToolCall) -> bool:
    """Returns whether a call only reads or searches."""
    if (command := shell_command(call)) is not None:
        steps = [step for step in _steps(command) if step and step[0] not in ("cd", "echo", "set", "true")]
        return bool(steps) and all(map(_step_looks_up, steps)) and not list(_shell_changes(command))
    humps = _humps(call.name)
    # If the tool is an editor, its input has a command, such as "view".
    if isinstance(call.given, dict) and isinstance(verb := call.given.get("command"), str) and verb in ("view", "read"):
        return True
    return any(hump in _LOOKS_UP for hump in humps) and not any(hump in _CHANGES for hump in humps)


def shell_command(call: ToolCall) -> str | None:
    """Returns the shell command that a call runs, or None if it runs no shell command."""
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
    """Yields the words of each simple command. If its output goes to a file, `>` and the file are among them."""
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


def _step_looks_up(step: Sequence[str]) -> bool:
    return step[0] in _SHELL_LOOKS_UP if step[0] != "git" else len(step) > 1 and step[1] in _GIT_LOOKS_UP


def changed_files(call: ToolCall) -> list[FileChange]:
    """Returns the files that a call changes, in order. Of a shell command, leaves out paths that look like folders."""
    if known := files_of_cleared(call.given):
        return [FileChange(path, cast("FileState", state)) for path, state in known if state != _READ]
    if (command := shell_command(call)) is not None:
        return [change for change in _shell_changes(command) if _is_file(change.path)]
    if (patch := _patch(call)) is not None:
        return list(_patch_changes(patch))
    return [change] if (change := _edited(call)) is not None else []


def _edited(call: ToolCall) -> FileChange | None:
    """Returns the file that an editor's call changes, or None. A tool that edits orders or users has no path."""
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


def read_file(call: ToolCall) -> str | None:
    """Returns the file that a call reads, or None. A shell command reads a file if it is all that the command does."""
    given = call.given
    if known := files_of_cleared(given):
        return next((path for path, state in known if state == _READ), None)
    if (command := shell_command(call)) is not None:
        steps = [step for step in _steps(command) if step and step[0] != "cd"]
        named = [word for word in steps[0][1:] if _is_path(word) and _is_file(word)] if len(steps) == 1 else []
        return named[-1] if named and steps[0][0] in _SHELL_READS and ">" not in steps[0] else None
    if not isinstance(given, dict) or not looks_up(call) or not _FINDS.isdisjoint(_humps(call.name)):
        return None
    path = next((given[field] for field in _PATH_FIELDS if isinstance(given.get(field), str)), "")
    return path if _is_path(path) and _is_file(path) else None


def used_files(call: ToolCall) -> Iterator[str]:
    """Yields the files that a call changes or reads, each with its state, such as `a.py (written)`."""
    yield from (f"{change.path} ({change.state})" for change in changed_files(call))
    if (path := read_file(call)) is not None:
        yield f"{path} ({_READ})"


def _is_file(path: str) -> bool:
    """Returns whether a path in a shell command looks like a file: its name has an extension or is a known name."""
    name = path.rstrip("/").rpartition("/")[2]
    return "." in name.strip(".") or name.startswith(".") or name in ("Makefile", "Dockerfile", "LICENSE", "README")


def _patch(call: ToolCall) -> str | None:
    given = call.given
    if isinstance(given, str):
        return given if "*** Begin Patch" in given else None
    if isinstance(given, dict):
        if isinstance(given.get("path"), str) and isinstance(given.get("type"), str) and "diff" in given:
            # This is an operation of OpenAI's apply_patch tool.
            verb = {"create_file": "Add", "delete_file": "Delete"}.get(given["type"], "Update")
            return f"*** {verb} File: {given['path']}"
        return next((value for value in given.values() if isinstance(value, str) and "*** Begin Patch" in value), None)
    return None


def _patch_changes(patch: str) -> Iterator[FileChange]:
    last: str | None = None
    for verb, named in _PATCHED.findall(patch):
        path = named.strip()
        if verb == "Move to" and last is not None:
            yield FileChange(last, "deleted")
        last = path if verb == "Update" else None
        yield FileChange(path, "deleted" if verb == "Delete" else "written")


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
    elif step[0] in ("mv", "rename", "cp") and len(named) > 1:
        yield from (FileChange(path, "moved") for path in named[:-1] if step[0] != "cp")
        yield FileChange(named[-1], "written")
    elif step[0] in ("curl", "wget"):
        # The file that follows the option for the output.
        outputs = [to for option, to in pairwise(step) if option in ("-o", "--output", "-O", "--output-document")]
        yield from (FileChange(path, "written") for path in outputs if _is_path(path) and "://" not in path)
    elif step[0] == "restore" or (step[0] == "checkout" and "--" in step):
        after = step[step.index("--") + 1 :] if "--" in step else step[1:]
        yield from (FileChange(path, "written") for path in after if path in named)
    elif step[0] in ("touch", "tee", "create"):
        yield from (FileChange(path, "written") for path in named)
    elif step[0] == "sed" and any(word.startswith("-i") or word == "--in-place" for word in step) and named:
        yield FileChange(named[-1], "written")
