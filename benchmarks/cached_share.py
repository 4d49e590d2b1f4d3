"""Measures how many of a summarizer's input tokens the provider's cache has: in a request of its own, and inline.

    PYTHONPATH=tests python -m benchmarks.cached_share FOLDER [--window 8000] [--most 20] [--seed 0] [--url URL]

An agent plays recorded threads, as `benchmarks.quality` reads them, against a local server that knows prefixes and
reports usage as Anthropic's or OpenAI's API does. Before each call, a view over 80 % of the window is folded by
`SlidingWindow(retain=6)`. The server's notes are always the same 300 tokens. Each thread has an empty cache at first,
although agents usually share a system prompt. Only the requests for summaries are counted: their input tokens, the
share that the cache had, and the tokens billed, where a token that is read from the cache costs a tenth of another
token, and with Anthropic a token that is written to it costs a quarter more.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
from support.messages_server import serving
from support.prefix_cache import CommonPrefixes, MarkedPrefixes

from benchmarks.databases import application, beside, server
from benchmarks.quality import long_threads, read_folder
from compaction_store import Store, TokenBudget, migrate
from compaction_store.evaluation import RecordedThread
from compaction_store.strategies import SlidingWindow, speaker
from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer

APIS = ("anthropic", "openai")
MODES = ("prompt", "inline")
NOTES = "The customer asked about orders, and the assistant looked them up and said what it had found. " * 16
#: What a token costs, by the field of the usage that counts it.
PRICES = {"input_tokens": 1.0, "cache_creation_input_tokens": 1.25, "cache_read_input_tokens": 0.1}


@contextmanager
def asking(api: str, mode: Any) -> Iterator[tuple[Callable[[Any], object], Any]]:
    """Yields a function that calls the agent's model with a view, and a summarizer. Both share a new cache."""
    with serving() as stub:
        settings: Any = {"api_key": "k", "base_url": stub.url, "max_retries": 0}
        if api == "anthropic":
            stub.does(MarkedPrefixes(NOTES))
            with anthropic.Anthropic(**settings) as client:
                summarize = AnthropicSummarizer(client, model="m", mode=mode, render=_for_anthropic)
                create: Any = partial(client.messages.create, model="m", max_tokens=9)
                yield (lambda view: create(**_for_anthropic(view))), summarize
        else:
            stub.does(CommonPrefixes(NOTES))
            with openai.OpenAI(**settings) as other:
                writer = OpenAISummarizer(other, model="m", mode=mode)
                create = partial(other.chat.completions.create, model="m")
                yield (lambda view: create(**view.for_openai())), writer


def _for_anthropic(view: Any) -> Any:
    return view.for_anthropic(cache="5m")


def play(store: Store, thread: RecordedThread, api: str, mode: str, window: int) -> Counter[str]:
    """Plays a thread. Returns the usage of the requests for summaries, and the number of `folds`."""
    name, budget, before = f"{thread.thread_id} {api} {mode}", TokenBudget(window), None
    with asking(api, mode) as (call, summarize):
        for message in thread.messages:
            who = speaker(message.payload)
            if who == "assistant" and before not in ("assistant", None):
                store.compact(name, SlidingWindow(summarize, retain=6), budget=budget)
                call(store.view(name))
            store.append(name, message.payload or {})
            before = who
    found = Counter[str]()
    for record in store.compactions(name):
        found["folds"] += record.outcome == "applied"
        found.update({field: record.usage.get(field, 0) for field in PRICES} if record.usage else {})
    return found


def line(api: str, mode: str, usage: Mapping[str, int]) -> str:
    sent = sum(usage[field] for field in PRICES)
    billed = sum(price * usage[field] for field, price in PRICES.items())
    cached = usage["cache_read_input_tokens"]
    return (
        f"| {api} | {mode} | {usage['folds']:,} | {sent:,} | {cached:,} | {100 * cached / max(1, sent):.0f} %"
        f" | {billed:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--window", type=int, default=8000, help="the model's window in tokens")
    parser.add_argument("--most", type=int, default=20, help="play at most so many threads, drawn from those that fold")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", help="a server with Postgres; without it, an embedded one is started")
    given = parser.parse_args()
    threads = long_threads(list(read_folder(given.folder)), given.window, given.most, given.seed)
    print(f"{len(threads):,} threads that fill a window of {given.window:,} tokens")
    print("| API | mode | folds | tokens sent | cached | share | billed |\n|---|---|---|---|---|---|---|")
    with server(given.url) as url, beside(url, "cached_share") as database:
        migrate.upgrade(database)
        with Store.open(application(database)) as store:
            for api in APIS:
                for mode in MODES:
                    usages = (play(store, thread, api, mode, given.window) for thread in threads)
                    print(line(api, mode, sum(usages, Counter())))


if __name__ == "__main__":
    main()
