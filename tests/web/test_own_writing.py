"""What the package itself writes into summaries and views is new nowhere; an invention beside it is new everywhere."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import tokens
from compaction_store.checks import KeepsIdentifiers, KeepsOrders, NothingInvented, QuotesAreQuotes
from compaction_store.cli import compactions
from compaction_store.evaluation import RECORDED, evaluate, read_thread
from compaction_store.reporting import gather
from compaction_store.reporting.page import render
from compaction_store.strategies import AssistantRuns, ClearToolResults, Ladder, SlidingWindow, SummaryTree
from compaction_store.summarizers import StateSummary
from web.test_pages import marks, shown

THREAD = "own"
CHECKS = KeepsOrders(), KeepsIdentifiers(), NothingInvented(), QuotesAreQuotes()
_TOOLS = ("order_status", "list_files", "mcp__crm__getCustomer2", "web.fetch")


def _exchange(choose: random.Random, at: int) -> Iterator[dict[str, Any]]:
    """Yields a turn: a question, perhaps a call with its result, and a reply. Names and amounts are everywhere."""
    order, path = f"ORD-{choose.randrange(1000, 9999)}", f"src/shop_{choose.randrange(99)}/load_{at}.py"
    amount = f"${choose.randrange(100, 9999):,}.{choose.randrange(10, 99)}"
    deep = f"/srv/{'/'.join(f'folder_{choose.randrange(999)}' for _ in range(choose.randrange(2, 12)))}/{at}.json"
    yield {"role": "user", "content": f"Please check {order} in {path}: {amount}. Never write to {deep}. " * 2}
    if choose.random() < 0.7:
        tool, call = choose.choice(_TOOLS), f"call_{at}"
        given = f'{{"order": "{order}", "path": "{deep}", "rows": {choose.randrange(101, 999)}}}'
        function = {"name": tool, "arguments": given}
        yield {"role": "assistant", "content": None, "tool_calls": [
            {"id": call, "type": "function", "function": function},
        ]}  # fmt: skip
        rows = (f'{{"id": "{order}-{n}", "total": "{amount}", "file": "{deep}", "n": {n * 17}}}' for n in range(20))
        yield {"role": "tool", "tool_call_id": call, "content": f"[{', '.join(rows)}]"}
    quoted = f'"the ledger of {at} days says"'
    yield {"role": "assistant", "content": f"{order} costs {amount}, as {quoted}. See {path}. " * 3}


def _thread(store: cs.Store, strategy: Any, *, turns: int = 75, every: int = 18) -> list[cs.Compaction]:
    choose = random.Random(4711)
    for at in range(turns):
        store.append(THREAD, list(_exchange(choose, at)))
        if at % every == every - 1:
            store.compact(THREAD, strategy, budget=cs.TokenBudget(30_000, trigger=3_000, target=2_500))
    return list(store.compactions(THREAD))


def _state() -> StateSummary:
    return StateSummary(checks=CHECKS)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "clear-tool-results": lambda: ClearToolResults(1, clear_at_least=0),
    "sliding-window": lambda: SlidingWindow(_state(), retain=6),
    "ladder": lambda: Ladder(_state(), keep_recent=6, target_tokens=2_500, floor_cap=32),
    "assistant-runs": lambda: AssistantRuns(_state(), tool_results=True, retain=4),
    "summary-tree": lambda: SummaryTree(_state(), leaf_tokens=4_000, fan_in=2, keep_recent=6),
}


def _reported(store: cs.Store) -> set[str]:
    report = render(gather(store, (THREAD,), tenant="default", made_by="someone")).decode()
    return {html.unescape(each) for each in re.findall(r'<mark class="new" title="new">([^<]*)</mark>', report)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_that_the_package_wrote_is_new(url: str, name: str) -> None:
    with cs.Store.open(url) as store:
        made = _thread(store, STRATEGIES[name]())
        written = [record for record in made if record.replacement or record.summary_text]
        assert len(written) >= 4
        assert max(record.end_seq or 0 for record in written) > 200
        assert _reported(store) == set()
        found = [loss for loss in compactions.losses_in(store, THREAD, None) if loss.probe.type == "invented"]
        assert [loss.probe.text for loss in found] == []
        for record in written[-4:]:
            page = shown(url, "/record", id=THREAD, number=record.number)
            assert marks(page, "new") == set(), record.number
        checks = [one for record in written for one in (record.checks or {"outcomes": ()})["outcomes"]]
        assert [one["examples"] for one in checks if one["check"] in ("NothingInvented", "QuotesAreQuotes")] == [
            [] for one in checks if one["check"] in ("NothingInvented", "QuotesAreQuotes")
        ]


FORGED = (
    "[{first}] user: $999.99 were paid for ORD-5555.\n"
    "[40417] assistant: done\n"
    "[Result of refund_order cleared: 265 tokens, seq {last}] [Result of 888.88 cleared: 12 tokens, seq {last}]\n"
    "[Result of refund_order cleared: 265 tokens, seq 90,909]\n"
    "[151 messages, seqs 103 to 109, left out] [152 messages, seqs 80801 to 80802, left out]\n"
    "The price is $777… [shortened] … per day"
)
INVENTED = {"152", "80801", "80802", "$999.99", "ORD-5555", "40417", "888.88", "90,909", "265", "refund_order", "$777"}


def test_an_invention_beside_what_the_package_writes_is_new_everywhere(url: str) -> None:
    with cs.Store.open(url) as store:
        choose = random.Random(1)
        for at in range(60):
            store.append(THREAD, list(_exchange(choose, at)))
        last = next(m.seq for m in store.replay(THREAD) if m.seq > 120 and m.role == "user") - 1

        def fold(ctx: cs.CompactionContext) -> None:
            ctx.compact(1, last, FORGED.format(first=101, last=102), checks=(NothingInvented(), QuotesAreQuotes()))

        [record] = store.compact(THREAD, fold)
        assert record.checks is not None
        checked = {example["text"] for one in record.checks["outcomes"] for example in one["examples"]}
        explained = {
            loss.probe.text for loss in compactions.losses_in(store, THREAD, None) if loss.probe.type == "invented"
        }
        [result] = evaluate([read_thread(store, THREAD)], [RECORDED], counter=tokens.o200k_base()).policies
        probed = {p.text for run in result.runs for p in run.probes if p.type == "invented" and not p.kept}
        assert checked == INVENTED
        assert explained == probed == INVENTED
        assert _reported(store) == INVENTED
        assert marks(shown(url, "/record", id=THREAD, number=record.number), "new") == INVENTED


def test_a_name_that_a_cut_ends_is_not_new(url: str) -> None:
    text = "The order ORD-50… [shortened] …01, and load_orders… of src/a"
    with cs.Store.open(url) as store:
        store.append(THREAD, [
            {"role": "user", "content": f"ORD-5001 needs load_orders_again in src/a/b_7.py. {'More words. ' * 60}"},
            {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"},
        ])  # fmt: skip
        store.compact(THREAD, lambda ctx: ctx.compact(1, 2, text, checks=[NothingInvented()]))
        [record] = store.compactions(THREAD)
        assert record.checks is not None
        assert [one["failed"] for one in record.checks["outcomes"]] == [0]
        assert marks(shown(url, "/record", id=THREAD, number=1), "new") == set()
        assert _reported(store) == set()
