"""Planted inventions are all found, and almost nothing else, in summaries of long texts: our own pages and examples.

The sources are whatever a tool returned, so they have code, tables, paths and figures; the summaries are extracts, so
that everything in them is true before something is planted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.paths import ROOT
from support.probed_threads import call, once, result, user
from support.strategy_runs import elements

from compaction_store.language.names import NameReader
from compaction_store.language.secrets import has_secret
from compaction_store.summarizers import Request, StateSummary

Payload = dict[str, Any]
PLANTED = 100
PAGES = (
    "adapters", "architecture", "bundles", "checkpoints", "compaction", "embedded", "erasure", "evaluation", "failures",
    "forks", "glossary", "imports", "summarizers", "tokens", "why",
)  # fmt: skip
MOST_FALSE = 0.01


def pages() -> Iterator[tuple[str, str]]:
    documented = (ROOT / "docs" / f"{name}.md" for name in PAGES)
    for path in (*documented, *sorted((ROOT / "examples").rglob("*.py"))[:6]):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def thread() -> list[Payload]:
    messages = [user("Read the pages, and say what is in them.")]
    for n, (name, text) in enumerate(pages()):
        messages += [call("read", {"path": name}, id=f"c{n}"), result(text, id=f"c{n}")]
    return messages


@pytest.fixture(scope="module")
def summary(thread: list[Payload]) -> str:
    return StateSummary(share=0.3, max_tokens=20_000)(Request.of(elements(thread))).text


def invented(dice: random.Random, real: str, kind: str) -> str:
    """A name that is like a real one and is none."""
    if kind == "number":
        return "".join(dice.choice("123456789") if c.isdigit() else c for c in real)
    # Not in an extension, and no capital: without these it would be a word.
    end = max(real.rfind("."), 0) or len(real)
    small = [i for i, c in enumerate(real[:end]) if c.islower()]
    at = dice.choice(small) if small else 0
    return f"{real[:at]}{dice.choice('qxzj')}{dice.choice('qxzj')}{real[at + bool(small) :]}"


def test_a_hundred_planted_inventions_are_found_and_under_one_in_a_hundred_names_is_a_false_alarm(
    thread: list[Payload], summary: str
) -> None:
    before = once(thread, summary, len(thread), "invented")
    false = {probe.text for probe in before if not probe.kept}
    assert len(before) > 300
    assert len(false) <= MOST_FALSE * len(before)

    dice = random.Random(7)
    everything = json.dumps(thread, ensure_ascii=False).casefold() + summary.casefold()
    names = [(name.text, name.kind) for name, _, _ in NameReader().at(summary) if name.is_strong]
    planted: dict[str, str] = {}
    while len(planted) < PLANTED:
        real, kind = dice.choice(names)
        fake = invented(dice, real, kind)
        # A text with the shape of a credential is masked where it is found, and a year is no name that must be kept.
        is_strong = any(name.is_strong for name, _, _ in NameReader().at(fake))
        if fake.casefold() not in everything and not has_secret(fake) and is_strong:
            planted[fake] = kind
    lines = summary.splitlines()
    for fake in planted:
        lines.insert(dice.randrange(len(lines)), f"They also looked at {fake} there.")
    after = {probe.text for probe in once(thread, "\n".join(lines), len(thread), "invented") if not probe.kept}
    missed = {fake for fake in planted if fake not in after and not any(fake in one or one in fake for one in after)}
    assert not missed
    assert after <= false | planted.keys()


def test_altered_quotations_are_found(thread: list[Payload]) -> None:
    sentences = [line for text in pages() for line in text[1].splitlines() if 40 < len(line) < 120 and line.isascii()]
    sentences = [line for line in sentences if line[0].isalpha() and line[-1].isalpha()]
    plain = [line for line in sentences if all(c.isalnum() or c in " ,.-" for c in line)][:40]
    assert len(plain) > 20
    exact = "\n".join(f'It says "{line}" there.' for line in plain)
    assert all(probe.kept for probe in once(thread, exact, len(thread), "invented") if probe.kind == "quotation")
    altered = exact.replace(" the ", " zhe ").replace(" a ", " ä ").replace(" is ", " isz ")
    lost = [probe for probe in once(thread, altered, len(thread), "invented") if not probe.kept]
    assert len(lost) == sum(one != other for one, other in zip(exact.splitlines(), altered.splitlines(), strict=True))
