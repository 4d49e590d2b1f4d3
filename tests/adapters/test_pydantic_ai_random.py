"""Random saves, branches, forks and deletes do the same to StoreConversations as to the framework's own store."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from conversation_store_suite import talk
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.exceptions import UserError

from compaction_store import AsyncStore
from compaction_store.adapters.pydantic_ai import StoreConversations

_NAMES = "xyz"
_STEPS = 60


async def _step(store: Any, step: str, choice: random.Random) -> Any:  # noqa: PLR0911 — one step after another
    """Does one step to a store; the same choices are made for each. Returns what can be compared."""
    name, other = choice.choice(_NAMES), choice.choice(_NAMES)
    place, texts = choice.random(), [str(choice.random()) for _ in range(choice.randrange(1, 4))]
    now = await store.load(name)
    try:
        if step in {"save", "rewrite", "spend"}:
            now = now or Conversation(conversation_id=name)
            if step == "rewrite":
                now.messages[int(place * (len(now.messages) + 1)) :] = talk(*texts)
                now.new_message_index = None
            elif step == "save":
                now.messages += talk(*texts)
            else:
                now.usage.requests += 1
            return len(await store.save(now))
        if now is None:
            return None
        at = int(place * (len(now.messages) + 1))
        if step == "branch":
            return len((await store.branch(name, at=at, expected_revision=now.revision)).messages)
        if step == "go back" and (tips := (await store.read_record(name)).branches):
            tip = tips[int(place * len(tips))]
            return len((await store.branch(name, from_entry=tip, expected_revision=now.revision)).messages)
        if step == "fork":
            return len((await store.fork(name, at=at, new_conversation_id=other)).messages)
        if step == "delete":
            await store.delete(name)
    except UserError as error:
        return type(error).__name__
    return None


async def _state(store: Any) -> list[Any]:
    """All histories, and those of the branches that each conversation left."""
    found: list[Any] = []
    for name in _NAMES:
        record = await store.read_record(name)
        tips = [] if record is None else [record.head_id, *record.branches]
        found += [[entry.message.parts[0].content for entry in await store.read_history(tip)] for tip in tips]
        found.append(None if record is None else record.usage)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_both_stores_do_the_same(url: str, seed: int) -> None:
    async def check() -> None:
        steps = random.Random(seed)
        theirs = InMemoryConversationStore()
        async with AsyncStore.open(url) as store:
            ours = StoreConversations(store)
            for number in range(_STEPS):
                step = steps.choice(["save", "save", "save", "branch", "go back", "fork", "delete", "rewrite", "spend"])
                done = [await _step(each, step, random.Random(f"{seed} {number}")) for each in (theirs, ours)]
                assert done[0] == done[1], (number, step)
                assert await _state(theirs) == await _state(ours), (number, step)
                for name in _NAMES:
                    shown = [m for m in (await store.view(name)).messages if m] if await ours.load(name) else []
                    assert len(shown) == len(await ours.load_entries(name) or []), (number, step)
            async for thread in store.threads():
                assert not (await store.audit.verify(thread.thread_id)).findings

    asyncio.run(check())


def test_many_writers_of_one_conversation_leave_a_view_that_is_its_history(url: str) -> None:
    async def check() -> None:
        async with AsyncStore.open(url) as one, AsyncStore.open(url) as two:

            async def write(number: int) -> None:
                conversations, choice = StoreConversations((one, two)[number % 2]), random.Random(number)
                for _ in range(20):
                    step = choice.choice(["save", "save", "branch", "delete", "spend"])
                    await _step(conversations, step, choice)

            await asyncio.gather(*(write(number) for number in range(6)))
            conversations = StoreConversations(one)
            for name in _NAMES:
                now = await conversations.load(name) or Conversation(conversation_id=name)
                now.messages += talk("end")
                await conversations.save(now)
                assert len((await one.view(name)).messages) == len(now.messages)
                assert not (await one.audit.verify(name)).findings

    asyncio.run(check())
