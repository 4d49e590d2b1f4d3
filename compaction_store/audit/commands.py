"""The commands that pages print. A reader pastes them into a shell, so every name in them is quoted exactly."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from compaction_store.audit.safe_text import is_plain, shown

_SPELLED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def word(text: str) -> str:
    """Returns a text as one word of a shell, in which every character is visible.

    If the text has characters that a page must not show, uses the quotes `$'...'`, which bash, zsh and ksh read. The
    bytes of these characters are written as octal numbers, which do not depend on the locale.
    """
    if is_plain(text):
        # zsh replaces a word such as =ls by the path of the program.
        return f"'{text}'" if text.startswith("=") and shlex.quote(text) == text else shlex.quote(text)
    return "$'" + "".join(map(_spelled, text)) + "'"


def option(name: str, text: str) -> str:
    """Returns an option with its value. The value may begin with `-`."""
    return f"{name}={word(text)}" if text.startswith("-") else f"{name} {word(text)}"


def argument(text: str) -> str:
    """Returns an argument, after `--` if it begins with `-`. It must come last."""
    return f"-- {word(text)}" if text.startswith("-") else word(text)


def _spelled(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    if shown(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogatepass"))


_CHECKPOINT = " --checkpoints LOG --public-key HEX"


def tenant_option(tenant: str) -> str:
    """Returns the command line option for a tenant, with a space before it, or nothing for the default tenant."""
    return "" if tenant == "default" else f" {option('--tenant', tenant)}"


def as_csv(tenant: str, verb: str, options: Mapping[str, str | None], last: str | None = None) -> str:
    """Returns the command that lists as CSV what a page shows. An option that is None is left out; "" is a flag."""
    words = [word(f"{name}={text}" if text else name) for name, text in options.items() if text is not None]
    end = ["--", word(last)] if last else []
    return " ".join([f"compaction-store {verb}{tenant_option(tenant)}", *words, "--csv", *end])


def check_one(tenant: str, thread_id: str, *, has_checkpoint: bool) -> str:
    """Returns the commands that export a thread and check it elsewhere."""
    signed = _CHECKPOINT if has_checkpoint else ""
    key = " --public-key HEX" if has_checkpoint else ""
    return (
        f"compaction-store export{tenant_option(tenant)}{signed} {argument(thread_id)} > thread.jsonl\n"
        f"python -m compaction_store.offline thread.jsonl{key}"
    )


def check_all(tenant: str, *, has_checkpoint: bool) -> str:
    """Returns the commands that verify every thread in the database, and from files elsewhere."""
    signed, level, key = (_CHECKPOINT, " --level checkpoint", " --public-key HEX") if has_checkpoint else ("", "", "")
    return (
        f"compaction-store verify{tenant_option(tenant)} --all{level}{signed}\n"
        f"compaction-store export{tenant_option(tenant)} --all{signed} --to FOLDER\n"
        f"python -m compaction_store.offline FOLDER/*.jsonl{key}"
    )
