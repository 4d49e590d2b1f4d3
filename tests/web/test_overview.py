"""The first page says what the store has, what is wrong with it, what was done, and where each is proved."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.checkpoints import KEY
from support.superuser_edits import WITH_NAMES

import compaction_store as cs
from compaction_store.audit.charts import ticks
from compaction_store.evaluation import Prices
from web.audited import THREAD, Client, visit

_PRICES = Prices.of_json({"currency": "EUR", "models": {"claude-haiku-4-5": {"input": 1, "output": 5}}})
_MADE = cs.Summary(
    "short", model="claude-haiku-4-5", summarizer="anthropic", prompt="Keep <b>numbers</b>.",
    usage={"input_tokens": 2000, "output_tokens": 100},
)  # fmt: skip


def boxes(url: str, **options: Any) -> dict[str, tuple[str, str, str]]:
    """Returns the state, the address and the text of each box by its name."""
    page = overview(url, **options)
    found = re.findall(
        r'<section class="box ([a-z]*)">\n<h2><a href="([^"]*)">([^<]*)</a></h2>(.*?)</section>', page, re.DOTALL
    )
    return {name: (state, address, text_of(text)) for state, address, name, text in found}


def text_of(page: str) -> str:
    """Returns the words of a part of a page, with one space between them."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def overview(url: str, **options: Any) -> str:
    pages: list[str] = []

    async def steps(client: Client) -> None:
        pages.append((await client.get("/")).text)

    visit(url, steps, **options)
    return pages[0]


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "log", KEY.key)


def test_a_sound_store_is_green_and_each_box_leads_to_its_list(
    url: str, store: cs.Store, log: cs.CheckpointLog
) -> None:
    store.audit.record_verification(level="content", threads=2, findings=0)
    store.audit.checkpoint(KEY, log)
    store.append("newer", {"role": "user", "content": "hi"})
    found = boxes(url, checkpoints=log)
    states = {name: (state, address) for name, (state, address, _) in found.items()}
    assert states == {
        "Completeness": ("good", "/integrity"), "Schema": ("good", "/integrity"),
        "Last full verification": ("good", "/integrity"), "Newest checkpoint": ("", "/integrity"),
        "Due for compaction": ("", "/threads"), "Holds and terms": ("", "/erasures"),
        "Erasures": ("", "/erasures?kind=redaction"), "Records": ("", "/records"),
    }  # fmt: skip
    # The log of the tenant, which the checkpoint covers too, is not counted.
    assert (
        "2 of 2 threads of the newest checkpoint are in the store, which has 3. 1 was begun since."
        in (found["Completeness"][2])
    )
    assert "No findings 2 threads, level content, 0 minutes ago" in found["Last full verification"][2]
    assert "1 on hold" in found["Holds and terms"][2]
    assert "5 compactions, 2 failed or refused" not in found["Records"][2]
    assert "In 30 days: 2 compactions, 2 failed or refused." in found["Records"][2]


@pytest.mark.one_server("Citus does not enable the triggers of shards again, and each is a finding")
def test_a_store_that_lacks_a_thread_is_red(
    url: str, store: cs.Store, log: cs.CheckpointLog, superuser: psycopg.Connection[Any]
) -> None:
    store.audit.checkpoint(KEY, log)
    uid = str(store.thread("other").thread_uid)
    for table in WITH_NAMES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER USER".encode())
        superuser.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s".encode(), (uid,))
    found = boxes(url, checkpoints=log)
    assert found["Completeness"][0] == "bad"
    assert found["Completeness"][2].startswith("1 of 2 threads of the newest checkpoint are in the store")
    assert found["Schema"][0] == "bad"
    assert "findings" in found["Schema"][2]


@pytest.mark.usefixtures("store")
def test_what_nobody_knows_is_neither_green_nor_red(url: str) -> None:
    found = boxes(url)
    assert [found[name][0] for name in ("Completeness", "Last full verification", "Newest checkpoint")] == [""] * 3
    assert "so nothing says how many there should be" in found["Completeness"][2]
    assert "Unknown" in found["Due for compaction"][2]


def test_a_verification_with_findings_is_red(url: str, store: cs.Store) -> None:
    store.audit.record_verification(level="content", threads=2, findings=3)
    assert boxes(url)["Last full verification"][::2] == ("bad", "3 findings 2 threads, level content, 0 minutes ago")


def test_terms_that_end_first_and_erasures_despite_a_hold_are_listed(url: str, store: cs.Store) -> None:
    for days in (40, 5, 90):
        store.append(f"kept {days}", {"role": "user", "content": "hi"})
        store.custody.retain(f"kept {days}", datetime.now(UTC) + timedelta(days=days), reason="tax law")
    store.custody.redact(THREAD, [2], reason="asked for", override="a court order", actor="dpo")
    found = boxes(url, budget=cs.TokenBudget(10))
    text = found["Holds and terms"][2]
    assert "3 retained" in text
    assert text.index("kept 5") < text.index("kept 40") < text.index("kept 90")
    assert re.search(r"Despite a hold or a term: \S+ \S+ by dpo", found["Erasures"][2])
    assert re.match(r"\d+ threads are above the trigger", found["Due for compaction"][2])


def test_money_models_and_prompts_are_those_of_the_newest_records(url: str, store: cs.Store) -> None:
    store.append("paid", [{"role": "user", "content": "word " * 300}] * 5)
    for first in (1, 2):
        store.compact("paid", lambda ctx: ctx.compact(first, first, _MADE))  # noqa: B023 — it is called at once
    # Copies cost nothing.
    store.fork("paid", "copy")
    page = overview(url, prices=_PRICES)
    assert "Cost of the newest records in EUR" in page
    # 2 times 2,000 tokens for 1 EUR a million, and 100 for 5.
    assert f"{datetime.now(UTC):%Y-%m-%d}: 0.005 EUR" in page
    text = text_of(page)
    assert re.search(r"claude-haiku-4-5 2 \S+ \S+ \S+ \S+ 2 of paid", text)
    assert re.search(r"Keep <b>numbers</b>\. 2 ", text)
    assert "<b>numbers" not in page
    assert "records?model=claude-haiku-4-5" in page
    hidden = overview(url, content=False)
    assert "numbers" not in hidden
    assert "Cost of the newest" not in hidden


def test_the_days_are_links_to_their_records(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("ALTER TABLE compaction_store.compactions DISABLE TRIGGER ALL")
    at = datetime.now(UTC).replace(hour=23, minute=59, second=59, microsecond=999_999) - timedelta(days=4)
    superuser.execute("UPDATE compaction_store.compactions SET created_at = %s WHERE number = 1", (at,))
    answers: list[str] = []

    async def steps(client: Client) -> None:
        page = (await client.get("/")).text
        [address] = set(re.findall(rf'<a href="(/records\?since={at:%Y-%m-%d}[^"]*)"', page))
        answers.append((await client.get(address.replace("&amp;", "&"))).text)

    visit(url, steps)
    [shown] = answers
    assert shown.partition("</table>")[0].count("<tr>") == 2
    assert store.compaction(THREAD, 1).created_at == at


def test_the_figures_are_read_again_after_a_minute(url: str, store: cs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(client: Client) -> None:
        texts = []
        for number in range(3):
            store.append(f"more {number}", {"role": "user", "content": "hi"})
            if number == 2:
                monkeypatch.setattr("compaction_store.web.caches._LONGEST_KEPT", 0.0)
            texts.append(re.findall(r'"figure">(\d+) threads<', (await client.get("/")).text))
        assert texts == [["3"], ["3"], ["3"]]

    visit(url, steps)

    async def again(client: Client) -> None:
        monkeypatch.setattr("compaction_store.web.caches._LONGEST_KEPT", 0.0)
        await client.get("/")
        store.append("last", {"role": "user", "content": "hi"})
        assert '"figure">6 threads<' in (await client.get("/")).text

    visit(url, again)


@pytest.mark.parametrize(
    ("top", "least", "marks"),
    [
        (0, 1, [0, 1]), (1, 1, [0, 1]), (3, 1, [0, 1, 2, 3]), (9076, 1, [0, 2000, 4000, 6000, 8000, 10000]),
        (8, 1, [0, 2, 4, 6, 8]), (1000, 1, [0, 200, 400, 600, 800, 1000]),
        (0.0033, 1e-6, [0, 0.001, 0.002, 0.003, 0.004]),
    ],
)  # fmt: skip
def test_ticks_are_round(top: float, least: float, marks: list[float]) -> None:
    assert ticks(top, least) == marks


@pytest.mark.parametrize(("top", "least"), [(10.0**n * part, 1e-6) for n in range(-5, 12) for part in (1, 2.7, 9.99)])
def test_ticks_are_few_and_reach_the_top(top: float, least: float) -> None:
    marks = ticks(top, least)
    assert marks[0] == 0
    assert 2 <= len(marks) <= 6
    assert marks[-2] < top * (1 + 1e-9)
    assert marks[-1] >= top * (1 - 1e-9)


def test_the_cost_of_a_record_is_unknown_without_a_price_or_a_usage(store: cs.Store) -> None:
    store.append("paid", [{"role": "user", "content": "word " * 300}] * 8)
    made: dict[str, cs.Summary] = {
        "known": _MADE,
        "cached": cs.Summary("short", model="claude-haiku-4-5", usage={
            "input_tokens": 1000, "cache_read_input_tokens": 1000, "output_tokens": 100,
        }),
        "other model": cs.Summary("short", model="m", usage={"input_tokens": 1, "output_tokens": 1}),
        "no usage": cs.Summary("short", model="claude-haiku-4-5"),
        "no model": cs.Summary("short"),
    }  # fmt: skip
    found: dict[str, float | None] = {}
    for seq, (name, summary) in enumerate(made.items(), 1):
        run = store.compact("paid", lambda ctx: ctx.compact(seq, seq, summary))  # noqa: B023 — it is called at once
        record = run.records[0]
        found[name] = _PRICES.spent(record)
    assert found == {"known": 0.0025, "cached": 0.0025, "other model": None, "no usage": None, "no model": 0.0}
