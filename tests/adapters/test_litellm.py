"""The logger of LiteLLM: through the installed SDK and through its proxy, against a local server as the provider."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from support import chat_server as chat
from support.messages_server import Handler, Payload, Server, serving

# Without this, the import tries to download a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from support.later_releases import change_views

from compaction_store import CompactionStoreError, InvalidInput, Store
from compaction_store.adapters import litellm_calls
from compaction_store.adapters.litellm import StoreLogger

pytestmark = [
    # Pydantic says this of LiteLLM's own types and messages.
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    # LiteLLM leaves an event loop open.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

KEY = "sk-of-the-gateway"
HELLO = [{"role": "user", "content": "Where is my parcel?"}]


@pytest.fixture
def provider() -> Iterator[Server]:
    with serving() as server:
        server.does(chat.says("It is in hall seven."))
        yield server


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


@pytest.fixture
def logger(store: Store) -> Iterator[StoreLogger]:
    logger = StoreLogger(store)
    yield from _installed(logger)


def _installed(logger: StoreLogger) -> Iterator[StoreLogger]:
    litellm.callbacks = [logger]
    try:
        yield logger
    finally:
        # LiteLLM copies the callbacks to several lists.
        litellm.logging_callback_manager._reset_all_callbacks()
        logger.close()
        gc.collect()


def asked(provider: Server, messages: list[Any], session: str | None = "s", **options: Any) -> Any:
    if session is not None:
        options["litellm_session_id"] = session
    return litellm.completion(
        "openai/m", messages, api_base=f"{provider.url}/v1", api_key="none", max_retries=0, **options
    )


def replayed(store: Store, thread_id: str) -> list[Payload]:
    try:
        return [message.payload or {} for message in store.replay(thread_id)]
    except CompactionStoreError:
        return []


def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Waits for LiteLLM, which calls its loggers some time after the answer."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the logger was not called in time"
        time.sleep(0.05)
    return found


@pytest.mark.usefixtures("logger")
def test_a_conversation_is_one_thread_and_no_message_is_stored_twice(provider: Server, store: Store) -> None:
    first = asked(provider, HELLO)
    messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "When will it leave?"}]
    until(lambda: len(replayed(store, "s")) == 2)
    provider.does(chat.says("At ten past ten."))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in asked(provider, messages, stream=True))
    assert said == "At ten past ten."
    stored = until(lambda: len(found := replayed(store, "s")) == 4 and found)
    assert [(each["role"], each["content"]) for each in stored] == [
        ("user", "Where is my parcel?"), ("assistant", "It is in hall seven."),
        ("user", "When will it leave?"), ("assistant", said),
    ]  # fmt: skip
    reply = list(store.replay("s"))[1]
    assert reply.meta is not None
    assert reply.meta["usage"] == {"input_tokens": 12, "output_tokens": 3}
    assert reply.meta["litellm"]["model"] == "m"
    assert not list(store.compactions("s"))


@pytest.mark.usefixtures("logger")
def test_a_message_that_a_client_leaves_out_stays_stored(provider: Server, store: Store) -> None:
    long = [*HELLO, {"role": "assistant", "content": "In hall seven."}, {"role": "user", "content": "Thank you."}]
    reply = asked(provider, long).choices[0].message
    until(lambda: len(replayed(store, "s")) == 4)
    asked(provider, [*long[:1], *long[2:], reply, {"role": "user", "content": "And now?"}])
    until(lambda: len(replayed(store, "s")) >= 6)
    assert all(message in replayed(store, "s") for message in long)
    shown = [message["content"] for message in store.view("s").messages if message]
    assert shown[-2:] == ["And now?", "It is in hall seven."]
    assert "In hall seven." not in shown
    [record] = store.compactions("s")
    assert (record.kind, record.outcome) == ("adoption", "applied")
    assert not store.audit.verify("s").findings


@pytest.mark.usefixtures("logger")
def test_calls_of_tools_are_stored_with_their_results(provider: Server, store: Store) -> None:
    provider.does(chat.calls("find", city="Chur"))
    message = asked(provider, HELLO).choices[0].message
    until(lambda: len(replayed(store, "s")) == 2)
    provider.does(chat.says("Found."))
    asked(provider, [*HELLO, message, {"role": "tool", "tool_call_id": "call_1", "content": "hall seven"}])
    stored = until(lambda: len(found := replayed(store, "s")) == 4 and found)
    assert stored[1]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"city": "Chur"}'}
    assert stored[2]["tool_call_id"] == "call_1"


@pytest.mark.usefixtures("logger")
def test_the_async_apis_are_stored_too(provider: Server, store: Store) -> None:
    async def run() -> None:
        options = {"api_base": f"{provider.url}/v1", "api_key": "none"}
        await litellm.acompletion("openai/m", HELLO, litellm_session_id="chat", **options)
        provider.does(chat.responds("In hall seven."))
        await litellm.aresponses(
            model="openai/m", input="Where?", instructions="Be kind.", litellm_session_id="responses", **options
        )
        provider.does(chat.says("In hall seven."))
        await litellm.anthropic.messages.acreate(
            model="hosted_vllm/m", max_tokens=99, system="Be kind.", messages=HELLO, litellm_session_id="messages",
            **options,
        )  # fmt: skip
        while len(replayed(store, "messages")) < 3 or len(replayed(store, "responses")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(), 120))
    assert len(replayed(store, "chat")) == 2
    for session in ("responses", "messages"):
        assert [each["role"] for each in replayed(store, session)] == ["system", "user", "assistant"]
    assert replayed(store, "messages")[2]["content"] == [{"type": "text", "text": "In hall seven."}]


@pytest.mark.usefixtures("logger")
def test_further_choices_are_kept_beside_the_first(provider: Server, store: Store) -> None:
    provider.does(chat.says("In hall seven.", "In hall eight."))
    assert len(asked(provider, HELLO, n=2).choices) == 2
    until(lambda: len(replayed(store, "s")) == 2)
    reply = list(store.replay("s"))[1]
    assert reply.payload is not None
    assert reply.meta is not None
    assert reply.payload["content"] == "In hall seven."
    assert reply.meta["litellm"]["choices"] == [{"role": "assistant", "content": "In hall eight."}]


@pytest.mark.usefixtures("logger")
def test_a_stream_that_breaks_off_is_stored_as_a_request_that_failed(provider: Server, store: Store) -> None:
    provider.does(chat.breaks_off("In hall"))

    async def run() -> None:
        stream = await litellm.acompletion(
            "openai/m", HELLO, stream=True, litellm_session_id="s", api_base=f"{provider.url}/v1", api_key="none",
            max_retries=0,
        )  # fmt: skip
        with pytest.raises(litellm.exceptions.MidStreamFallbackError):
            async for _ in stream:
                pass
        while not replayed(store, "s"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(), 60))
    (message,) = store.replay("s")
    assert message.payload == HELLO[0]
    assert message.meta is not None
    assert message.meta["litellm"]["failed"]


@pytest.mark.usefixtures("logger")
def test_a_request_that_failed_is_stored(provider: Server, store: Store) -> None:
    provider.does(chat.fails(500))
    with pytest.raises(litellm.InternalServerError):
        asked(provider, HELLO)
    until(lambda: replayed(store, "s") == HELLO)
    (message,) = store.replay("s")
    assert message.meta is not None
    assert message.meta["litellm"]["failed"] == "InternalServerError"


@pytest.mark.usefixtures("logger")
def test_calls_without_a_session_are_told_apart_by_their_beginning(provider: Server, store: Store) -> None:
    other = [{"role": "user", "content": "When does the train leave?"}]
    asked(provider, other, None)
    first = asked(provider, HELLO, None)
    until(lambda: len(list(store.threads())) == 3)
    asked(provider, [*HELLO, first.choices[0].message, {"role": "user", "content": "Thanks."}], None)
    until(lambda: sorted(thread.last_seq for thread in store.threads() if thread.thread_id != "litellm") == [2, 4])


@pytest.mark.usefixtures("logger")
def test_another_conversation_of_a_session_has_its_own_thread(provider: Server, store: Store) -> None:
    asked(provider, HELLO)
    until(lambda: len(replayed(store, "s")) == 2)
    provider.does(chat.says("Parcels"))
    asked(provider, [{"role": "user", "content": "Write a title."}])
    until(lambda: len(replayed(store, "s#2")) == 2)
    assert len(replayed(store, "s")) == 2


def test_a_full_queue_harms_no_request_and_the_gap_is_recorded(provider: Server, store: Store) -> None:
    is_open = False

    def opened() -> Store:
        return store if is_open else Store.open(f"postgresql://x@127.0.0.1:{_free_port()}/x")

    for logger in _installed(StoreLogger(opened, most_calls=1)):
        for n in range(3):
            assert asked(provider, HELLO, f"s{n}").choices[0].message.content
        until(lambda: _known(logger) == 3)  # noqa: B023 — there is one logger
        is_open = True
        assert logger.flush(60)
        gaps = [each for each in replayed(store, "litellm") if each["type"] == "gap"]
        assert sum(gap["calls"] for gap in gaps) == 2
        assert {gap["reason"] for gap in gaps} == {"too many calls were waiting"}
        assert sum(len(replayed(store, f"s{n}")) for n in range(3)) == 2


def test_while_the_store_is_down_calls_wait_and_no_request_fails(
    provider: Server, store: Store, url: str, logger: StoreLogger
) -> None:
    asked(provider, HELLO, "a")
    until(lambda: len(replayed(store, "a")) == 2)
    name, server = sa.make_url(url).database, sa.make_url(url).set(database="postgres")
    with psycopg.connect(server.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        try:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            for n in range(3):
                assert asked(provider, HELLO, f"b{n}").choices[0].message.content
            until(lambda: _known(logger) == 3)
            assert not logger.flush(1)
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
    assert logger.flush(60)
    for n in range(3):
        assert [each["content"] for each in replayed(store, f"b{n}")] == [HELLO[0]["content"], "It is in hall seven."]
    assert [each["type"] for each in replayed(store, "litellm")] == ["started"]


def test_two_processes_of_a_gateway_share_a_session(provider: Server, store: Store, logger: StoreLogger) -> None:
    other = StoreLogger(store)
    for each, texts in ((logger, ("one", "two")), (other, ("three", "one")), (logger, ("four",))):
        litellm.logging_callback_manager._reset_all_callbacks()
        litellm.callbacks = [each]
        for text in texts:
            asked(provider, [{"role": "user", "content": text}])
            until(lambda: any(m["content"] == text for n in ("s", "s#2", "s#3", "s#4") for m in replayed(store, n)))  # noqa: B023
        assert each.flush(60)
    other.close()
    assert [replayed(store, name)[0]["content"] for name in ("s", "s#2", "s#3", "s#4")] == [
        "one", "two", "three", "four",
    ]  # fmt: skip
    assert [record.kind for name in ("s", "s#2", "s#3", "s#4") for record in store.compactions(name)] == []


def _known(logger: StoreLogger) -> int:
    return len(logger._waiting) + sum(gap.calls for gap in logger._gaps.values())


def test_a_call_that_cannot_be_read_or_stored_is_a_gap_and_later_ones_are_stored(
    provider: Server, store: Store, logger: StoreLogger
) -> None:
    asked(provider, HELLO, "x" * 300)
    asked(provider, [{"role": "user", "content": "a\x00b" * 6_000_000}], "large")
    asked(provider, HELLO)
    until(lambda: len(replayed(store, "s")) == 2)
    assert logger.flush(60)
    gaps = [each for each in replayed(store, "litellm") if each["type"] == "gap"]
    assert sorted((gap["session"], gap["reason"]) for gap in gaps if gap["session"]) == []
    assert sorted(gap["reason"] for gap in gaps) == ["InvalidThreadId", "MessageTooLarge"]


def test_calls_whose_messages_litellm_hides_are_gaps(
    provider: Server, store: Store, logger: StoreLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm, "turn_off_message_logging", True)
    assert asked(provider, HELLO).choices[0].message.content == "It is in hall seven."
    until(lambda: len(replayed(store, "litellm")) == 2)
    assert logger.flush(60)
    gap = replayed(store, "litellm")[1]
    assert (gap["type"], gap["reason"], gap["calls"]) == ("gap", "InvalidInput", 1)


@pytest.mark.usefixtures("logger")
def test_a_session_with_the_name_of_the_log_has_another_thread(provider: Server, store: Store) -> None:
    asked(provider, HELLO, "litellm")
    until(lambda: len(replayed(store, "litellm#1")) == 2)
    assert [each["type"] for each in replayed(store, "litellm")] == ["started"]


def test_a_function_that_opens_no_store_is_told_so(provider: Server, caplog: pytest.LogCaptureFixture) -> None:
    for logger in _installed(StoreLogger(lambda: 3)):  # type: ignore[arg-type,return-value]
        asked(provider, HELLO)
        until(lambda: "the function that opens the store must return a Store, not int" in caplog.text)
        assert not logger.close(timeout=0.1)
    assert "1 calls of LiteLLM were not stored" in caplog.text


def test_arguments_are_checked(store: Store) -> None:
    for wrong in ({"store": 1}, {"thread_id": "s"}, {"most_calls": 0}, {"most_bytes": 0}, {"log_thread": ""}):
        with pytest.raises(InvalidInput):
            StoreLogger(**({"store": store} | wrong))


def test_the_words_of_litellms_compaction_are_those_of_this_release() -> None:
    try:
        from litellm.llms.anthropic.messages.context_management import constants  # noqa: PLC0415
    except ImportError:
        from litellm.llms.anthropic.pass_through.context_management import constants  # noqa: PLC0415
    assert constants.COMPACT_SUMMARY_SYSTEM_PREFIX == litellm_calls.SUMMARY_PREFIX
    assert litellm_calls.SUMMARY_WANTED in constants.COMPACT_DEFAULT_INSTRUCTIONS


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# ---- the proxy


def _answer(handler: Handler, body: Payload) -> None:
    """Writes a summary if it is asked for one."""
    wants_summary = litellm_calls.SUMMARY_WANTED in json.dumps(body["messages"][-1])
    said = (
        "<summary>A parcel is in hall seven.</summary>" if wants_summary else f"Answer {len(handler.server.requests)}."
    )
    chat.says(said)(handler, body)


@contextmanager
def _gateway(folder: Path, provider: Server, opened: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """Yields a client of a proxy whose logger opens the store with this expression, and the proxy's process."""
    folder.joinpath("keeping.py").write_text(
        "from pathlib import Path\nfrom compaction_store import Store\n"
        "from compaction_store.adapters.litellm import StoreLogger\n"
        f"logger = StoreLogger(lambda: {opened}, actor='gateway')\n"
    )
    model = {"model": "hosted_vllm/m", "api_base": f"{provider.url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "litellm_settings": {"callbacks": "keeping.logger"},
        "general_settings": {"context_management_summary_model": "m", "master_key": KEY},
    }
    folder.joinpath("config.yaml").write_text(json.dumps(config))
    port, log = _free_port(), folder / "log"
    command = [str(Path(sys.executable).with_name("litellm")), "--config", "config.yaml", "--port", str(port)]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1"], cwd=folder, env=os.environ | {"HOME": str(folder)},
            stdout=written, stderr=written,
        )  # fmt: skip
    headers = {"authorization": f"Bearer {KEY}", "x-litellm-session-id": "s", "anthropic-version": "2023-06-01"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120) as client:
            until(lambda: process.poll() is not None or _answers(client), 240)
            assert process.poll() is None, log.read_text()[-3000:]
            yield client, process
    finally:
        process.kill()
        process.wait()


def test_a_gateway_starts_without_the_store_and_its_compaction_becomes_a_record(
    provider: Server, url: str, tmp_path: Path
) -> None:
    provider.does(_answer)
    address = tmp_path / "address"
    address.write_text(f"postgresql://x@127.0.0.1:{_free_port()}/x")
    opened = f"Store.open(Path({str(address)!r}).read_text())"
    with _gateway(tmp_path, provider, opened) as (client, gateway), Store.open(url) as store:
        messages: list[Payload] = list(HELLO)
        first = _posted(client, messages)
        assert first["content"][0]["text"] == "Answer 1."
        # The store comes back.
        address.write_text(url)
        until(lambda: len(replayed(store, "s")) == 2, 120)
        long = {"role": "user", "content": "hall seven, shelf nine; " * 12_000}
        messages += [{"role": "assistant", "content": first["content"]}, long]
        second = _posted(client, messages)
        block, text = second["content"]
        assert block == {"type": "compaction", "content": "A parcel is in hall seven."}
        stored = until(lambda: len(found := replayed(store, "s")) == 4 and found, 120)
        assert stored[0] == HELLO[0]
        assert stored[2]["content"] == long["content"]
        (record,) = until(lambda: list(store.compactions("s")))
        assert (record.kind, record.outcome, record.actor) == ("adoption", "applied", "gateway")
        assert (record.start_seq, record.end_seq) == (1, 2)
        # The client goes on as Anthropic's API wants it: with the block in the assistant's message.
        messages += [{"role": "assistant", "content": [block, text]}, {"role": "user", "content": "Thanks."}]
        _posted(client, messages)
        until(lambda: len(replayed(store, "s")) == 6, 120)
        # Like Anthropic, LiteLLM leaves out all before the block, and so the long message too.
        assert provider.requests[-1]["messages"][1:] == [{"role": "assistant", "content": text["text"]}, messages[-1]]
        shown = [message["content"] for message in store.view("s").messages if message]
        assert shown[:3] == [[block], [text], "Thanks."]
        assert [each.end_seq for each in store.compactions("s")] == [2, 4]
        assert not store.audit.verify("s").findings
        before = store.view("s", at=record.pos - 1)
        assert [message["content"] for message in before.messages if message][:1] == ["Where is my parcel?"]
        # After SIGTERM, LiteLLM's server ends without the functions that Python calls at exit.
        gateway.send_signal(signal.SIGINT)
        gateway.wait(60)
        assert [each["type"] for each in replayed(store, "litellm")] == ["started", "stopped"]


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health/liveliness").is_success
    except httpx.HTTPError:
        return False


def _posted(client: httpx.Client, messages: list[Payload]) -> Any:
    edits = [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]
    body = {
        "model": "m", "max_tokens": 99, "messages": messages, "context_management": {"edits": edits},
    }  # fmt: skip
    answer = client.post("/v1/messages", json=body)
    assert answer.is_success, answer.text[:1000]
    return answer.json()


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    provider: Server, store: Store, logger: StoreLogger, superuser: psycopg.Connection[Any]
) -> None:
    asked(provider, HELLO)
    until(lambda: len(replayed(store, "s")) == 2)
    change_views(superuser, "s")
    answer = asked(provider, [*HELLO, {"role": "assistant", "content": "Soon."}, {"role": "user", "content": "When?"}])
    assert answer.choices[0].message.content == "It is in hall seven."
    until(lambda: len(replayed(store, "litellm")) == 2)
    assert logger.flush(60)
    gap = replayed(store, "litellm")[1]
    assert (gap["type"], gap["session"], gap["reason"], gap["calls"]) == ("gap", "s", "UnknownEntry", 1)
    assert len(replayed(store, "s")) == 2
