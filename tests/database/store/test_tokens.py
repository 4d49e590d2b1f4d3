"""Counting: exact for the encoding, by stated rules elsewhere, without a network, and fast for any text."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT
from tiktoken import Encoding

import compaction_store as cs
from compaction_store import tokens
from compaction_store.errors import CounterFailed
from compaction_store.tokens import o200k

COUNTER = tokens.o200k_base()
PUBLISHED = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def whole(text: str) -> int:
    """Returns the encoder's own count of a text, in one piece."""
    return len(o200k.load().encode_ordinary(text))


def counted(message: dict[str, Any]) -> int:
    return COUNTER.messages([message])


def texts(*given: str) -> int:
    """Returns the tokens of a message with exactly these texts."""
    return 3 + sum(map(whole, given))


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


# These figures were computed once with the encoder and the published ranks.


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a", 1),
        ("hello world", 2),
        ("What's the weather like in San Francisco?", 8),
        ("The result is 4.", 6),
        ("<|endoftext|>", 7),
        ("antidisestablishmentarianism", 6),
        ("お誕生日おめでとう", 8),
    ],
)
def test_texts_count_as_is_known(text: str, count: int) -> None:
    assert tokens.count_text(text) == whole(text) == count


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({"role": "user", "content": "What's the weather like in San Francisco?"}, 11),
        ({"role": "assistant", "content": None}, 3),
        ({"role": "tool", "tool_call_id": "call_calc", "content": "4"}, 4),
        (
            {
                "role": "assistant",
                "content": "Let me check that for you.",
                "tool_calls": [
                    {"id": "call_123", "type": "function", "function": {"name": "test_func", "arguments": "{}"}}
                ],
            },
            17,
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "toolu_xyz456",
                        "name": "get_weather",
                        "input": {"location": "San Francisco", "unit": "celsius"},
                    }
                ],
            },
            20,
        ),
        (
            user(
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_xyz456",
                    "content": "The weather in San Francisco is 22°C and sunny.",
                }
            ),
            19,
        ),
    ],
)
def test_messages_count_as_is_known(message: dict[str, Any], count: int) -> None:
    assert counted(message) == count


def test_the_ranks_are_the_published_ones() -> None:
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(o200k.ranks().items(), key=_second))
    assert hashlib.sha256(b"".join(lines)).hexdigest() == PUBLISHED


def _second(item: tuple[bytes, int]) -> int:
    return item[1]


def test_the_script_packs_the_published_file_into_what_ships_and_refuses_another(tmp_path: Path) -> None:
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(o200k.ranks().items(), key=_second))
    published = tmp_path / "o200k_base.tiktoken"
    published.write_bytes(b"".join(lines))
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import ranks; ranks.PACKED = ranks.Path(sys.argv[2]); ranks.main()"
    )
    pack = [sys.executable, "-c", code, str(published), str(tmp_path / "packed")]
    subprocess.run(pack, cwd=ROOT, check=True)
    packed = (tmp_path / "packed").read_bytes()
    shipped = (ROOT / "compaction_store" / "tokens" / "ranks" / "o200k_base.zlib").read_bytes()
    assert zlib.decompress(packed) == zlib.decompress(shipped)
    published.write_bytes(published.read_bytes() + b"\n")
    assert subprocess.run(pack, cwd=ROOT, capture_output=True, check=False).returncode == 1


# Texts of any kind and size


@pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "<|fim_prefix|>"])
def test_special_tokens_in_a_text_are_text(special: str) -> None:
    assert counted({"role": "user", "content": special}) == texts(special)
    assert tokens.count_text(special) > 3
    assert special.startswith(tokens.cut(special, 3, mark=""))


def test_half_a_surrogate_pair_is_a_replacement_character() -> None:
    assert tokens.count_text("a\ud800b\udfff") == whole("a\ufffdb\ufffd")
    assert tokens.count_text("x \ud800 " * 5000) == tokens.count_text("x \ufffd " * 5000)


_KINDS_OF_TEXT: dict[str, Callable[[random.Random], str]] = {
    "letters": lambda r: "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=100_000)) * 100,
    "one letter": lambda _r: "a" * 10_000_000,
    "spaces": lambda _r: " " * 10_000_000,
    "spaces, then a letter": lambda _r: " " * 9_999_999 + "x",
    "spaces and tabs": lambda r: "".join(r.choices(" \t", k=1_000_000)) * 10,
    "lines": lambda _r: "\n" * 10_000_000,
    "lines of spaces": lambda _r: "\n " * 5_000_000,
    "digits": lambda r: "".join(r.choices("0123456789", k=1_000_000)) * 10,
    "han": lambda r: "".join(chr(r.randrange(0x4E00, 0x9FFF)) for _ in range(330_000)) * 10,
    "emoji": lambda r: "".join(chr(r.randrange(0x1F300, 0x1F6FF)) for _ in range(250_000)) * 10,
    "surrogates": lambda _r: "\ud800" * 3_000_000,
    "surrogates and letters": lambda r: "".join(r.choices("\ud800\udfffab ", k=3_000_000)),
    "nul": lambda _r: "\0" * 10_000_000,
    "marks": lambda _r: "!" * 10_000_000,
    "apostrophes": lambda _r: "'s" * 5_000_000,
    "everything": lambda r: "".join(chr(r.randrange(0xD800)) for _ in range(400_000)) * 10,
}


@pytest.mark.parametrize("kind", sorted(_KINDS_OF_TEXT))
def test_ten_megabytes_of_anything_are_counted_and_cut(kind: str) -> None:
    """No time is asserted: the encoder by itself gives up on a million spaces, and takes minutes for some of these."""
    text = _KINDS_OF_TEXT[kind](random.Random(7))
    count = tokens.count_text(text)
    assert len(text) // 128 <= count <= 4 * len(text)
    medium = {"role": "user", "content": [{"type": "text", "text": text[:60_000]} for _ in range(20)]}
    assert counted(medium) == 3 + 20 * tokens.count_text(text[:60_000])
    for keep in ("head", "tail", "middle", "ends"):
        assert 0 < tokens.count_text(tokens.cut(text, 1000, keep)) <= 1000


HAN = "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年"


def _prose(random_: random.Random, length: int) -> str:
    words = [
        "the",
        "store",
        "keeps",
        "every",
        "message",
        "don't",
        "(see",
        "below),",
        "and",
        "42",
        "rows.\n\n",
        "Où",
        "naïve",
    ]
    return " ".join(random_.choices(words, k=length))


def _code(random_: random.Random) -> str:
    lines = (f"    if x_{random_.randrange(99)} != '{i}':\n\treturn a[{i}]" for i in range(6000))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "make",
    [
        lambda r: _prose(r, 60_000),
        _code,
        lambda r: "{" + ",".join(f'"key_{i}":{{"v":[{r.random()},null,true]}}' for i in range(6000)) + "}",
        lambda r: "".join(r.choices(HAN, k=19)) * 900,
        lambda r: "\uff0c".join("".join(r.choices(HAN, k=12)) for _ in range(9000)),
        lambda r: "\r\n".join("','".join(r.choices(["ab", "cd1", "ef-g"], k=20)) for _ in range(2000)),
        lambda _r: '            "♻",\n' * 8000,
    ],
    ids=["prose", "code", "json", "han without marks", "han", "quotes", "table"],
)
def test_pieces_add_up_to_the_whole(make: Callable[[random.Random], str], request: pytest.FixtureRequest) -> None:
    text = make(random.Random(3))
    count, exact = tokens.count_text(text), whole(text)
    if "without" in request.node.name:
        assert abs(count - exact) <= len(text) // 4000
    else:
        assert count == exact


_SHARDS = [*"abZ09 \n\r\t!/'_-.,;:(){}[]<>\"\\é中。，ʰ\u0301\u00a0\u3000😀ſ½\x1c\x85", "'s", "'LL", "\r\n", "  ", "//"]  # noqa: RUF001


@given(st.integers())
def test_a_piece_ends_where_every_token_does(seed: int) -> None:
    source = random.Random(seed)
    weights = [source.random() ** 3 for _ in _SHARDS]
    text = "".join(source.choices(_SHARDS, weights, k=source.randrange(4001, 9000))) + "x"
    cuts = list(itertools.accumulate(map(len, o200k._pieces(text))))
    assert cuts[-1] == len(text)
    if all(re.compile(o200k._ENDS).match(text, cut) for cut in cuts):
        assert tokens.count_text(text) == whole(text)


def test_a_long_run_without_a_break_gains_about_a_token_a_piece() -> None:
    text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=60_000))
    assert 0 <= tokens.count_text(text) - whole(text) <= 3 * (len(text) // 4000)


# Cutting


@given(st.text(max_size=300), st.integers(0, 60), st.sampled_from(["head", "tail", "middle", "ends"]))
def test_a_cut_has_no_more_tokens_than_asked_and_no_half_character(text: str, most: int, keep: Any) -> None:
    for counter in (COUNTER, tokens.bytes_over_four(), tokens.from_callable(_letters)):
        kept = counter.cut(text, most, keep, "…")
        assert counter.text(kept) <= most
        if counter.text(text) <= most:
            assert kept == text
        bare = counter.cut(text, most, keep, "")
        assert len(bare) <= len(text)
        if keep == "head":
            assert text.startswith(bare)
        if keep == "tail":
            assert text.endswith(bare)
        if keep == "middle":
            assert bare in text
        if keep == "ends":
            assert any(text.startswith(bare[:i]) and text.endswith(bare[i:]) for i in range(len(bare) + 1))


def _letters(message: dict[str, Any]) -> int:
    return 7 + len(message["content"])


def test_what_is_kept_is_what_was_asked_for() -> None:
    text = " ".join(f"w{i:04}" for i in range(10_000))
    head, tail = tokens.cut(text, 300), tokens.cut(text, 300, "tail")
    assert head.startswith("w0000 w0001")
    assert head.endswith("…")
    assert tail.startswith("…")
    assert tail.endswith("w9998 w9999")
    middle = tokens.cut(text, 300, "middle")
    assert middle[0] == middle[-1] == "…"
    assert "w5000" in middle
    ends = tokens.cut(text, 300, "ends", " [cut] ")
    assert ends.startswith("w0000 w0001")
    assert ends.endswith("w9998 w9999")
    assert ends.count(" [cut] ") == 1
    for kept in (head, tail, middle, ends):
        assert 280 <= tokens.count_text(kept) <= 300
    assert tokens.cut(text, 0) == ""
    assert tokens.cut("", 0) == ""
    assert tokens.cut(text, 2, mark=" a mark of several tokens ") == text[: len(tokens.cut(text, 2, mark=""))]
    assert tokens.cut("👩‍👩‍👧‍👦" * 50, 7, mark="").encode()


@pytest.mark.parametrize(("most", "keep"), [(-1, "head"), (1.0, "head"), (True, "head"), ("1", "head"), (1, "start")])
def test_a_cut_that_makes_no_sense_is_refused(most: Any, keep: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        tokens.cut("some text", most, keep)


# Counters


def test_the_counters_are_named() -> None:
    assert COUNTER.name == "tiktoken/o200k_base/pieces-4000/1"
    assert tokens.bytes_over_four().name == "bytes/4"
    assert tokens.from_callable(_letters).name == "_letters"

    class Named:
        name = "house/2"

        def __call__(self, message: dict[str, Any]) -> int:
            return len(message)

    assert tokens.from_callable(Named()).name == "house/2"
    assert tokens.chosen(None) == tokens.chosen(None)
    assert tokens.chosen(COUNTER) is COUNTER
    assert tokens.chosen(Named()).messages([{"a": 1, "b": 2}, None, {}]) == 2


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "a\nb", "x" * 256, 5])
def test_a_counter_needs_a_name_that_can_be_stored(name: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        tokens.Counter(name, lambda _payload, _size: 1)


def test_a_counter_that_is_none_is_refused(faces: Any, url: str) -> None:
    with pytest.raises(cs.InvalidInput):
        faces.open(url, counter="o200k_base")


def test_messages_are_counted_as_if_they_were_appended(store: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "héllo"},
        {"x": ["\ud800"]},
        {"role": "assistant", "content": [{"type": "image"}]},
    ]
    assert [m.tokens for m in store.append("t", messages, raw=True)] == [counted(m) for m in messages]
    assert COUNTER.messages(store.view("t").messages) == store.view("t").tokens
    quarter = tokens.bytes_over_four()
    sizes = [len(m.text.encode()) for m in store.replay("t")]
    assert quarter.messages(messages) == sum((size + 3) // 4 for size in sizes)


def test_the_counters_name_is_stored_with_each_message(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    for counter in (None, tokens.bytes_over_four(), _letters):
        faces.open(url, counter=counter).append("t", {"role": "user", "content": "four"})
    rows = superuser.execute("SELECT counter, tokens FROM compaction_store.messages ORDER BY seq").fetchall()
    assert rows == [("tiktoken/o200k_base/pieces-4000/1", 4), ("bytes/4", 8), ("_letters", 11)]


def _secret(_message: Any) -> int:
    raise ValueError("the secret content")


async def _later(_message: Any) -> int:
    return 1


@pytest.mark.parametrize("returns", [-1, 2**31, 1.0, True, None, "5", [1]])
def test_a_counter_that_returns_no_count_is_named_and_nothing_is_sent(faces: Any, url: str, returns: Any) -> None:
    def odd(_message: Any) -> Any:
        return returns

    store = faces.open(url, counter=odd)
    with pytest.raises(CounterFailed, match="odd"):
        store.append("t", {"role": "user", "content": "hi"})
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


@pytest.mark.parametrize("counter", [_secret, _later])
def test_a_counter_that_raises_is_named_and_its_words_are_not_repeated(faces: Any, url: str, counter: Any) -> None:
    store = faces.open(url, counter=counter)
    with pytest.raises(CounterFailed, match=counter.__name__) as caught:
        store.append("t", {"role": "user", "content": "hi"})
    assert "secret content" not in repr(caught.value)
    assert caught.value.__context__ is None
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_the_ranks_are_read_once_however_many_threads_ask(tmp_path: Path) -> None:
    code = """
import threading
from compaction_store.tokens import o200k
reads = []
ranks = o200k.ranks
o200k.ranks = lambda: reads.append(1) or ranks()
assert not o200k.is_loaded()
threads = [threading.Thread(target=o200k.count, args=("hello world",)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert o200k.is_loaded()
print(len(reads))
"""
    assert _alone(code, tmp_path) == "1\n"


def test_the_package_is_imported_without_the_encoder(tmp_path: Path) -> None:
    assert _alone("import sys, compaction_store; print('tiktoken' in sys.modules)", tmp_path) == "False\n"


def test_counting_needs_no_network_no_home_and_no_cache(tmp_path: Path) -> None:
    code = """
import os, sys
opened = []
def watch(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.")):
        raise SystemExit(f"the network: {event}")
    if event in {"open", "os.mkdir", "os.rename", "os.remove"}:
        opened.append(str(arguments[0]))
        writes = event != "open" or (isinstance(arguments[1], str) and set("wax+") & set(arguments[1]))
        if writes:
            raise SystemExit(f"{event} {arguments}")
sys.dont_write_bytecode = True
sys.addaudithook(watch)
import tempfile
from compaction_store import tokens
assert tokens.count_text("hello world") == 2
cache = os.environ["TIKTOKEN_CACHE_DIR"]
assert not [path for path in opened if path.startswith(cache) or "data-gym-cache" in path], opened
assert "tiktoken_ext.openai_public" not in sys.modules
print("counted", os.listdir(cache))
"""
    cache = tmp_path / "cache"
    cache.mkdir()
    # tiktoken's own loader would use this file without checking its contents.
    name = hashlib.sha1(b"https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken").hexdigest()  # noqa: S324
    (cache / name).write_bytes(b"poison")
    cache.chmod(0o500)
    printed = _alone(code, tmp_path, HOME="/nonexistent", TIKTOKEN_CACHE_DIR=str(cache), TMPDIR=str(tmp_path))
    assert printed == f"counted {[name]}\n"


def _alone(code: str, folder: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in {"COMPACTION_STORE_URL", "PYTHONPATH"}}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_long_texts_are_counted_off_the_event_loop_and_short_ones_on_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    count = o200k.count
    main = threading.main_thread()

    def watched(text: str) -> int:
        threads.append(threading.current_thread() is main)
        return count(text)

    monkeypatch.setattr(o200k, "count", watched)

    async def append(*sizes: int) -> list[bool]:
        threads.clear()
        async with await cs.AsyncStore.open(url) as store:
            await store.append("t", [{"role": "user", "content": "x " * size} for size in sizes])
        return list(threads)

    tokens.load()
    assert asyncio.run(append(100, 100)) == [True, True]
    assert asyncio.run(append(100, 40_000)) == [False, False]
    o200k._encoding.cache_clear()
    assert asyncio.run(append(100)) == [False]
    assert isinstance(o200k.load(), Encoding)


def test_the_loop_goes_on_while_a_large_text_is_counted(url: str) -> None:
    async def scenario() -> int:
        ticks = 0
        async with await cs.AsyncStore.open(url) as store:
            text = "".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxyz", k=4_000_000))
            appending = asyncio.create_task(store.append("t", {"role": "user", "content": text}))
            while not appending.done():
                await asyncio.sleep(0.001)
                ticks += 1
            assert (await appending)[0].tokens == tokens.count_text(text) + 3
        return ticks

    tokens.load()
    assert asyncio.run(scenario()) > 10
