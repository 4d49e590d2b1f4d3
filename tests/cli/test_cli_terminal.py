"""Text from others never starts a line, hides characters or controls the terminal, in the output of any verb."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import compaction_store as cs
from cli.program import Run
from compaction_store.audit import safe_text

_FORGED = "ledger: 1 entries by content: no findings"
# Characters that control a terminal, end a line, change its direction or are invisible.
_HOSTILE = [
    "\n", "\r", "\r\n", "\t", "\v", "\f", "\b", "\x00", "\x07", "\x1b", "\x1b[2J", "\x1b]0;owned\x07", "\x7f", "\x85",
    "\x9b", "\u00ad", "\u034f", "\u061c", "\u115f", "\u17b4", "\u180e", "\u200b", "\u200c", "\u200d", "\u200e",
    "\u200f", "\u2028", "\u2029", *map(chr, range(0x202A, 0x202F)), "\u2060", "\u2063",
    *map(chr, range(0x2066, 0x206A)), "\u206f", "\u3164", "\ufeff", "\ufe0f", "\uffa0", "\ufff9",
    "\U0001d173", "\U000e0001", "\U000e0020", "\U000e0061", "\U000e007f", "\U000e0100",
]  # fmt: skip
_STYLES = re.compile(r"\x1b\[(?:0|1|2|31|33|1;31|32|36)m")
# A progress bar, which appears where a call takes longer than a second, hides the cursor and draws its line again.
_BAR = re.compile(r"\x1b\[\?25[lh]|\r\x1b\[1A\x1b\[2K|\r\x1b\[2K")


def is_harmless(seen: str) -> bool:
    """Returns whether all characters of a text are visible, except line ends."""
    rest = _STYLES.sub("", seen).replace("\n", "")
    unseen = "\u034f\u115f\u17b4\u3164\uffa0\ufe0f\U000e0100"
    return not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or c in unseen for c in rest)


@pytest.mark.parametrize("character", _HOSTILE, ids=ascii)
def test_a_character_that_is_not_seen_is_spelled_out(character: str) -> None:
    for text in (character, f"a{character}b", character * 3, f"{character}{character}"):
        for made in (safe_text.shown(text), *safe_text.lines(text)):
            assert is_harmless(made), ascii(made)
            assert "\n" not in made
        # The JSON value must be unchanged.
        if not any(0xD800 <= ord(c) <= 0xDFFF for c in text):
            written = safe_text.json_shown(json.dumps({"a": text}, ensure_ascii=False))
            assert is_harmless(written), ascii(written)
            assert json.loads(written) == {"a": text}


def test_every_character_without_a_shape_is_spelled_out() -> None:
    for code in (*range(0x3000), *range(0xD800, 0x11000), *range(0x1BC00, 0x1D200), *range(0xE0000, 0xE1000)):
        made = safe_text.shown(f"a{chr(code)}b")
        assert made == f"a{chr(code)}b" or made.isascii(), hex(code)
        assert is_harmless(made), hex(code)


@pytest.mark.parametrize(
    "text",
    [
        "plain", "größe", "日本語", "العربية", "עברית", "a  b", "naïve",
        "👩‍💻", "🏳️‍🌈", "❤️", "👍🏽", "👩🏽‍🚀", "1️⃣", "e\u0301", "\u00a0", "\u3000",
    ],
)  # fmt: skip
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert (safe_text.shown(text), safe_text.lines(text), safe_text.json_shown(text)) == (text, [text], text)


def test_joiners_and_selectors_join_nothing_but_pictures() -> None:
    assert safe_text.shown("a\u200db\ufe0f") == "a\\u200db\\ufe0f"
    assert safe_text.shown("👩\u200d\u200d💻") == "👩\\u200d\\u200d💻"
    assert safe_text.shown("👩\u200d\n") == "👩\\u200d\\n"
    assert safe_text.shown("❤\ufe0f\ufe0f") == "❤\ufe0f\\ufe0f"


def _fill(url: str, text: str) -> str:
    """Makes a thread in which everything that others can name or write is this text. Returns its name."""
    name = f"x: 5 entries by content: no findings{text}{_FORGED}"
    with cs.Store.open(url) as store:
        store.append(name, [{"role": "user", "content": f"hello{text}{_FORGED}"}] * 3)
        store.append(name, {"role": f"assistant{text}", "content": [{"type": f"thinking{text}", "x": text}]}, raw=True)
        actor = f"alice{text}{_FORGED}"
        store.compact(
            name, lambda ctx: ctx.compact(1, 2, f"short{text}"), force=True, actor=actor
        )  # fmt: skip
        store.custody.hold(name, reason=f"lawsuit{text}{_FORGED}", actor=actor)
        store.custody.release(name, reason=f"settled{text}{_FORGED}", actor=actor)
    return name


_BY_NAME = [
    ("view",), ("view", "--full"), ("replay",), ("replay", "--full"), ("events",), ("compactions",),
    ("verify", "--level", "schema"), ("stats",), ("explain", "1"), ("explain", "1", "--text"), ("show", "1"),
    ("view", "--json"), ("replay", "--json"), ("replay", "--payloads"), ("events", "--json"), ("compactions", "--text"),
    ("show", "1", "--json"), ("tree", "1"), ("tree", "1", "--text"), ("export",),
]  # fmt: skip
_OF_ALL = [("threads",), ("threads", "--json"), ("verify", "--all"), ("verify", "--all", "--json"), ("compactions",),
           ("stats",)]  # fmt: skip


def _lines_of(seen: str) -> list[str]:
    return [row.strip("\r") for row in _STYLES.sub("", seen).split("\n")]


@pytest.mark.parametrize("text", ["\n", "\r\u2028\x85\x1b[1G\u202e\u2066\u200b\U000e0061"], ids=["line", "others"])
def test_no_verb_lets_a_text_of_others_drive_a_terminal(run: Run, url: str, text: str) -> None:
    name = _fill(url, text)
    runs = [(verb, name, *rest) for verb, *rest in _BY_NAME] + _OF_ALL
    for arguments in runs:
        seen = run.on_terminal(*arguments, columns=100, NO_COLOR="1")
        assert is_harmless(_BAR.sub("", seen)), (arguments, ascii(seen))
        assert not any(row.startswith(("ledger", "short")) for row in _lines_of(seen)), (arguments, seen)


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("filler", [" ", ".", "\u00a0"])
def test_no_name_is_so_long_that_it_goes_on_where_a_line_begins(
    run: Run, store: cs.Store, columns: int, filler: str
) -> None:
    for wide in range(columns - 45, columns + 1, 3):
        store.append(f"{'x' * 5}{filler * (wide - 5)}{_FORGED}"[:127], {"role": "user", "content": "a"})
    for arguments in (("verify", "--all"), ("threads",)):
        seen = run.on_terminal(*arguments, columns=columns, NO_COLOR="1")
        assert not any(row.startswith("ledger: 1 entries by content") for row in _lines_of(seen)), seen


def test_a_text_of_several_lines_is_set_off(run: Run, store: cs.Store) -> None:
    store.append("t", {"role": "user", "content": f"first\n2 assistant, 9 tokens\n{'word ' * 40}2 assistant, 9 tokens"})
    for arguments in (("view", "t", "--full"), ("replay", "t", "--full")):
        for seen in (run.on_terminal(*arguments, columns=70, NO_COLOR="1"), run(*arguments, "--table").stdout):
            rows = _lines_of(seen)
            assert "  2 assistant, 9 tokens" in [row.rstrip() for row in rows]
            assert not any(row.startswith("2 assistant") for row in rows), seen


def test_errors_prompts_and_misuse_are_lines_too(run: Run, store: cs.Store, tmp_path: Path) -> None:
    name = f"gone\n{_FORGED}\u202e"
    for arguments in (("view", name), ("verify", name), ("redact", name, "1", "--reason", "r", "--yes")):
        done = run(*arguments, code=None)
        assert done.returncode
        assert is_harmless(done.stderr), arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
    done = run("append", "t", str(tmp_path / f"a\n{_FORGED}\u2066"), code=2)
    assert is_harmless(done.stderr)
    assert not any(row.startswith("ledger") for row in done.stderr.splitlines())
    done = run("verify", f"--no\n{_FORGED}\x1b[2J", code=2)
    assert is_harmless(done.stderr)
    store.append(f"t\n{_FORGED}", {"role": "user", "content": "a"})
    assert is_harmless(run.on_terminal("erase", f"t\n{_FORGED}\u2066", "--reason", "r", code=1, NO_COLOR="1"))


def test_a_picture_has_no_controls_in_its_title(run: Run, url: str, tmp_path: Path) -> None:
    name = _fill(url, "\n\u202e")
    run("stats", name, "--svg", str(tmp_path / "t.svg"))
    drawn = (tmp_path / "t.svg").read_text(encoding="utf-8")
    assert "\\n\\u202e" in drawn
    assert "\u202e" not in drawn


def test_what_the_doctor_quotes_of_a_database_is_one_line(run: Run, superuser: Any) -> None:
    superuser.execute(
        'CREATE FUNCTION compaction_store."x\nok       all is well" () RETURNS int LANGUAGE sql AS $$SELECT 1$$'
    )
    seen = run.on_terminal("doctor", code=1, NO_COLOR="1")
    assert not any(row.startswith("ok       all is well") for row in _lines_of(seen)), seen


def test_a_pipe_gets_json_as_it_is_stored(run: Run, store: cs.Store) -> None:
    store.append("t", {"role": "user", "content": "a\u202eb"})
    assert run("replay", "t", "--payloads").stdout == '{"role":"user","content":"a\u202eb"}\n'
    assert "a\u202eb" in run("export", "t").stdout
