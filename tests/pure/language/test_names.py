"""Names in texts: paths, identifiers and numbers, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thread_patterns import calm

from compaction_store.language.names import NameReader, keys


def strong(text: str) -> dict[str, str]:
    return {name.text: name.kind for name in NameReader().names(text) if name.is_strong}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `compaction_store/language/names.py:12`, please", {"compaction_store/language/names.py": "path"}),
        (
            "in README.md and ./src/a.ts (or ~/.bashrc)",
            {"README.md": "path", "./src/a.ts": "path", "~/.bashrc": "path"},
        ),
        ("C:\\Users\\eva\\notes.txt", {"C:\\Users\\eva\\notes.txt": "path"}),
        ("https://example.com/a?b=1, then", {"https://example.com/a?b=1": "path"}),
        ("order W2378156 of sofia_kim_7287", {"W2378156": "identifier", "sofia_kim_7287": "identifier"}),
        (
            "set max_tokens=4096 in setUpClass()",
            {"max_tokens": "identifier", "4096": "number", "setUpClass": "identifier"},
        ),
        (
            "mail eva@example.org about #4711 and PR-12",
            {"eva@example.org": "identifier", "#4711": "identifier", "PR-12": "identifier"},
        ),
        ("commit 9f2c1de on eu-west-3", {"9f2c1de": "identifier", "eu-west-3": "identifier"}),
        ("it costs $1,234.50, due 2027-03-14", {"$1,234.50": "number", "2027-03-14": "number"}),
        ("version 1.24.3 of 8,192 rows", {"1.24.3": "number", "8,192": "number"}),
        ("std::unique_ptr and a.compact_now()", {"unique_ptr": "identifier", "a.compact_now": "identifier"}),
        ('{"path": "src/x.py", "n": 1}', {"src/x.py": "path"}),
        ('{"text": "first\\nsrc/b.py"}', {"src/b.py": "path"}),
        ("请修改src/config.py文件", {"src/config.py": "path"}),
        ("주문 번호는 KR-66120입니다. src/app.py에서", {"KR-66120": "identifier", "src/app.py": "path"}),
        ("config/서버.yaml을 열고 58231번 포트", {"config/서버.yaml": "path", "58231": "number"}),
        ("\x1b[31msrc/red.py\x1b[0m", {"src/red.py": "path"}),
    ],
)
def test_names_are_found(text: str, found: dict[str, str]) -> None:
    assert strong(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "and/or, he/she, 24/7, client/server, input/output",
        "e.g. this, i.e. that, etc. The end.Then more",
        "GitHub, TypeScript and UTF-8 are common knowledge; so are JSON and HTTP",
        "in 2026 there were 100 of 5000, 12 more and 7 at 10:30",
        "well-known, up-to-date, coding-agent",
        "What a lovely day! Isn't it? No -- really...",
        "x" * 4000,
        "QUJD" * 100,
    ],
)
def test_words_are_no_strong_names(text: str) -> None:
    assert strong(text) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [("$1,234.50", "1234.5"), ("./src/a.py", "src/a.py"), ("`user_id`", "user_id,"), ("README.md", "Readme.md")],
)
def test_a_name_has_one_key_however_it_is_written(one: str, other: str) -> None:
    assert [name.key for name in NameReader().names(one)] == [name.key for name in NameReader().names(other)]


def test_a_path_names_its_file_too() -> None:
    [name] = NameReader().names("/home/eva/store/src/probes/names.py")
    assert keys(name)[0] == "home/eva/store/src/probes/names.py"
    assert {"names.py", "probes/names.py"} <= set(keys(name))
    assert "compact_now" in keys(NameReader().names("store.compact_now")[0])


@calm
@given(st.text(st.sampled_from("aB1_-./\\:,=@#$% \"'(){}é中\n"), max_size=60))
def test_every_name_is_at_its_place(text: str) -> None:
    for name, start, end in NameReader().at(text):
        assert 0 <= start < end <= len(text)
        if "://" not in text:
            assert text[start:end] == name.text


@calm
@given(st.lists(st.text(st.sampled_from("aB1_-./:,= "), max_size=20), max_size=5))
def test_a_reader_that_knows_texts_reads_as_a_new_one(texts: list[str]) -> None:
    reader = NameReader()
    assert [reader.names(text) for text in texts * 2] == [NameReader().names(text) for text in texts * 2]
