"""The pages are red, and the first one says why, if something is wrong with the whole store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.checkpoints import KEY
from support.keys import key_of
from support.superuser_edits import WITH_NAMES

import compaction_store as cs
from web.audited import THREAD, Client, visit
from web.served import serving

_RED = "This store is not as it should be"
_PAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/thread", {"id": THREAD}), ("/threads", {}), ("/records", {}), ("/integrity", {}),
    ("/leases", {}), ("/reviews", {}), ("/sample", {}), ("/erasures", {}),
    ("/message", {"id": THREAD, "seq": 2}), ("/thread", {"id": "nobody"}), ("/nowhere", {}),
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "log", KEY.key)


def red(url: str, *whys: str, tenant: str = "default", **options: Any) -> None:
    """Every page has the red line and the first page these reasons, or no page has a line if there are none."""

    async def steps(client: Client) -> None:
        first = (await client.get("/")).text
        assert (_RED in first) is bool(whys)
        assert first.count("<li>") - first.count("<li><a") == len(whys)
        for why in whys:
            assert why in first
        for address, given in _PAGES:
            text = (await client.get(address, params=given)).text
            assert (_RED in text) is bool(whys), address
            assert (f'href="/">{_RED}' in text) is bool(whys)

    visit(url, steps, tenant=tenant, **options)


def test_a_sound_store_is_not_red(url: str, store: cs.Store, log: cs.CheckpointLog) -> None:
    red(url)
    store.audit.checkpoint(KEY, log)
    store.append("newer", {"role": "user", "content": "hi"})
    store.custody.erase("other", reason="asked")
    red(url, checkpoints=log)


@pytest.mark.usefixtures("store")
def test_a_tenant_without_threads_is_red_unless_that_is_right(url: str) -> None:
    red(url, "The tenant &#39;acme-suport&#39; has no threads.", tenant="acme-suport")
    red(url, tenant="acme-suport", allow_empty=True)


def test_the_checkpoints_of_another_tenant_are_red(url: str, store: cs.Store, log: cs.CheckpointLog) -> None:
    store.audit.checkpoint(KEY, log)
    with cs.Store.open(url, tenant="other") as other:
        other.append(THREAD, {"role": "user", "content": "hi"})
        other.append(THREAD, {"role": "assistant", "content": "hi"})
    red(url, "do not cover the tenant &#39;other&#39;", tenant="other", checkpoints=log)
    everybody = cs.CheckpointLog(log.path.parent / "all" / "log", KEY.key)
    store.audit.checkpoint(KEY, everybody, all_tenants=True)
    red(url, tenant="other", checkpoints=everybody)


@pytest.mark.one_server("Citus does not enable the triggers of shards again, and each is a finding")
def test_a_thread_that_only_the_checkpoint_has_is_red(
    url: str, store: cs.Store, log: cs.CheckpointLog, superuser: psycopg.Connection[Any]
) -> None:
    for n in range(3):
        store.append(f"gone {n}", {"role": "user", "content": "hi"})
    gone = sorted(str(key_of(superuser, f"gone {n}")) for n in range(3))
    store.audit.checkpoint(KEY, log)
    for n in range(3):
        # Other threads take their places, so the numbers agree.
        store.append(f"newer {n}", {"role": "user", "content": "hi"})
    for table in WITH_NAMES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER USER".encode())
        superuser.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = ANY (%s)".encode(), (gone,))
        for name in ("refuse_change", "refuse_truncate"):
            superuser.execute(f"ALTER TABLE compaction_store.{table} ENABLE ALWAYS TRIGGER {name}".encode())
    red(url, f"The thread with the key {gone[0]}, and 2 more: in the checkpoint of", checkpoints=log)


@pytest.mark.usefixtures("store")
def test_a_schema_that_protects_nothing_is_red(url: str, superuser: psycopg.Connection[Any]) -> None:
    async def steps(client: Client) -> None:
        assert _RED not in (await client.get("/")).text
        superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
        superuser.execute("DROP INDEX compaction_store.heads_due_idx")
        for _ in range(1000):
            page = (await client.get("/")).text
            if _RED in page:
                break
            # The store is looked at for at most a twentieth of the time.
            await asyncio.sleep(0.05)
        assert "The schema does not protect the threads: index heads_due_idx is missing, and 2 more." in page

    visit(url, steps)


def test_a_log_that_cannot_be_read_is_red(url: str, store: cs.Store, log: cs.CheckpointLog) -> None:
    made = store.audit.checkpoint(KEY, log)
    heads = log.path.parent / f"heads-{made.heads}"
    heads.write_bytes(heads.read_bytes()[:-1] + b"x")
    red(url, "The log of checkpoints cannot be read: the list of heads", checkpoints=log)
    heads.unlink()
    red(url, "The log of checkpoints cannot be read", checkpoints=log)
    log.path.write_bytes(b"")
    red(url, "The log has no checkpoint.", checkpoints=log)


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.usefixtures("store")
def test_serve_is_red_for_a_mistyped_tenant(url: str) -> None:
    for options, is_red in (((), True), (("--allow-empty",), False)):
        with (
            serving(url, "--tenant", "acme-suport", *options) as (_, address),
            httpx.Client(follow_redirects=True) as browser,
        ):
            assert (_RED in browser.get(address).text) is is_red
