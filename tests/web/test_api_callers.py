"""Who may call the API: files of tokens, and the headers of a proxy."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import compaction_store as cs
from compaction_store.errors import InvalidInput
from compaction_store.web.api import TokenFile, TrustedProxy
from web.api_clients import LINES, READER, STRANGER, WRITER, Client, line, token_file, visit

PROXY = {
    "Compaction-Store-Tenant": "acme", "Compaction-Store-Actor": "bot", "Compaction-Store-Rights": "write",
}  # fmt: skip
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("sent", [
    {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "},
    {"Authorization": f"Basic {WRITER}"}, {"Authorization": WRITER}, {"Authorization": f"Bearer {WRITER}x"},
    {"Authorization": f"Bearer {WRITER[1:]}"}, {"Authorization": f"Bearer x {WRITER}"},
    {"Authorization": b"Bearer \xff"},
    [("Authorization", f"Bearer {READER}"), ("Authorization", f"Bearer {WRITER}")],
    {"Cookie": f"token={WRITER}"}, PROXY, {**PROXY, "X-Forwarded-For": "127.0.0.1"},
])  # fmt: skip
def test_without_one_known_token_nothing_is_done(url: str, tmp_path: Path, sent: Any) -> None:
    async def steps(client: Client) -> None:
        for method, path in (
            ("GET", "/v1/threads"),
            ("POST", "/v1/threads/t/messages"),
            ("GET", f"/v1/threads?token={WRITER}"),
        ):
            answer = await client.http.request(method, path, headers=sent, json=HELLO if method == "POST" else None)
            assert (answer.status_code, answer.json()["type"]) == (401, "Unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"

    visit(url, tmp_path, steps)


def test_the_file_is_read_again_when_it_changes(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        assert (await client.get("/v1/threads")).status == 200
        path = token_file(tmp_path, *LINES[1:])
        assert (await client.get("/v1/threads")).status == 401
        assert (await client.get("/v1/threads", token=READER)).status == 200
        other = tmp_path / "other"
        other.write_text(line(WRITER, "globex", "bot", "read") + "\n", encoding="utf-8")
        other.replace(path)
        assert (await client.get("/v1/threads")).status == 200
        assert (await client.post("/v1/threads/t/messages", HELLO)).status == 403
        # Nobody is let in with a file that may have lost the withdrawal of a token.
        path.write_text("{", encoding="utf-8")
        answer = await client.get("/v1/threads")
        assert (answer.status, answer.kind, answer.headers["retry-after"]) == (503, "Unavailable", "1")
        path.unlink()
        assert (await client.get("/v1/threads")).status == 503
        token_file(tmp_path)
        assert (await client.get("/v1/threads")).status == 200

    visit(url, tmp_path, steps)


@pytest.mark.parametrize(("text", "says"), [
    ("", "must have at least one line"),
    ("\n \n", "must have at least one line"),
    ("{", "line 1 of the file of tokens must be right: the text is not JSON"),
    (LINES[0] + "\n[]", "line 2 of the file of tokens must be right"),
    (line(WRITER, "", "bot", "read"), "tenant must be right: a name must be text"),
    (line(WRITER, "acme", "", "read"), "actor must be right: a name must be text"),
    (line(WRITER, "x" * 256, "bot", "read"), "tenant must be right: a name must be text"),
    (line(WRITER, "acme", "bot", "admin"), "rights must be 'read' or 'write'"),
    (line(WRITER, "acme", "bot", "read").replace("sha256", "token"), "sha256 must be given"),
    (LINES[0].replace('"sha256": "', '"sha256": "x'), "sha256"),
    (LINES[0] + "\n" + line(WRITER, "acme", "other", "read"), "line 2 of the file of tokens must not have the hash"),
    (LINES[0][:-1] + ', "tenant": "globex"}', "a name twice"),
    (LINES[0][:-1] + ', "expires": 1}', "must be one of tenant, actor, rights, sha256"),
])  # fmt: skip
def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        TokenFile(path)
    assert says in str(refused.value)
    assert WRITER not in str(refused.value)


def test_the_proxy_says_the_tenant_the_actor_and_the_rights(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        stored = await client.post("/v1/threads/t/messages", HELLO, token=None, headers=PROXY)
        assert (stored.status, stored.body["messages"][0]["actor"]) == (201, "bot")
        reading = {**PROXY, "Compaction-Store-Rights": "read"}
        assert (await client.post("/v1/threads/t/messages", HELLO, token=None, headers=reading)).status == 403
        other = {**PROXY, "Compaction-Store-Tenant": "globex"}
        assert (await client.get("/v1/threads", token=None, headers=other)).body["items"] == []
        named = {**PROXY, "Compaction-Store-Tenant": "é".encode()}
        assert (await client.get("/v1/threads", token=None, headers=named)).status == 200
        for wrong in (
            {}, {**PROXY, "Compaction-Store-Rights": "admin"}, {**PROXY, "Compaction-Store-Tenant": ""},
            {**PROXY, "Compaction-Store-Tenant": b"\xff"}, {"Compaction-Store-Tenant": "acme"},
            {"Authorization": f"Bearer {WRITER}"},
        ):  # fmt: skip
            answer = await client.get("/v1/threads", token=None, headers=wrong)
            assert (answer.status, answer.kind) == (401, "Unauthorized")
        twice = [*PROXY.items(), ("Compaction-Store-Tenant", "globex")]
        assert (await client.http.get("/v1/threads", headers=twice)).status_code == 401

    visit(url, tmp_path, steps, callers=TrustedProxy(["10.0.0.0/24"]), peer="10.0.0.7")
    with cs.Store.open(url, tenant="acme") as store:
        assert [thread.thread_id for thread in store.threads()] == ["t"]


@pytest.mark.parametrize("peer", ["10.0.1.7", "127.0.0.1", "::1", "::ffff:10.0.1.7"])
def test_nobody_else_is_believed(url: str, tmp_path: Path, peer: str) -> None:
    async def steps(client: Client) -> None:
        for headers in (PROXY, {**PROXY, "X-Forwarded-For": "10.0.0.7", "Forwarded": "for=10.0.0.7"}):
            answer = await client.post("/v1/threads/t/messages", HELLO, token=None, headers=headers)
            assert (answer.status, answer.kind) == (401, "Unauthorized")

    visit(url, tmp_path, steps, callers=TrustedProxy(["10.0.0.0/24"]), peer=peer)


def test_a_mapped_address_is_that_of_the_proxy(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        assert (await client.get("/v1/threads", token=None, headers=PROXY)).status == 200

    visit(url, tmp_path, steps, callers=TrustedProxy(["10.0.0.7"]), peer="::ffff:10.0.0.7")


def test_another_host_in_the_address_is_refused(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        for host in ("evil.example", "", "localhost.evil.example", "127.0.0.1.evil.example:80"):
            answer = await client.get("/v1/threads", headers={"Host": host})
            assert (answer.status, answer.kind) == (421, "WrongHost")
            assert (await client.get("/healthz", headers={"Host": host}, token=None)).status == 200
        for host in ("localhost", "LOCALHOST:9", "[::1]:80", "api.example"):
            assert (await client.get("/v1/threads", headers={"Host": host})).status == 200

    visit(url, tmp_path, steps, hosts=("localhost", "[::1]", "127.0.0.1", "api.example"))


@contextmanager
def serving(url: str, *options: str) -> Iterator[str]:
    """Starts the verb on a free port, and returns its address."""
    command = [sys.executable, "-m", "compaction_store", "api", "--url", url, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith("serving http://127.0.0.1:"), first + process.stderr.read()
        yield first.removeprefix("serving ").strip()
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
    assert "Traceback" not in rest
    assert process.returncode in (0, 130)


def test_the_verb_serves_and_half_requests_do_not_stop_it(url: str, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with serving(url, "--token-file", str(token_file(tmp_path)), "--access-log", str(log)) as address:
        place = httpx.URL(address)
        halves = [socket.create_connection((place.host, place.port or 80)) for _ in range(100)]
        start = f"POST /v1/threads/t/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WRITER}\r\n"
        for index, half in enumerate(halves):
            rest = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{" if index % 2 else ""
            half.sendall((start + rest).encode())
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {WRITER}"}) as client:
            for _ in range(5):
                assert client.post("/v1/threads/t/messages", json=HELLO).status_code == 201
            assert client.get("/v1/threads/t").json()["last_seq"] == 5
            run = client.post("/v1/threads/t/compact", json={"strategy": "sliding-window"})
            assert run.status_code == 200
            large = client.post(
                "/v1/threads/t/rewind", content=b"x" * 100_000, headers={"Content-Type": "application/json"}
            )
            assert large.status_code == 413
        assert httpx.get(f"{address}v1/threads", headers={"Authorization": f"Bearer {STRANGER}"}).json()["items"] == []
        assert httpx.get(f"{address}v1/threads", headers={**PROXY, "X-Forwarded-For": "127.0.0.1"}).status_code == 401
        for half in halves:
            half.close()
    lines = log.read_text(encoding="utf-8")
    assert '"reader": "bot", "page": "append", "id": "t", "tenant": "acme", "status": 201' in lines
    assert '"reader": "bot", "page": "rewind", "id": "t", "tenant": "acme", "status": 413' in lines
    assert WRITER not in lines


def test_the_verb_believes_its_proxy_and_no_forwarded_address(url: str) -> None:
    with serving(url, "--trust-proxy", "10.0.0.5") as address:
        headers = {**PROXY, "X-Forwarded-For": "10.0.0.5", "X-Forwarded-Proto": "https"}
        assert httpx.get(f"{address}v1/threads", headers=headers).status_code == 401
    with serving(url, "--trust-proxy", "127.0.0.1") as address:
        assert httpx.get(f"{address}v1/threads", headers=PROXY).json() == {"items": [], "next": None}
        assert httpx.get(f"{address}v1/threads", headers={**PROXY, "Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(("options", "said"), [
    ((), "or --trust-proxy must be given"),
    (("--token-file", "x", "--trust-proxy", "10.0.0.5"), "and not both"),
    (("--token-file", "/nowhere/tokens"), "the file of tokens must be readable"),
    (("--trust-proxy", "proxy.example"), "a proxy must be an address or a network"),
    (("--trust-proxy", "127.0.0.1", "--listen", "x"), "must look like"),
    (("--trust-proxy", "127.0.0.1", "--strategy", "none"), "must be assistant-runs"),
    (("--trust-proxy", "127.0.0.1", "--strategy", "ladder", "--strategy", "ladder:min_saving=9"), "the same name"),
])  # fmt: skip
def test_the_verb_refuses_a_wrong_call(url: str, options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "compaction_store", "api", "--url", url, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode in (2, 3)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
