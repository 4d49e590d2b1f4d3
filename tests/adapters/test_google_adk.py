"""Sessions of Google's ADK: what a compaction covers stays in the thread, and two writers both succeed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store
from compaction_store.adapters import google_adk
from compaction_store.adapters.google_adk import StoreSessionService, thread_id
from compaction_store.errors import InvalidThreadId, UnknownEntry
from compaction_store.models.compactions import status_in_words

ID: dict[str, Any] = {"app_name": "trips", "user_id": "ana", "session_id": "s"}
NAME = thread_id("trips", "ana", "s")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(params=["theirs", "ours"])
def service(request: pytest.FixtureRequest, store: Store) -> Any:
    """The framework's own service in memory, and ours: they must do the same."""
    return InMemorySessionService() if request.param == "theirs" else StoreSessionService(store)


def said(text: str, at: float, author: str = "user", **actions: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    return Event(author=author, content=content, timestamp=at, invocation_id="i", actions=EventActions(**actions))


def compacted(start: float, end: float, at: float, text: str = "They talked.") -> Event:
    summary = types.Content(role="model", parts=[types.Part(text=text)])
    compaction = EventCompaction(start_timestamp=start, end_timestamp=end, compacted_content=summary)
    return Event(author="user", invocation_id="c", timestamp=at, actions=EventActions(compaction=compaction))


async def talk(service: Any, *texts: str) -> Any:
    session = await service.create_session(**ID)
    for place, text in enumerate(texts, 1):
        await service.append_event(session, said(text, float(place), "agent" if place % 2 == 0 else "user"))
    return session


def texts(session: Any) -> list[Any]:
    return [event.content and event.content.parts[0].text for event in session.events]


# ---- the contract, of their service and ours


def test_events_come_back_as_they_were_appended(service: Any) -> None:
    async def run() -> None:
        given = [
            said("Look: \U0001f600", 1.000001, state_delta={"n": None, "deep": {"a": [None, 1.5]}}),
            Event(author="agent", invocation_id="i", timestamp=2.0, content=types.Content(role="model", parts=[
                types.Part(function_call=types.FunctionCall(id="f", name="find", args={"city": None})),
                types.Part(inline_data=types.Blob(data=b"\x89PNG\xff", mime_type="image/png")),
            ]), long_running_tool_ids={"f"}, custom_metadata={"k": [1]}),
            Event(author="agent", invocation_id="i", timestamp=3.0, error_code="X", error_message="no", branch="a.b"),
            said("", 4.0, rewind_before_invocation_id="i", artifact_delta={"file": 2}),
        ]  # fmt: skip
        session = await service.create_session(**ID)
        for event in given:
            await service.append_event(session, event.model_copy(deep=True))
        found = await service.get_session(**ID)
        assert found.events == given == session.events
        assert found.last_update_time == session.last_update_time == 4.0
        assert found.state == {"n": None, "deep": {"a": [None, 1.5]}} == session.state

    asyncio.run(run())


def test_state_is_shared_as_its_prefix_says(service: Any) -> None:
    async def run() -> None:
        initial = {"app:a": 1, "user:u": 2, "s": 3}
        session = await service.create_session(**ID, state=initial)
        assert session.state == initial
        delta = {"app:a": 10, "user:v": 20, "t": 30, "temp:x": 40}
        await service.append_event(session, said("a", 1.0, state_delta=delta))
        assert session.state == initial | delta
        assert (await service.get_session(**ID)).state == {"app:a": 10, "user:u": 2, "user:v": 20, "s": 3, "t": 30}
        assert "temp:x" not in (await service.get_session(**ID)).events[0].actions.state_delta
        same_user = await service.create_session(app_name="trips", user_id="ana")
        assert same_user.state == {"app:a": 10, "user:u": 2, "user:v": 20}
        assert (await service.create_session(app_name="trips", user_id="ben")).state == {"app:a": 10}
        assert (await service.create_session(app_name="other", user_id="ana")).state == {}
        assert await service.get_user_state(app_name="trips", user_id="ana") == {"u": 2, "v": 20}
        assert await service.get_user_state(app_name="trips", user_id="cleo") == {}

    asyncio.run(run())


def test_a_part_of_the_events_is_read(service: Any) -> None:
    async def run() -> None:
        await talk(service, "a", "b", "c", "d")
        for config, wanted in (
            (GetSessionConfig(num_recent_events=2), ["c", "d"]),
            (GetSessionConfig(num_recent_events=0), []),
            (GetSessionConfig(num_recent_events=9), ["a", "b", "c", "d"]),
            (GetSessionConfig(after_timestamp=2.0), ["b", "c", "d"]),
            (GetSessionConfig(after_timestamp=9.0), []),
            (GetSessionConfig(num_recent_events=3, after_timestamp=3.0), ["c", "d"]),
        ):
            assert texts(await service.get_session(**ID, config=config)) == wanted

    asyncio.run(run())


def test_sessions_are_listed_oldest_first(service: Any) -> None:
    async def run() -> None:
        for user, name, at in (("ana", "x", 3e9), ("ana", "y", 2e9), ("ben", "x", 2.5e9)):
            session = await service.create_session(
                app_name="trips", user_id=user, session_id=name, state={"k": name, f"user:{user}": 1, "app:z": 0}
            )
            await service.append_event(session, said(name, at))
        await service.create_session(app_name="trips2", user_id="ana", session_id="z")
        own = (await service.list_sessions(app_name="trips", user_id="ana")).sessions
        assert [(s.id, s.state, s.events) for s in own] == [
            (name, {"k": name, "user:ana": 1, "app:z": 0}, []) for name in "yx"
        ]
        everybody = (await service.list_sessions(app_name="trips")).sessions
        assert [(s.user_id, s.id, s.last_update_time) for s in everybody] == [
            ("ana", "y", 2e9), ("ben", "x", 2.5e9), ("ana", "x", 3e9),
        ]  # fmt: skip
        assert (await service.list_sessions(app_name="none")).sessions == []

    asyncio.run(run())


def test_a_name_is_used_once_until_the_session_is_deleted(service: Any) -> None:
    async def run() -> None:
        session = await talk(service, "a", "b")
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**ID)
        await service.append_event(session, said("c", 3.0, state_delta={"k": 1, "user:u": 2}))
        await service.delete_session(**ID)
        await service.delete_session(app_name="trips", user_id="ana", session_id="unknown")
        assert await service.get_session(**ID) is None
        assert (await service.list_sessions(app_name="trips")).sessions == []
        again = await service.create_session(**ID, state={"new": 1})
        assert (again.events, again.state) == ([], {"new": 1, "user:u": 2})
        await service.append_event(again, said("d", 4.0))
        assert texts(await service.get_session(**ID)) == ["d"]

    asyncio.run(run())


def test_a_partial_event_is_not_stored(service: Any) -> None:
    async def run() -> None:
        session = await service.create_session(**ID)
        await service.append_event(session, Event(author="agent", partial=True))
        assert (session.events, (await service.get_session(**ID)).events) == ([], [])

    asyncio.run(run())


# ---- ours


def test_a_compaction_is_a_record_of_the_seqs_it_covers(store: Store) -> None:
    service = StoreSessionService(store, actor="nightly")
    session = asyncio.run(talk(service, "a", "b", "c", "d"))
    before = store.view(NAME)
    event = compacted(1.0, 3.0, 5.0)
    asyncio.run(service.append_event(session, event))
    [record] = store.compactions(NAME)
    assert (record.kind, record.start_seq, record.end_seq, record.actor) == ("adoption", 2, 4, "nightly")
    assert len(store.view(NAME).messages) == 3
    assert store.view(NAME, at=before.pos) == before
    assert [m.payload["content"]["parts"][0]["text"] for m in store.audit.originals(record) if m.payload] == [
        "a",
        "b",
        "c",
    ]
    found = asyncio.run(service.get_session(**ID))
    assert found is not None
    assert found.events == session.events
    assert found.events[-1] == event
    store.revoke(NAME, record.number, reason="the dates were lost")
    found = asyncio.run(service.get_session(**ID))
    assert found is not None
    assert texts(found) == ["a", "b", "c", "d"]
    assert not store.audit.verify(NAME).findings


def test_compactions_that_overlap_or_contain_each_other(store: Store) -> None:
    service = StoreSessionService(store)
    session = asyncio.run(talk(service, *"abcdef"))
    for event in (compacted(1.0, 3.0, 7.0), compacted(3.0, 5.0, 8.0), compacted(1.0, 6.0, 9.0)):
        asyncio.run(service.append_event(session, event))
    assert [(r.start_seq, r.end_seq, status_in_words(r)) for r in store.compactions(NAME)] == [
        (2, 4, "superseded by 3"), (5, 6, "superseded by 3"), (2, 7, "active"),
    ]  # fmt: skip
    # What covers no event has nothing to fold, and is an event as any other.
    asyncio.run(service.append_event(session, compacted(90.0, 91.0, 10.0)))
    found = asyncio.run(service.get_session(**ID))
    assert found is not None
    assert found.events == session.events
    assert len(found.events) == 10


def test_writers_of_one_session_all_succeed(url: str) -> None:
    async def run() -> None:
        async with AsyncStore.open(url) as one, AsyncStore.open(url) as other:
            services = [StoreSessionService(one), StoreSessionService(other)]
            await services[0].create_session(**ID)
            sessions = [await service.get_session(**ID) for service in services for _ in range(4)]

            async def write(writer: int) -> None:
                for turn in range(5):
                    delta = {f"k{writer}": turn, f"user:k{writer}": turn, f"app:k{writer}": turn}
                    event = said(f"{writer}.{turn}", 1.0 + turn, state_delta=delta)
                    await services[writer // 4].append_event(sessions[writer], event)

            await asyncio.gather(*(write(writer) for writer in range(8)))
            found = await services[0].get_session(**ID)
            assert found is not None
            assert sorted(texts(found)) == sorted(f"{w}.{t}" for w in range(8) for t in range(5))
            assert found.state == {f"{p}k{w}": 4 for w in range(8) for p in ("", "user:", "app:")}
            assert not (await one.audit.verify(NAME)).findings

    asyncio.run(run())


def test_two_who_create_a_session_are_told_apart(url: str) -> None:
    async def run() -> list[Any]:
        async with AsyncStore.open(url) as store:
            service = StoreSessionService(store)
            return await asyncio.gather(*(service.create_session(**ID) for _ in range(8)), return_exceptions=True)

    results = asyncio.run(run())
    assert sum(isinstance(each, AlreadyExistsError) for each in results) == 7


def test_a_deleted_session_is_kept_or_erased(store: Store) -> None:
    service = StoreSessionService(store)
    session = asyncio.run(talk(service, "a"))
    asyncio.run(service.delete_session(**ID))
    assert len(list(store.replay(NAME))) == 2
    with pytest.raises(SessionNotFoundError):
        asyncio.run(service.append_event(session, said("b", 2.0)))
    service = StoreSessionService(store, on_delete="erase")
    asyncio.run(service.create_session(**ID))
    asyncio.run(service.delete_session(**ID))
    assert asyncio.run(service.get_session(**ID)) is None
    assert b"They" not in b"".join((m.text or "").encode() for m in store.replay(store_uid(store)))
    assert asyncio.run(service.create_session(**ID)).events == []


def store_uid(store: Store) -> str:
    [erased] = [thread.thread_id for thread in store.threads(hidden=True) if thread.erased_pos]
    return erased


def test_many_changes_of_state_are_folded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_adk, "_FOLD_STATE", 5)
    service = StoreSessionService(store)
    session = asyncio.run(service.create_session(**ID))
    for place in range(12):
        asyncio.run(service.append_event(session, said("a", 1.0 + place, state_delta={f"user:k{place}": place})))
        user = asyncio.run(service.get_user_state(app_name="trips", user_id="ana"))
        assert user == {f"k{each}": each for each in range(place + 1)}
    assert len(store.view('["trips", "ana"]').elements) <= 6
    assert len(list(store.replay('["trips", "ana"]'))) == 12


def test_bad_input_is_refused(store: Store) -> None:
    with pytest.raises(InvalidThreadId):
        asyncio.run(StoreSessionService(store).create_session(**ID | {"session_id": "x" * 600}))
    with pytest.raises(InvalidInput, match="store must be a Store or an AsyncStore, not dict"):
        StoreSessionService({})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_delete"):
        StoreSessionService(store, on_delete="hide")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be strings, not int"):
        asyncio.run(StoreSessionService(store).get_session(**ID | {"user_id": 7}))


_RUN = """
import asyncio, os, sys
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.genai import types
from compaction_store import Store
from compaction_store.adapters.google_adk import StoreSessionService


class Scripted(BaseLlm):
    async def generate_content_async(self, request, stream=False):
        print(len(request.contents), flush=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Noted.")]))


class Short(BaseEventsSummarizer):
    async def maybe_summarize_events(self, *, events):
        summary = types.Content(role="model", parts=[types.Part(text="Earlier: notes.")])
        compaction = EventCompaction(start_timestamp=events[0].timestamp, end_timestamp=events[-1].timestamp,
                                     compacted_content=summary)
        return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())


async def main():
    service = StoreSessionService(Store.open(sys.argv[1]))
    agent = LlmAgent(name="agent", model=Scripted(model="scripted"), instruction="Take notes.")
    config = EventsCompactionConfig(summarizer=Short(), compaction_interval=3, overlap_size=1)
    runner = Runner(app=App(name="trips", root_agent=agent, events_compaction_config=config), session_service=service)
    names = {"user_id": "ana", "session_id": "s"}
    if await service.get_session(app_name="trips", **names) is None:
        await service.create_session(app_name="trips", **names)
    for turn in range(int(sys.argv[2])):
        message = types.Content(role="user", parts=[types.Part(text=f"Note {sys.argv[3]}{turn}")])
        async for _ in runner.run_async(**names, new_message=message):
            pass
    os._exit(7)


asyncio.run(main())
"""


def test_what_the_framework_compacted_is_there_when_the_process_has_ended(
    store: Store, url: str, tmp_path: Path
) -> None:
    def run(turns: int, name: str) -> list[int]:
        script = tmp_path / "run.py"
        script.write_text(_RUN, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script), url, str(turns), name], capture_output=True, text=True, timeout=120,
            check=False, env=os.environ | {"HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 7, done.stderr[-2000:]
        return [int(line) for line in done.stdout.split()]

    sizes = run(7, "a")
    records = list(store.compactions(NAME, kind="adoption"))
    assert len(records) == 2
    # The model was sent less than what is stored.
    assert sizes[-1] < 2 * 6 + 1
    stored = [m.payload["content"]["parts"][0]["text"] for m in store.replay(NAME) if m.payload and m.seq > 1]
    assert stored == [text for turn in range(7) for text in (f"Note a{turn}", "Noted.")]
    for record in records:
        seen = store.view(NAME, at=record.pos - 1)
        assert len(seen.messages) > len(store.view(NAME, at=record).messages)
    assert len(store.view(NAME, at=records[0].pos - 1).messages) == 1 + 6
    assert not store.audit.verify(NAME).findings
    # Another process continues it, with the compactions of the first.
    assert run(1, "b")[0] <= sizes[-1] + 2
    assert not store.audit.verify(NAME).findings


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    service = StoreSessionService(store)
    session = asyncio.run(talk(service, "a", "b"))
    change_views(superuser, NAME)
    asyncio.run(service.append_event(session, said("c", 3.0)))
    calls: list[Callable[[], Any]] = [
        lambda: service.get_session(**ID), lambda: service.list_sessions(app_name="trips"),
        lambda: service.append_event(session, compacted(1.0, 2.0, 4.0)), lambda: service.delete_session(**ID),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UnknownEntry):
            asyncio.run(call())
    assert store.thread(NAME).last_seq == 4


def test_a_state_that_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    service = StoreSessionService(store)
    asyncio.run(service.create_session(**ID, state={"app:fee": 1, "user:name": "ana"}))
    change_views(superuser, '["trips", "ana"]')
    for call in (
        lambda: service.get_session(**ID), lambda: service.list_sessions(app_name="trips"),
        lambda: service.get_user_state(app_name="trips", user_id="ana"),
    ):  # fmt: skip
        with pytest.raises(UnknownEntry):
            asyncio.run(call())


def test_a_session_that_a_newer_release_may_have_restored_is_not_called_absent(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    service = StoreSessionService(store)
    asyncio.run(talk(service, "a"))
    asyncio.run(service.delete_session(**ID))
    change_views(superuser, NAME)
    with pytest.raises(UnknownEntry):
        asyncio.run(service.get_session(**ID))
