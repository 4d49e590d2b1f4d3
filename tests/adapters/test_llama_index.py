"""Chat stores of LlamaIndex: messages that a memory deletes, replaces or summarizes stay in the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from llama_index.core.base.llms.types import ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore
from support.later_releases import change_views

from compaction_store import InvalidInput, Store
from compaction_store.adapters.llama_index import StoreChatStore, from_payload
from compaction_store.errors import UnknownEntry


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(params=["theirs", "ours"])
def chats(request: pytest.FixtureRequest, store: Store) -> Any:
    """The framework's own store in memory, and ours: they must do the same."""
    return SimpleChatStore() if request.param == "theirs" else StoreChatStore(store)


def talk(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role="assistant" if i % 2 else "user", content=text) for i, text in enumerate(texts)]


def texts(chats: Any, key: str = "k") -> list[Any]:
    return [message.content for message in chats.get_messages(key)]


def stored(store: Store, key: str = "k") -> list[str]:
    return [m.payload["content"][0]["text"] for m in store.replay(key) if m.payload]


# ---- the contract, of their store and ours


def test_messages_come_back_as_they_were_added(chats: Any) -> None:
    given = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(
            role="user", blocks=[TextBlock(text="Look: \x00 \U0001f600"), ImageBlock(image=b"\x89PNG\r\n\x1a\n")]
        ),
        ChatMessage(
            role="assistant",
            blocks=[ToolCallBlock(tool_call_id="t", tool_name="weather", tool_kwargs={"city": "Chur"})],
        ),
        ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": "t", "n": [1, None]}),
        ChatMessage(role="assistant", blocks=[]),
        ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [{"id": "u", "type": "function"}]}),
    ]
    assert chats.get_messages("k") == []
    for message in given:
        chats.add_message("k", message)
    assert chats.get_messages("k") == given
    assert chats.get_keys() == ["k"]


def test_messages_are_deleted_by_index(chats: Any) -> None:
    chats.set_messages("k", talk("a", "b", "c", "d", "e"))
    assert chats.delete_message("k", 1).content == "b"
    assert texts(chats) == ["a", "c", "d", "e"]
    assert chats.delete_message("k", 0).content == "a"
    assert chats.delete_message("k", 9) is None
    assert chats.delete_last_message("k").content == "e"
    assert texts(chats) == ["c", "d"]
    chats.add_message("k", ChatMessage(content="f"))
    assert chats.delete_message("k", 1).content == "d"
    assert texts(chats) == ["c", "f"]
    assert chats.delete_message("unknown", 0) is None
    assert chats.delete_last_message("unknown") is None


def test_all_messages_are_deleted(chats: Any) -> None:
    chats.set_messages("k", talk("a", "b"))
    chats.set_messages("l", talk("x"))
    assert [message.content for message in chats.delete_messages("k")] == ["a", "b"]
    assert chats.delete_messages("k") is None
    assert (texts(chats), chats.get_keys()) == ([], ["l"])
    chats.add_message("k", ChatMessage(content="c"))
    assert texts(chats) == ["c"]
    assert sorted(chats.get_keys()) == ["k", "l"]


@pytest.mark.parametrize(
    "then",
    [
        ["a", "b", "c", "d", "e", "f"],
        ["a", "b"],
        ["a", "b", "x", "d"],
        ["s", "c", "d"],
        ["s", "a", "b", "c", "d"],
        ["a", "d"],
        ["d"],
        ["x", "y"],
        ["d", "c", "b", "a"],
        ["a", "a", "b", "b", "c", "d", "d"],
        [],
    ],
)
@pytest.mark.parametrize("role", ["user", "system"])
def test_a_list_is_set(chats: Any, then: list[str], role: str) -> None:
    chats.set_messages("k", talk("a", "b", "c", "d"))
    for wanted in (then, [*then, "end"], ["start", *then], ["a", "b", "c", "d"]):
        chats.set_messages("k", [ChatMessage(role=role, content=text) for text in wanted])
        found = chats.get_messages("k")
        assert [(message.role, message.content) for message in found] == [(role, text) for text in wanted]


def test_the_methods_with_await_do_the_same(chats: Any) -> None:
    async def check() -> None:
        await chats.aset_messages("k", talk("a", "b", "c"))
        await chats.async_add_message("k", ChatMessage(content="d"))
        assert (await chats.adelete_message("k", 1)).content == "b"
        assert (await chats.adelete_last_message("k")).content == "d"
        assert [message.content for message in await chats.aget_messages("k")] == ["a", "c"]
        assert await chats.aget_keys() == ["k"]
        await chats.adelete_messages("k")
        assert await chats.aget_messages("k") == []

    asyncio.run(check())


# ---- what only ours does


def test_what_is_deleted_stays_and_is_undone(store: Store) -> None:
    chats = StoreChatStore(store, actor="agent")
    chats.set_messages("k", talk("a", "b", "c", "d"))
    chats.delete_message("k", 1)
    chats.delete_last_message("k")
    chats.delete_messages("k")
    assert texts(chats) == []
    assert stored(store) == ["a", "b", "c", "d"]
    assert {record.actor for record in store.compactions("k")} == {"agent"}
    assert not store.audit.verify("k").findings
    for record in list(store.compactions("k", newest_first=True)):
        if record.status == "active":
            store.revoke("k", record.number)
    assert texts(chats)[:2] in (["a", "b"], ["a", "c"])


def test_a_changed_prefix_is_one_record(store: Store) -> None:
    chats = StoreChatStore(store)
    chats.set_messages("k", talk("a", "b", "c", "d"))
    chats.set_messages("k", [ChatMessage(role="system", content="summary"), *talk("a", "b", "c", "d")[2:]])
    [record] = store.compactions("k")
    assert (record.kind, record.start_seq, record.end_seq, record.reason) == ("adoption", 1, 2, "set_messages")
    assert stored(store) == ["a", "b", "c", "d"]
    chats.add_message("k", ChatMessage(content="e"))
    assert [message.role.value for message in chats.get_messages("k")][:1] == ["system"]
    store.revoke("k", record.number)
    assert texts(chats) == ["a", "b", "c", "d", "e"]


def test_a_memory_that_summarizes_leaves_a_record_and_appends_nothing_twice(url: str) -> None:
    given = talk(*(f"message {i}" for i in range(12)))
    with Store.open(url) as store:
        memory = ChatSummaryMemoryBuffer.from_defaults(
            chat_store=StoreChatStore(store), chat_store_key="k", llm=MockLLM(max_tokens=4), token_limit=9,
            tokenizer_fn=str.split, count_initial_tokens=False,
        )  # fmt: skip
        sizes = []
        for message in given:
            memory.put(message)
            sizes.append(len(memory.get()))
        assert max(sizes) < 8
        final = memory.get()
    # The process has ended: another one goes on, and every original is there.
    with Store.open(url) as store:
        memory = ChatSummaryMemoryBuffer.from_defaults(
            chat_store=StoreChatStore(store), chat_store_key="k", token_limit=99, tokenizer_fn=str.split
        )
        assert memory.get_all() == final
        assert final[0].role.value == "system"
        assert stored(store) == [message.content for message in given]
        assert any(record.kind == "adoption" for record in store.compactions("k"))
        assert not store.audit.verify("k").findings


def test_a_buffer_keeps_all_and_shows_the_newest(store: Store) -> None:
    memory = ChatMemoryBuffer.from_defaults(
        chat_store=StoreChatStore(store), chat_store_key="k", token_limit=6, tokenizer_fn=str.split
    )
    for message in talk("one two", "three four", "five six", "seven eight"):
        memory.put(message)
    assert len(memory.get()) < 4
    assert len(memory.get_all()) == 4 == len(stored(store))


def test_a_compaction_of_the_store_itself_is_shown_and_kept(store: Store) -> None:
    chats = StoreChatStore(store)
    chats.set_messages("k", talk("a " * 99, "b", "c"))
    store.compact("k", lambda ctx: ctx.compact(1, 2, "They said a and b."))
    shown = chats.get_messages("k")
    assert "They said a and b." in shown[0].content
    chats.set_messages("k", [*shown, ChatMessage(content="d")])
    assert [message.content for message in chats.get_messages("k")] == [*(m.content for m in shown), "d"]
    assert len(stored(store)) == 4


def test_deleting_may_erase(store: Store) -> None:
    chats = StoreChatStore(store, on_delete="erase")
    chats.set_messages("k", talk("secret"))
    chats.delete_messages("k")
    assert (chats.get_keys(), chats.get_messages("k"), chats.delete_messages("k")) == ([], [], None)
    [stub] = store.threads()
    assert all(message.redacted for message in store.replay(stub.thread_id))


def test_concurrent_writers_lose_nothing(store: Store) -> None:
    chats = StoreChatStore(store)
    chats.set_messages("k", talk(*(f"old {i}" for i in range(8))))

    def work(number: int) -> Any:
        chats.add_message("k", ChatMessage(content=f"new {number}"))
        return chats.delete_message("k", 0).content

    with ThreadPoolExecutor(8) as pool:
        deleted = list(pool.map(work, range(8)))
    assert len(set(deleted)) == 8
    assert len(texts(chats)) == 8
    assert {f"new {i}" for i in range(8)} | {f"old {i}" for i in range(8)} == set(stored(store))


def test_a_long_list_is_set(store: Store) -> None:
    chats = StoreChatStore(store)
    given = talk(*(f"m{i}" for i in range(2_500)))
    chats.set_messages("k", given)
    assert chats.get_messages("k") == given


@pytest.mark.parametrize(
    ("options", "text"),
    [({"store": 3}, "store must be a Store, not int"), ({"on_delete": "drop"}, "on_delete must be one of")],
)
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        StoreChatStore(**{"store": store, **options})
    chats = StoreChatStore(store)
    with pytest.raises(InvalidInput, match="a message must be a ChatMessage, not str"):
        chats.add_message("k", "hi")
    with pytest.raises(InvalidInput, match="thread_id"):
        chats.get_messages("")


def test_large_messages_are_set_together(store: Store) -> None:
    chats = StoreChatStore(store)
    chats.set_messages("k", talk(*("x" * 10_000_000 for _ in range(8))))
    assert [len(text) for text in texts(chats)] == [10_000_000] * 8


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    chats = StoreChatStore(store)
    chats.set_messages("k", talk("a", "b"))
    change_views(superuser, "k")
    chats.add_message("k", talk("c")[0])
    for call in (
        lambda: chats.get_messages("k"), lambda: chats.set_messages("k", talk("d")), lambda: chats.delete_messages("k"),
        lambda: chats.delete_message("k", 0), lambda: chats.delete_last_message("k"),
    ):  # fmt: skip
        with pytest.raises(UnknownEntry):
            call()
    assert (chats.get_keys(), stored(store)) == (["k"], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("content", "text"), [(None, ""), ("", ""), ("hi", "hi"), ({"a": "ü"}, '{"a": "ü"}'), (3, "3"), (False, "false")]
)
def test_content_of_another_program_is_kept_as_text(content: object, text: str) -> None:
    assert (from_payload({"role": "user", "content": content}).content or "") == text
