"""Names that differ look different, and commands name exactly what was meant."""

from __future__ import annotations

import html
import itertools
import subprocess

import pytest

from compaction_store.audit.safe_text import argument, is_plain, named, numbered, option, shown, word

PARTS = ("\\", "n", "u202e", "\u202e", "\n", "x1b", "\x1b", "\U000e0001", "U000e0001", "a")
HOSTILE = (
    "t\u202egpj.exe",
    "-a\nb",
    'it\'s "q" $HOME `id` \\ !',
    "\x1b[31m\x85\x7f",
    "é\u200b1",
    "--",
    "-x",
    "\r\n\t\U000e0041",
)


def test_different_names_look_different() -> None:
    names = {"".join(parts) for count in range(5) for parts in itertools.product(PARTS, repeat=count)}
    seen = {named(name): name for name in names}
    assert len(seen) == len(names)
    assert all(is_plain(each) for each in seen)


def test_a_backslash_is_doubled_only_where_it_could_mislead() -> None:
    assert named("t\u202e") == r"t\u202e"
    assert named(r"t\u202e") == r"t\\u202e"
    for name in (r"C:\Users", r"a\b", "order 7", "\\"):
        assert named(name) == name
    assert named(r"C:\new") == r"C:\\new"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_reads_the_exact_text_in_any_locale(text: str) -> None:
    for locale in ("C", "C.UTF-8"):
        done = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {word(text)} {option('--tenant', text)} {argument(text)}"],
            capture_output=True, check=True, env={"LC_ALL": locale, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        words = done.stdout.decode().split("\0")[:-1]
        assert words[0] == words[-1] == text
        given = [f"--tenant={text}"] if text.startswith("-") else ["--tenant", text]
        assert words[1:-1] == [*given, *(["--"] if text.startswith("-") else [])]
    assert is_plain(word(text))


@pytest.mark.parametrize("text", ["t\u202egpj.exe", "<a href='x'>&amp;\"", "a\nb\u2066"])
def test_a_field_has_the_exact_text(text: str) -> None:
    written = numbered(text)
    assert html.unescape(written) == text
    assert shown(written) == written
    assert not set("<>'\"") & set(written)


def test_a_browser_reads_every_character_of_a_field_as_it_was() -> None:
    # Python, like a browser, reads the references &#128; to &#159; as windows-1252. Unlike a browser, it drops those to
    # other control characters, so only those from U+0080 on are compared.
    for code in (*range(0x20, 0x7F), *range(0x80, 0xD800), *range(0xE000, 0xFDD0), 0xE0001, 0x1F600):
        assert html.unescape(numbered(chr(code))) == chr(code)
