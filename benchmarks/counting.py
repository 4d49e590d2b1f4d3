"""Compares the counts of the extra `fast` with tiktoken's on every character and on generated texts.

    python -m benchmarks.counting [--texts 1000000] [--seed 1]

Says how fast each is. Fails at the first text that the two count differently.
"""

from __future__ import annotations

import argparse
import base64
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice

from compaction_store.tokens import o200k

# The first and last code points of the scripts and symbols that texts are made of.
BLOCKS = {
    "ASCII": (0x20, 0x7E), "Latin": (0xA0, 0x24F), "IPA": (0x250, 0x2FF), "marks": (0x300, 0x36F),
    "Greek": (0x370, 0x3FF), "Cyrillic": (0x400, 0x52F), "Armenian": (0x531, 0x58F), "Hebrew": (0x590, 0x5FF),
    "Arabic": (0x600, 0x6FF), "Devanagari": (0x900, 0x97F), "Tamil": (0xB80, 0xBFF), "Thai": (0xE00, 0xE7F),
    "Tibetan": (0xF00, 0xFFF), "Georgian": (0x10A0, 0x10FF), "Hangul": (0xAC00, 0xD7A3), "kana": (0x3040, 0x30FF),
    "Han": (0x4E00, 0x9FFF), "punctuation": (0x2000, 0x206F), "symbols": (0x2190, 0x27BF), "emoji": (0x1F300, 0x1FAFF),
    "controls": (0x00, 0x1F), "surrogates": (0xD800, 0xDFFF), "wide": (0xFF00, 0xFFEF), "old": (0x10000, 0x1049F),
    "any": (0x00, 0x10FFFF),
}  # fmt: skip
_SPECIAL = ("<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "<|fim_prefix|>", "<|", "|>")
_CODE = (
    "if(x!==null&&y>=0){", "return`${a}`;}", "for(let", "i=0;i<n;++i)", "f[i]=>", "/*c*/", "const", "function(", "});",
    "self.", "'\"\\#@_0x1F", "\n\t\t", "__init__", "snake_case", "camelCase", "0.5e-3", "<div/>", "don't",
)  # fmt: skip
_WORDS = [
    "The",
    "order",
    "did",
    "not",
    "arrive",
    "and",
    "I'D",
    "LIKE",
    "it's",
    "they'll",
    "we've",
    "HTTPServer",
    "iPhone",
    "x2",
    "3rd",
    "1234567",
]


# Surroundings in which every character is counted, because the classes of characters decide where a token may end.
_AROUND = ("{}", "a{}b", "A{}a", " {0}{0}", "{}'s", "1{}1", "!{}\n", "<{}k")


def every_character() -> Iterator[str]:
    for code in range(0x110000):
        for around in _AROUND:
            yield around.format(chr(code))


def text(chance: random.Random) -> str:
    """Makes one text of one to five parts."""
    return "".join(_part(chance) for _ in range(chance.randint(1, 5)))


def _part(chance: random.Random) -> str:
    kind = chance.randrange(9)
    if kind < 4:
        first, last = BLOCKS[chance.choice(list(BLOCKS))]
        return "".join(chr(chance.randint(first, last)) for _ in range(chance.randint(1, 30)))
    if kind == 4:
        return "".join(chance.choice("  \t\n\r\u00a0\u3000") for _ in range(chance.randint(1, 40)))
    if kind == 5:
        return base64.b64encode(chance.randbytes(chance.randint(1, 60))).decode()
    if kind == 6:
        return "".join(chance.choice(_CODE) for _ in range(chance.randint(1, 12)))
    if kind == 7:
        return chance.choice(_SPECIAL) + str(chance.randrange(10**9))
    return " ".join(chance.choice(_WORDS) for _ in range(chance.randint(1, 15)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    fast, encode = o200k.piece_counter(), o200k.load().encode_ordinary
    if o200k.fast_counter() is None:
        raise SystemExit("counting: the extra `fast` is not installed, or not in the version that is used")
    chance = random.Random(given.seed)
    seconds = {"quicktok": 0.0, "tiktoken": 0.0}

    def timed(name: str, count: Callable[[str], int], texts: list[str]) -> list[int]:
        start = time.process_time()
        counts = list(map(count, texts))
        seconds[name] += time.process_time() - start
        return counts

    made = chain(every_character(), (text(chance) for _ in range(given.texts)))
    done = characters = 0
    while True:
        texts = [o200k.sound(one) for one in islice(made, 10_000)]
        if not texts:
            break
        ours, theirs = timed("quicktok", fast, texts), timed("tiktoken", lambda t: len(encode(t)), texts)
        for one, mine, other in zip(texts, ours, theirs, strict=True):
            if mine != other:
                raise SystemExit(f"counting: quicktok counts {mine} tokens and tiktoken {other} in {one!r}")
        done += len(texts)
        characters += sum(map(len, texts))
    each = ", ".join(f"{name} {1e6 * spent / done:.1f} µs each" for name, spent in seconds.items())
    print(f"{done:,} texts of {characters // done} characters on average, no difference: {each}")


if __name__ == "__main__":
    main()
