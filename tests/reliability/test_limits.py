"""Every stored text has a limit. The SQL, the library and both verifiers have the same limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.faces import Faces
from support.handmade_bundles import Thread

import compaction_store as cs
from compaction_store import offline, tokens
from compaction_store.bundles import line_format
from compaction_store.models.vocabulary import MOST_BYTES
from compaction_store.postgres import tables
from reliability.rigs import apart

_SQL = tables.scripts() / "sql"
_SALT = bytes(16)


def _written(path: str) -> str:
    return (_SQL / path).read_text(encoding="utf-8")


def test_the_tables_have_the_limits_of_the_library() -> None:
    """Every text column of every table has a limit in bytes, or a check of its form."""
    for table in ("messages", "compactions", "events", "heads", "turns"):
        text = _written(f"tables/{table}.sql")
        limits = dict(re.findall(r"octet_length\((\w+)\) (?:<=|BETWEEN 1 AND) (\d+)", text))
        columns = set(re.findall(r"^    (\w+) text\b", text, re.MULTILINE))
        assert set(limits) == columns - {"tenant", "thread_id", "kind", "outcome"}
        assert limits == {column: str(MOST_BYTES[column]) for column in limits}
    names = dict(re.findall(r"octet_length\((\w+)\) BETWEEN 1 AND (\d+)", _written("tables/threads.sql")))
    assert names == {column: str(MOST_BYTES[column]) for column in ("tenant", "thread_id")}


def test_documents_have_the_limits_of_the_library(superuser: psycopg.Connection[Any]) -> None:
    for kind in ("payload", "body", "receipt", "meta", "metadata"):
        for size, is_fine in ((MOST_BYTES[kind], True), (MOST_BYTES[kind] + 1, False)):
            text = '{"pos":1,"a":"' + "x" * (size - 16) + '"}'
            assert len(text) == size
            assert (_refusal(superuser, "refuse_bad_document(%s, %s)", kind, text) is None) is is_fine
            assert (offline.document(kind, text) is not None) is is_fine


def test_both_verifiers_have_the_limits_of_the_library() -> None:
    for kind, fields in line_format.FIELDS.items():
        of_offline = dict(offline.FIELDS[kind])
        for name in fields.keys() & (MOST_BYTES.keys() - {"payload", "body", "meta", "metadata"}):
            for size, is_fine in ((MOST_BYTES[name], True), (MOST_BYTES[name] + 1, False)):
                value = "é" * (size // 2) + "x" * (size % 2)
                assert bool(fields[name](value)) is is_fine, (kind, name)
                assert bool(of_offline[name](value)) is is_fine, (kind, name)


def _refusal(connection: psycopg.Connection[Any], call: str, *values: Any) -> str | None:
    """Returns the SQLSTATE with which a function of the schema refuses a call."""
    try:
        with connection.transaction():
            connection.execute(f"SELECT compaction_store.{call}".encode(), values)
    except psycopg.Error as error:
        return error.sqlstate
    return None


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url, tenant="acme") as store:
        store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(8)])
        store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)
        yield store


_LONG = "x" * 256
_WHY = '{"reason":"asked"}'
_CALLS = {
    "append's counter": ("append(NULL,'acme','t','{}',%s,NULL,1,%s,NULL,NULL,NULL,NULL)", (_SALT, _LONG)),
    "append_many's counter": (
        "append_many(NULL,'acme','t',ARRAY['{}'],%s,ARRAY[NULL],ARRAY[1],%s,NULL,NULL,NULL,NULL)",
        (_SALT, _LONG),
    ),
    "load's counter": (
        "load(NULL,'acme','t',ARRAY['{}'],%s,ARRAY[NULL],ARRAY[1],ARRAY[%s],NULL,'k',NULL)",
        (_SALT, _LONG),
    ),
    "load_threads' counter": (
        "load_threads('acme',ARRAY['u'],ARRAY['k'],ARRAY[1],ARRAY['{}'],%s,ARRAY[NULL],ARRAY[1],ARRAY[%s],NULL)",
        (_SALT, _LONG),
    ),
    "an event's actor": ("record_event(NULL,'acme','t','release',%s,%s,'{}')", (_LONG, _SALT)),
    "an event's body": ("record_event(NULL,'acme','t','release','a',%s,%s)", (_SALT, f'{{"a":"{"x" * 2**24}"}}')),
    "a verdict's actor": (
        "record_verdict(NULL,'acme','t',1,%s,%s,'{\"number\":1,\"verdict\":\"good\"}')",
        (_LONG, _SALT),
    ),
    "a redaction's actor": ("redact(NULL,'acme','t',ARRAY[1],ARRAY[1],%s,%s,%s,false,false)", (_LONG, _SALT, _WHY)),
    "an erasure's actor": ("erase(NULL,'acme','t',%s,%s,%s,false,false)", (_LONG, _SALT, _WHY)),
    "a fork's actor": ("fork(NULL,'acme','t','u',NULL,%s,%s,NULL,'{}')", (_LONG, _SALT)),
    "a fork's body": ("fork(NULL,'acme','t','u',NULL,'a',%s,NULL,%s)", (_SALT, f'{{"a":"{"x" * 2**24}"}}')),
    "a rewind's actor": (
        "rewind(NULL,'acme','t','01a1e413-0000-7000-8000-000000000000',4,'rewind',false,NULL,%s,'{}',%s)",
        (_LONG, '{"replacement":[]}'),
    ),
    "a lease's actor": ("lease(NULL,'acme','t','01a1e413-0000-7000-8000-000000000000',9,%s)", (_LONG,)),
    "a turn's actor": ("take_turn('acme','t','01a1e413-0000-7000-8000-000000000000',%s,9,true)", (_LONG,)),
    **{
        f"a record's {name}": (
            "commit_compactions(NULL,'acme','t','01a1e413-0000-7000-8000-000000000000',NULL,NULL,%s)",
            (
                json.dumps(
                    [
                        {
                            "columns": {"kind": "summary", "outcome": "failed", name: _LONG},
                            "salt": "00" * 16,
                            "body": "{}",
                        }
                    ]
                ),
            ),
        )
        for name in ("callback", "trigger", "actor", "model", "counter")
    },
}


@pytest.mark.parametrize("what", _CALLS)
def test_a_function_refuses_a_text_that_is_too_long(
    store: cs.Store, superuser: psycopg.Connection[Any], what: str
) -> None:
    call, values = _CALLS[what]
    entries = store.audit.verify("t").entries
    fine = tuple("x" * 255 if value == _LONG else value for value in values)
    fine = tuple(value.replace(_LONG, "x" * 255) if isinstance(value, str) else value for value in fine)
    assert _refusal(superuser, call, *values) in {"23514", "CS019"}
    assert store.audit.verify("t").entries == entries
    if "body" not in what:
        # The longest text that is allowed is stored, so the call was refused for its length.
        assert _refusal(superuser, call, *fine) is None


_RECEIPTS = {
    "": False,
    "[]": False,
    "1": False,
    "{}": False,
    "{": False,
    '{"pos":1}': True,
    '{"pos":1,"a":2}': True,
    '{"pos":0,"a":"\\ud800\\u0000"}': True,
    '{"a":[],"pos":7}': True,
    '{"pos":1,"pos":"x"}': False,
    '{"pos":"x","pos":1}': True,
    '{"pos":1,"\\u0070os":"x"}': False,
    '{"pos":1.0,"a":2}': False,
    '{"pos":1e3,"a":2}': False,
    '{"pos":-1,"a":2}': False,
    '{"pos":true,"a":2}': False,
    '{"pos":null,"a":2}': False,
    '{"pos":999999999999999999,"a":2}': True,
    '{"pos":1000000000000000000,"a":2}': False,
    '{"pos":' + "9" * 5000 + "}": False,
    '{"pos":1,"a":' + "9" * 5000 + "}": False,
    '{"pos":1,"a":' + "[" * 210 + "]" * 210 + "}": False,
    '{"pos":1,"a":"' + "x" * 65536 + '"}': False,
}


@pytest.mark.parametrize("function", ["append", "append_many"])
def test_sql_and_both_verifiers_have_one_rule_for_receipts(
    store: cs.Store, superuser: psycopg.Connection[Any], function: str
) -> None:
    call = {
        "append": "append(NULL,'acme','t','{}',%s,NULL,1,'c',NULL,NULL,%s,NULL)",
        "append_many": "append_many(NULL,'acme','t',ARRAY['{}'],%s,ARRAY[NULL],ARRAY[1],'c',NULL,NULL,%s,NULL)",
    }[function]
    for receipt, is_fine in _RECEIPTS.items():
        assert (_refusal(superuser, call, os.urandom(16), receipt) is None) is is_fine, receipt[:40]
        thread = Thread()
        thread.message('{"role":"assistant","content":"hi"}', receipt=receipt)
        lines = thread.lines()
        assert apart.judged(lines) is not is_fine, receipt[:40]
    assert store.audit.verify("t").findings == ()


def test_a_replacement_is_not_stored_if_a_body_cannot_hold_it(faces: Faces, url: str) -> None:
    store = faces.open(url, tenant="acme")
    long = {"role": "user", "content": "x" * (9 * 2**20)}
    for _ in range(2):
        store.append("t", [long, {"role": "assistant", "content": "y" * 2**20}])
    store.append("t", {"role": "user", "content": "go on"})
    with pytest.raises(cs.InvalidInput, match="at most 16,777,216 bytes"):
        store.compact("t", lambda ctx: ctx.replace(1, 4, [long, long]), force=True)
    assert list(store.compactions("t")) == []


@pytest.mark.parametrize("reason", ["x" * 8193, "é" * 4097])
def test_a_reason_is_at_most_eight_kibibytes_long(faces: Faces, url: str, reason: str) -> None:
    store = faces.open(url, tenant="acme")
    store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(8)])
    store.compact("t", lambda ctx: ctx.compact(1, 3, "short", reason="y" * 8192), force=True)
    entries = store.audit.verify("t").entries
    calls: list[Callable[[], object]] = [
        lambda: store.revoke("t", 1, reason=reason),
        lambda: store.rewind("t", 2, reason=reason),
        lambda: store.clear("t", reason=reason),
        lambda: store.fork("t", "u", reason=reason),
        lambda: store.custody.hold("t", reason=reason),
        lambda: store.custody.release("t", reason=reason),
        lambda: store.custody.retain("t", until=datetime(2100, 1, 1, tzinfo=UTC), reason=reason),
        lambda: store.custody.redact("t", 1, reason=reason, confirmed=True),
        lambda: store.custody.redact("t", 1, reason="fine", override=reason, confirmed=True),
        lambda: store.custody.erase("t", reason=reason, confirmed=True),
        lambda: store.adopt("t", [{"role": "user"}], view=store.view("t"), reason=reason),
        lambda: store.repair("t", 1, "shorter", reason=reason),
    ]
    for call in calls:
        with pytest.raises(cs.InvalidInput, match="at most 8,192 bytes, not 8,19"):
            call()
    assert store.audit.verify("t").entries == entries
    store.revoke("t", 1, reason="x" * 8192)


def test_of_a_long_prompt_only_the_hash_is_stored(faces: Faces, url: str) -> None:
    store = faces.open(url, tenant="acme")
    store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(8)])
    for prompt in ("p" * 60_000, "p" * 66_000):
        summary = cs.Summary("short", prompt=prompt, model="m" * 300)
        [record] = store.compact("t", lambda ctx, s=summary: ctx.compact(1, 3, s), force=True).records
        stored = record.body["prompt"]
        assert stored == prompt if len(prompt) < 65_536 else stored.startswith("sha256:")
        assert record.model == "m" * 255
        store.revoke("t", record.number)


def test_a_counters_name_fits_its_column() -> None:
    assert tokens.Counter("é" * 127, lambda _payload, _size: 1).name == "é" * 127
    with pytest.raises(cs.InvalidInput, match="1 to 255 bytes"):
        tokens.Counter("é" * 128, lambda _payload, _size: 1)


@pytest.mark.parametrize(
    "content",
    [
        "\\u0061 \ud800 " + "".join(chr(0x10000 + n) for n in range(200_000)),
        "\\u0061" + "".join(chr(0xD800 + n % 1024) for n in range(100_000)),
        "\\u0061\ud800" + '"role"' * 100_000,
    ],
    ids=["pairs", "lone surrogates", "names"],
)
def test_the_time_for_a_message_grows_only_in_proportion_to_it(faces: Faces, url: str, content: str) -> None:
    """With a loop over the distinct escapes, the first two took longer than the deadline each time they were tried."""
    store = faces.open(url, tenant="acme")
    store.append("t", {"role": "user", "content": content})
    [message] = store.replay("t")
    assert message.payload == {"role": "user", "content": content}
