"""Counts and cuts text with the encoding o200k_base. Its ranks are part of the package, so no network is needed.

A text of over 4,000 characters is encoded in pieces, because the encoder is slow on long runs without a break and fails
on a million spaces. A piece ends where the encoding always ends a token: before a space, after a line, or before a
punctuation mark. The sum of the pieces is then exact. If the last 500 characters of a piece have no such place, the
text is divided anyway, which adds about one token.

Text that looks like a special token is counted as text. A lone surrogate is counted as U+FFFD.

With the extra `fast`, quicktok counts the pieces, in less time. It is used only in the version whose counts were
compared with tiktoken's (`benchmarks/counting.py`), only with its own files, and if it counts a sample alike.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiktoken import Encoding

NAME = "tiktoken/o200k_base/pieces-4000/1"
_RANKS = Path(__file__).parent / "ranks"
_PIECE = 4000
_TOKENS = 199_998
# The number of bytes in the longest token. A text with more characters has more than one token.
_LONGEST = 128
# Patterns for places that no token crosses, whatever text surrounds them.
_BEFORE_A_SPACE = r"(?<=\S)(?= )"
_AFTER_A_LINE = r"(?<=[\r\n])(?=[^\s/]|[ \t]{1,200}\S)"
# A token ends between a letter or digit and a punctuation mark, but not at an apostrophe inside a word, as in "don't".
_BEFORE_A_MARK = r"(?<=[^\W_])(?=[!-&(-/:-@\[-`{-~、。，！？；：]|'(?!\w))"  # noqa: RUF001
_ENDS = rf"\Z|{_BEFORE_A_SPACE}|{_AFTER_A_LINE}|{_BEFORE_A_MARK}"
_PIECES = re.compile(rf".{{3500,{_PIECE}}}(?:{_ENDS})|.{{1,{_PIECE}}}", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_loading = threading.Lock()
# The version of quicktok, and the SHA-256 of its ranks and of its classes of characters together.
_FAST_VERSION = "0.4.0"
_FAST_FILES = ("o200k.vocab", "o200k.special", "uniclass_o200k.bin")
_FAST_SUM = "9a7ffbbe4c6c96aefd83812ad2cc23b2e54bd2077e1268aff0de823cf44dbbba"
# Characters that may be letters for quicktok and not yet for tiktoken, because they are of Unicode 17, and whole planes
# of rare ones. tiktoken counts a piece with one of them.
_NEWER = re.compile(r"[\u088f\u0c5c\u0cdc\u1acf-\u1aeb\ua7ce-\ua7d4\ua7f1\U00010000-\U0001efff\U0001fb00-\U0010ffff]")
_SAMPLE = "It's 12345 na\u00efve:\n\n\t  if (x!=null){return`${x}`;}  \u041f\u0440\u0438 \u4e16\u754c! <|endoftext|>   "


def ranks() -> dict[bytes, int]:
    """Returns a dict from the bytes of every token to its rank."""
    data = zlib.decompress((_RANKS / "o200k_base.zlib").read_bytes())
    ends = accumulate(data[:_TOKENS], initial=_TOKENS)
    return {data[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


@cache
def _encoding() -> Encoding:
    encoding = _tiktoken().Encoding
    pattern = (_RANKS / "o200k_base.regex").read_text(encoding="utf-8")
    made: Encoding = encoding("o200k_base", pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})
    return made


def _tiktoken() -> ModuleType:
    """Imports tiktoken. This happens at the first count, because many programs never count tokens."""
    try:
        return import_module("tiktoken")
    except RuntimeError:
        pass
    # After the main thread has ended, Python refuses to import ThreadPoolExecutor. tiktoken uses it only for batches,
    # so any class can take its place.
    futures: Any = concurrent.futures
    futures.ThreadPoolExecutor = concurrent.futures.Executor
    try:
        return import_module("tiktoken")
    finally:
        del futures.ThreadPoolExecutor


@cache
def piece_counter() -> Callable[[str], int]:
    """Returns the function that counts the tokens of a piece."""
    encode = _encoding().encode_ordinary

    def count_piece(text: str) -> int:
        return len(encode(text))

    fast = fast_counter()
    if fast is None or fast(_SAMPLE) != count_piece(_SAMPLE):
        return count_piece

    def count_by_either(text: str) -> int:
        return fast(text) if text.isascii() or _NEWER.search(text) is None else count_piece(text)

    return count_by_either


def fast_counter() -> Callable[[str], int] | None:
    """Returns quicktok's function, or None if quicktok is not installed in the version and with the files expected."""
    try:
        quicktok: Any = import_module("quicktok")
        folder = Path(quicktok.__file__).parent / "data"
        found = sha256(b"".join((folder / name).read_bytes() for name in _FAST_FILES)).hexdigest()
        if quicktok.__version__ != _FAST_VERSION or found != _FAST_SUM:
            return None
        count: Callable[[str], int] = quicktok.get_encoding("o200k_base", str(folder)).count
    except (ImportError, OSError, AttributeError, RuntimeError, TypeError):
        return None
    return count


def load() -> Encoding:
    """Returns the encoding. The first call in a process reads it, which takes a quarter of a second."""
    with _loading:
        piece_counter()
        return _encoding()


def _start_anew() -> None:
    """Replaces the lock in a child process after a fork, because a thread of the parent may have held the lock."""
    global _loading  # noqa: PLW0603 — the process has one lock
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def is_loaded() -> bool:
    return _encoding.cache_info().currsize > 0


def sound(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _SURROGATE.sub("\ufffd", text)
    return text


def _pieces(text: str) -> list[str]:
    return _PIECES.findall(sound(text))


def count(text: str) -> int:
    """Counts the tokens of a text, in linear time for any text."""
    load()
    count_piece = piece_counter()
    if len(text) <= _PIECE:
        return count_piece(sound(text))
    # Count equal pieces once. A megabyte of one letter, for example, consists of many equal pieces.
    return sum(count_piece(piece) * times for piece, times in collections.Counter(_pieces(text)).items())


def head(text: str, most: int) -> str:
    """Returns the longest beginning of a text with at most `most` tokens. Never splits a character."""
    return text[: _length(_pieces(text[: (most + 1) * _LONGEST]), most)]


def tail(text: str, most: int) -> str:
    """Returns the longest end of a text with at most `most` tokens. Never splits a character."""
    return text[len(text) - _length(reversed(_pieces(text[-(most + 1) * _LONGEST :])), most, from_end=True) :]


def _length(pieces: Iterable[str], most: int, *, from_end: bool = False) -> int:
    """Returns how many characters of the pieces, at one end of a text, have at most `most` tokens."""
    encoding = load()
    length = 0
    for piece in pieces:
        tokens = encoding.encode_ordinary(piece)
        if len(tokens) > most:
            kept = tokens[len(tokens) - most :] if from_end else tokens[:most]
            return length + len(encoding.decode_bytes(kept).decode(errors="ignore"))
        most -= len(tokens)
        length += len(piece)
    return length
