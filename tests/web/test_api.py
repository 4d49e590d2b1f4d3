"""The API: what each route does, and that its answers are those of the OpenAPI document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from support.paths import ROOT

import compaction_store as cs
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary
from compaction_store.web.api import document
from web.api_clients import READER, STRANGER, Answer, Client, visit

THREAD = "/v1/threads/ticket%2F8812"
MESSAGES = f"{THREAD}/messages"
STRATEGIES = {"window": SlidingWindow(StateSummary(), retain=4)}
_DOCUMENT = document()


def checked(answer: Answer, method: str, path: str, status: int = 200) -> Any:
    """Returns the body of an answer, after comparing it with the schema of its route."""
    assert answer.status == status, answer.body
    schema = _DOCUMENT["paths"][path][method.lower()]["responses"][str(status)]["content"]["application/json"]["schema"]
    Draft202012Validator(
        {**schema, "components": _DOCUMENT["components"]}, format_checker=Draft202012Validator.FORMAT_CHECKER
    ).validate(answer.body)
    return answer.body


def test_the_document_in_the_repository_is_what_the_app_makes() -> None:
    written = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert written == _DOCUMENT, "run scripts/openapi.py"


def test_the_document_is_valid_openapi_3_1() -> None:
    validate(_DOCUMENT)
    assert _DOCUMENT["openapi"] == "3.1.0"


def test_every_operation_says_its_limits_and_its_errors() -> None:
    operations = [each for path in _DOCUMENT["paths"].values() for each in path.values()]
    assert len(operations) == 16
    for each in operations:
        assert re.search("takes at most [0-9]+ seconds", each["description"])
        assert ("requestBody" in each) == ("bytes" in each["description"])
        assert "default" in each["responses"]


def test_a_thread_is_written_read_compacted_and_proved(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        route = "/v1/threads/{thread_id}"
        first = {"messages": [{"role": "user", "content": "Where is order 8812?"}], "key": "k-1", "meta": {"a": 1}}
        stored = checked(await client.post(MESSAGES, first), "post", f"{route}/messages", 201)
        assert [(m["seq"], m["actor"], m["meta"]) for m in stored["messages"]] == [(1, "bot", {"a": 1})]
        view = checked(await client.get(f"{THREAD}/view"), "get", f"{route}/view")
        asked = checked(await client.get(f"{THREAD}/request", format="anthropic"), "get", f"{route}/request")
        assert asked["arguments"]["messages"] == [{"role": "user", "content": "Where is order 8812?"}]
        used = {"pos": view["pos"], "head": view["head"], "format": "anthropic"}
        reply = {"messages": [{"role": "assistant", "content": "On its way."}], "view": used}
        assert (await client.post(MESSAGES, reply)).status == 201
        seen = checked(await client.get(f"{MESSAGES}/2/seen"), "get", f"{route}/messages/{{seq}}/seen")
        assert (seen["evidence"], seen["receipt"]["renderer"]) == ("proved", "anthropic/1")
        assert seen["view"]["head"] == view["head"]

        await client.talk("ticket%2F8812", 20)
        run = checked(
            await client.post(f"{THREAD}/compact", {"strategy": "window"}), "post", f"{route}/compact"
        )  # fmt: skip
        assert [(r["outcome"], r["actor"]) for r in run["records"]] == [("applied", "bot")]
        number = run["records"][0]["number"]
        record = checked(
            await client.get(f"{THREAD}/compactions/{number}"), "get", f"{route}/compactions/{{number}}"
        )  # fmt: skip
        assert record == run["records"][0]
        listed = checked(await client.get("/v1/compactions", actor="bot", status="active"), "get", "/v1/compactions")
        assert listed == {"items": [record], "next": None}
        now = checked(await client.get(f"{THREAD}/view"), "get", f"{route}/view")
        assert len(now["elements"]) < 22
        before = checked(await client.get(f"{THREAD}/view", at=view["pos"]), "get", f"{route}/view")
        assert before == view
        revoked = checked(
            await client.post(f"{THREAD}/compactions/{number}/revoke", {"reason": "lost", "authority": {"ticket": 1}}),
            "post", f"{route}/compactions/{{number}}/revoke", 201,
        )  # fmt: skip
        assert (revoked["kind"], revoked["body"]["reason"], revoked["authority"]) == (
            "revocation",
            "lost",
            {"ticket": 1},
        )
        assert (await client.post(f"{THREAD}/compactions/{number}/revoke", {})).status == 409
        rewound = checked(
            await client.post(f"{THREAD}/rewind", {"seq": 3}), "post", f"{route}/rewind", 201
        )  # fmt: skip
        assert [r["kind"] for r in rewound["records"]] == ["rewind"]
        forked = checked(
            await client.post(f"{THREAD}/fork", {"new_thread_id": "again", "at": 2}), "post", f"{route}/fork", 201
        )  # fmt: skip
        assert (forked["parent_id"], forked["last_seq"]) == ("ticket/8812", 2)
        report = checked(await client.get(f"{THREAD}/verify", level="content"), "get", f"{route}/verify")
        assert (report["findings"], report["entries"]) == ([], report["pos"])
        thread = checked(await client.get(THREAD), "get", route)
        assert (thread["last_seq"], thread["head"]) == (22, report["head"])
        everybody = checked(await client.get("/v1/threads"), "get", "/v1/threads")
        assert [each["thread_id"] for each in everybody["items"]] == ["again", "ticket/8812"]
        for route in ("/healthz", "/readyz"):
            checked(await client.get(route, token=None), "get", route)

    visit(url, tmp_path, steps, strategies=STRATEGIES)
    with cs.Store.open(url, tenant="acme") as store:
        assert [m.seq for m in store.replay("ticket/8812")] == list(range(1, 23))


def test_the_marks_of_a_budget_are_tokens_or_fractions(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 20)
        compact = "/v1/threads/t/compact"
        within = {"strategy": "window", "window": 100_000, "trigger": 90_000, "target": 0.5}
        assert (await client.post(compact, within)).body["reason"] == "the view is within its budget"
        wrong = await client.post(compact, {**within, "trigger": 1.5})
        assert (wrong.status, wrong.body["message"].partition(" must ")[0]) == (400, "trigger")
        over = {"strategy": "window", "window": 1000, "trigger": 100, "target": 50, "reserve": 10}
        assert {r["outcome"] for r in (await client.post(compact, over)).body["records"]} == {"applied"}

    visit(url, tmp_path, steps, strategies=STRATEGIES)


def test_a_retry_with_the_same_key_stores_once(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "key": "k"}
        first = await client.post("/v1/threads/t/messages", body)
        again = await client.post("/v1/threads/t/messages", body)
        assert (again.status, again.body) == (first.status, first.body)
        other = {"messages": [{"role": "user", "content": "no"}], "key": "k"}
        refused = await client.post("/v1/threads/t/messages", other)
        assert (refused.status, refused.kind) == (409, "IdempotencyConflict")
        assert len((await client.get("/v1/threads/t/messages")).body["items"]) == 1
        fork = {"new_thread_id": "f", "key": "f"}
        made, same = [(await client.post("/v1/threads/t/fork", fork)).body for _ in range(2)]
        assert (made["added"], same["added"]) == (True, False)
        assert same["thread_uid"] == made["thread_uid"]

    visit(url, tmp_path, steps)


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_the_pages_of_a_list_have_each_row_once(url: str, tmp_path: Path, limit: int) -> None:
    async def pages(client: Client, path: str, **query: Any) -> list[Any]:
        found: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            page = (await client.get(path, limit=limit, **after, **query)).body
            assert len(page["items"]) <= limit
            found += page["items"]
            if page["next"] is None:
                return found
            assert len(page["items"]) == limit
            after = {"after": page["next"]}

    async def steps(client: Client) -> None:
        names = [f"thread:{i}/é %" for i in range(7)]
        for name in names:
            path = "/v1/threads/" + name.replace("%", "%25").replace("/", "%2F").replace(" ", "%20")
            await client.talk(path.removeprefix("/v1/threads/"), 2)
            assert (await client.post(f"{path}/rewind", {"seq": 1})).status == 201
        assert [each["thread_id"] for each in await pages(client, "/v1/threads")] == names
        records = await pages(client, "/v1/compactions", kind="rewind")
        assert [each["thread_id"] for each in records] == names
        newest = await pages(client, "/v1/compactions", newest_first="true")
        assert newest == records[::-1]
        await client.talk("long", 9)
        assert [each["seq"] for each in await pages(client, "/v1/threads/long/messages")] == list(range(1, 10))

    visit(url, tmp_path, steps)


def test_threads_are_listed_by_subject_metadata_and_recency(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        for name, subject in (("c", "ann"), ("a", "ben"), ("b", "ann"), ("d", "ann")):
            body = {"messages": [{"role": "user", "content": "x"}], "subject": subject}
            assert (await client.post(f"/v1/threads/{name}/messages", body)).status == 201

        async def names(**query: Any) -> list[str]:
            page = checked(await client.get("/v1/threads", **query), "get", "/v1/threads")
            found = [each["thread_id"] for each in page["items"]]
            return found + (await names(**query | {"after": page["next"]}) if page["next"] else [])

        for limit in (1, 2, 3, 100):
            assert await names(subject="ann", order="recent", limit=limit) == ["d", "b", "c"]
            assert await names(order="recent", limit=limit) == ["d", "b", "a", "c"]
            assert await names(subject="ann", limit=limit) == ["b", "c", "d"]
            assert await names(prefix="a", limit=limit) == ["a"]
            assert await names(metadata='{"a":1}', limit=limit) == []
        wrong = await client.get("/v1/threads", order="recent", after="nobody's cursor")
        assert (wrong.status, wrong.kind) == (400, "InvalidInput")
        assert await names(subject="ann", token=STRANGER) == []

    visit(url, tmp_path, steps)


def test_a_page_of_large_messages_ends_early(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        for _ in range(5):
            body = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
            assert (await client.post("/v1/threads/t/messages", body)).status == 201
        first = (await client.get("/v1/threads/t/messages")).body
        assert [each["seq"] for each in first["items"]] == [1, 2, 3]
        rest = (await client.get("/v1/threads/t/messages", after=first["next"])).body
        assert ([each["seq"] for each in rest["items"]], rest["next"]) == ([4, 5], None)

    visit(url, tmp_path, steps)


def test_another_tenant_sees_and_changes_nothing(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 6)
        assert (await client.post("/v1/threads/t/rewind", {"seq": 5})).status == 201
        before = (await client.get("/v1/threads/t")).body
        for path in (
            "",
            "/messages",
            "/view",
            "/request?format=anthropic",
            "/messages/2/seen",
            "/compactions/1",
            "/verify",
        ):
            answer = await client.get(f"/v1/threads/t{path}", token=STRANGER)
            assert (answer.status, answer.kind) == (404, "ThreadNotFound")
        for path, body in (
            ("compact", {"strategy": "window"}), ("rewind", {"seq": 1}), ("fork", {"new_thread_id": "x"}),
            ("compactions/1/revoke", {}),
        ):  # fmt: skip
            answer = await client.post(f"/v1/threads/t/{path}", body, token=STRANGER)
            assert (answer.status, answer.kind) == (404, "ThreadNotFound")
        for path in ("/v1/threads", "/v1/compactions"):
            assert (await client.get(path, token=STRANGER)).body["items"] == []
        assert (await client.get("/v1/compactions", token=STRANGER, after="1:t")).status == 404
        # A thread of the same name is another thread.
        mine = {"messages": [{"role": "user", "content": "mine"}]}
        assert (await client.post("/v1/threads/t/messages", mine, token=STRANGER)).body["messages"][0]["seq"] == 1
        assert (await client.get("/v1/threads/t")).body == before

    visit(url, tmp_path, steps, strategies=STRATEGIES)


def test_a_reader_reads_and_writes_nothing(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 4)
        for path, item in _DOCUMENT["paths"].items():
            place = path.replace("{thread_id}", "t").replace("{seq}", "2").replace("{number}", "1")
            if "post" in item:
                answer = await client.post(place, {}, token=READER)
                assert (answer.status, answer.kind) == (403, "Forbidden")
        for path in ("/v1/threads", "/v1/threads/t", "/v1/threads/t/view", "/v1/threads/t/verify", "/v1/compactions"):
            assert (await client.get(path, token=READER)).status == 200
        assert (await client.get("/v1/threads/t")).body["last_seq"] == 4

    visit(url, tmp_path, steps)


def test_an_erased_thread_is_gone_and_a_hidden_one_is_not_found(url: str, tmp_path: Path) -> None:
    with cs.Store.open(url, tenant="acme") as store:
        store.append("t", {"role": "user", "content": "hi"})
        name = store.custody.erase("t", reason="asked for").thread_id
        store.append("h", {"role": "user", "content": "hi"})
        store.clear("h", hide=True)

    async def steps(client: Client) -> None:
        body = {"messages": [{"role": "user", "content": "again"}]}
        answer = await client.post(f"/v1/threads/{name}/messages", body)
        assert (answer.status, answer.kind) == (410, "ThreadErased")
        assert (await client.get("/v1/threads/h")).status == 404
        assert (await client.get("/v1/threads/h", hidden="true")).body["hidden"] is True

    visit(url, tmp_path, steps)


def test_a_stale_view_is_a_conflict(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 4)
        stale = {"pos": 4, "head": "00" * 32}
        deeds: dict[str, dict[str, Any]] = {
            "messages": {"messages": [{"role": "user", "content": "x"}]}, "rewind": {"seq": 1},
            "compactions/1/revoke": {},
        }  # fmt: skip
        for path, body in deeds.items():
            answer = await client.post(f"/v1/threads/t/{path}", {**body, "view": stale})
            assert (answer.status, answer.kind) == (409, "HeadConflict")
        old = (await client.get("/v1/threads/t/view", at=2)).body
        used = {"pos": 2, "head": old["head"]}
        assert (await client.post("/v1/threads/t/rewind", {"seq": 1, "view": used})).status == 409
        new: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
        assert (await client.post("/v1/threads/t/messages", new | {"expected_seq": 3})).kind == "SequenceConflict"
        wrong = new | {"expected_head": "00" * 32}
        assert (await client.post("/v1/threads/t/messages", wrong)).kind == "HeadConflict"
        assert (await client.get("/v1/threads/t")).body["last_seq"] == 4

    visit(url, tmp_path, steps)
