"""The extra `fast` counts like tiktoken, and is not used if it might not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_store import tokens
from compaction_store.tokens import o200k

_TEXTS = [
    "", " ", " " * 5000, "a" * 3000, "<|endoftext|> and <|im_start|>", "don't DON'T I'Ll", "\r\n\r\n \t x", "१२३٤٥٦",
    "été\u0301", "👩\u200d👩\u200d👧", "\ud800 alone", "\x00\x01", "1234567890", "if(a!==b){return`${c}`;}",
    # Letters and marks of Unicode 17, which the two do not class alike.
    *(f"<{letter}divk" for letter in "\u088f\u0c5c\u1ad0\ua7d2\ua7f1\U00010942\U00016ea0\U000323b0\U00033479"),
    "\u00a0\u3000",
]  # fmt: skip


def by_tiktoken(text: str) -> int:
    """Counts a text in one piece."""
    return len(o200k.load().encode_ordinary(o200k.sound(text)))


@pytest.fixture
def anew() -> Iterator[None]:
    """The counting function is chosen again in the test, and after it."""
    o200k.piece_counter.cache_clear()
    yield
    o200k.piece_counter.cache_clear()


@pytest.mark.parametrize("text", _TEXTS)
def test_it_counts_texts_like_tiktoken(text: str) -> None:
    pytest.importorskip("quicktok")
    assert o200k.fast_counter() is not None
    assert o200k.piece_counter()(o200k.sound(text)) == by_tiktoken(text)


@given(st.text(st.characters(), max_size=200))
def test_it_counts_any_text_like_tiktoken(text: str) -> None:
    pytest.importorskip("quicktok")
    assert o200k.fast_counter() is not None
    assert o200k.piece_counter()(o200k.sound(text)) == by_tiktoken(text)


def test_it_is_used_where_it_is_installed_under_the_same_name() -> None:
    pytest.importorskip("quicktok")
    o200k.load()
    assert o200k.piece_counter().__name__ == "count_by_either"
    assert tokens.o200k_base().name == "tiktoken/o200k_base/pieces-4000/1"


@pytest.mark.usefixtures("anew")
def test_without_it_tiktoken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quicktok", None)
    assert o200k.fast_counter() is None
    assert [o200k.count(text) for text in _TEXTS if len(text) < 4000] == [
        by_tiktoken(text) for text in _TEXTS if len(text) < 4000
    ]


@pytest.mark.usefixtures("anew")
def test_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("quicktok"), "__version__", "0.4.1")
    assert o200k.fast_counter() is None
    assert o200k.count("hello world") == 2


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("name", ["o200k.vocab", "o200k.special", "uniclass_o200k.bin"])
def test_other_ranks_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    quicktok = pytest.importorskip("quicktok")
    shutil.copytree(Path(quicktok.__file__).parent / "data", tmp_path / "data")
    monkeypatch.setattr(quicktok, "__file__", str(tmp_path / "__init__.py"))
    assert o200k.fast_counter() is not None
    changed = bytearray((tmp_path / "data" / name).read_bytes())
    changed[-1] ^= 1
    (tmp_path / "data" / name).write_bytes(changed)
    assert o200k.fast_counter() is None
    (tmp_path / "data" / name).unlink()
    assert o200k.fast_counter() is None
