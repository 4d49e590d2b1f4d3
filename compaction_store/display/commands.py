"""Writes words of commands that a reader can paste into a shell."""

from __future__ import annotations

import shlex

from compaction_store.display.visible import is_plain, shown

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
