"""Makes text safe for a terminal: one line stays one line, and every character is visible.

Names, reasons, actors, models and messages may contain anything. Control characters, line breaks, characters that
change the writing direction, and invisible ones are escaped, so that nobody can hide one in a name. Emoji are kept: a
joiner between two emoji and a variation selector after one are not escaped.

`named` also shows a text that contains what looks like an escape differently, so that two names never look the same.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Mapping

from compaction_store.module_data import ModuleData

#: The most characters of a text in one place of a page, such as a message in a list.
CUT = 4000
_JOINER = "\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
_TAB = 4
# The Unicode categories of control characters, format characters, surrogates, and line and paragraph separators.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IGNORED = re.compile(ModuleData(__file__).pattern("ignored"))
_CONTROLS = re.compile(r"[\x00-\x1f]")
_REFERENCES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"}
_WITHOUT_REFERENCE = frozenset(map(chr, range(0x80, 0xA0)))
_BACKSLASHES = re.compile(r"\\+")
# The text after the backslash in the escapes that `shown` writes.
_LIKE_ESCAPE = re.compile("[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}")


def named(text: str) -> str:
    """Returns a name, or another value, in one line. Different names look different.

    Unsafe characters are escaped as in `shown`. Backslashes are doubled before an escaped character, and before text
    that looks like an escape. In a sentence that quotes a name with `repr`, use `shown` instead, because `repr` has
    doubled the backslashes already.
    """
    if "\\" not in text:
        return shown(text)

    def doubled(found: re.Match[str]) -> str:
        end = found.end()
        is_escape = _LIKE_ESCAPE.match(text, end) is not None or (end < len(text) and not _is_seen(text, end))
        return found[0] * 2 if is_escape else found[0]

    return shown(_BACKSLASHES.sub(doubled, text))


def is_plain(text: str) -> bool:
    """Returns whether a text is in one line, and every character of it can be seen."""
    return shown(text) == text


def shown(text: str) -> str:
    """Returns a text in one line, with unsafe characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _is_seen(text, at) else one.encode("unicode_escape").decode() for at, one in enumerate(text))


def lines(text: str) -> list[str]:
    """Returns the lines of a text, with unsafe characters escaped. The caller must indent them."""
    return [shown(part.rstrip("\r").expandtabs(_TAB)) for part in text.split("\n")]


def numbered(text: str) -> str:
    """Returns the text with unsafe characters, and the signs of HTML, as HTML references.

    In an attribute of a page, a browser reads exactly the given text. U+0080 to U+009F stay as they are, because
    browsers read references to them as other characters, those of windows-1252.
    """
    return "".join(
        _REFERENCES.get(character)
        or (character if _is_seen(text, at) or character in _WITHOUT_REFERENCE else f"&#{ord(character)};")
        for at, character in enumerate(text)
    )


def json_shown(text: str) -> str:
    """Returns JSON of the same value with unsafe characters escaped. Raw ones between tokens become spaces."""
    text = _CONTROLS.sub(" ", text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if _is_seen(text, at) else json.dumps(character)[1:-1] for at, character in enumerate(text)
    )


def _is_seen(text: str, at: int) -> bool:
    character = text[at]
    if character.isascii():
        return character.isprintable()
    if character in _SELECTORS:
        return _is_pictorial(text, at - 1) or text[at + 1 : at + 2] == _KEYCAP
    if character == _JOINER:
        before = at - 2 if text[at - 1 : at] in tuple(_SELECTORS) else at - 1
        return _is_pictorial(text, before) and _is_pictorial(text, at + 1)
    return unicodedata.category(character) not in _CATEGORIES and _IGNORED.match(character) is None


def _is_pictorial(text: str, at: int) -> bool:
    """Returns whether the character may be an emoji or a skin tone, by its Unicode category."""
    return 0 <= at < len(text) and unicodedata.category(text[at]) in {"So", "Sk", "Sm"} and not text[at].isascii()


# ---- the commands that pages print


_SPELLED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def word(text: str) -> str:
    """Returns a text as one word of a shell, in which every character is visible.

    If the text has characters that a page must not show, uses the quotes `$'...'`, which bash, zsh and ksh read. The
    bytes of these characters are written as octal numbers, which do not depend on the locale.
    """
    if is_plain(text):
        # zsh replaces a word such as =ls by the path of the program.
        return f"'{text}'" if text.startswith("=") and shlex.quote(text) == text else shlex.quote(text)
    return "$'" + "".join(map(_in_shell, text)) + "'"


def option(name: str, text: str) -> str:
    """Returns an option with its value. The value may begin with `-`."""
    return f"{name}={word(text)}" if text.startswith("-") else f"{name} {word(text)}"


def argument(text: str) -> str:
    """Returns an argument, after `--` if it begins with `-`. It must come last."""
    return f"-- {word(text)}" if text.startswith("-") else word(text)


def _in_shell(character: str) -> str:
    octal = "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogatepass"))
    return _SPELLED.get(character) or (character if is_plain(character) else octal)


def tenant_option(tenant: str) -> str:
    """Returns the command line option for a tenant, with a space before it, or nothing for the default tenant."""
    return "" if tenant == "default" else f" {option('--tenant', tenant)}"


def as_csv(tenant: str, verb: str, options: Mapping[str, str | list[str] | None], last: str | None = None) -> str:
    """Returns the command that lists as CSV what a page shows. An option that is None is left out; "" is a flag."""
    given = [(name, text) for name, text in options.items() if text is not None]
    each = ((name, text) for name, texts in given for text in ([texts] if isinstance(texts, str) else texts))
    words = [word(f"{name}={text}" if text else name) for name, text in each]
    end = ["--", word(last)] if last else []
    return " ".join([f"compaction-store {verb}{tenant_option(tenant)}", *words, "--csv", *end])
