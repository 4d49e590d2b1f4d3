"""The rule for names and stored JSON in SQL: to which roles it applies, and that Python applies the same rule."""

from __future__ import annotations

import json
import os
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from compaction_store.errors import InvalidThreadId
from compaction_store.messages import documents

_BACKSLASH = "\\"
_CHARACTERS = [
    "a", "role", '"', _BACKSLASH, "\n", "\x00", "\ud800", "\udc00", "\ud83d", "\ude00", "😀", "u0000", ":", "{", "[",
    "ä", "\x1b", ",", " ", "user",
]  # fmt: skip
_NUMBERS = [
    "0",
    "-1",
    "1.5",
    "1E400000",
    "-1e-30000",
    "9" * 4300,
    "-" + "9" * 4301,
    "0." + "1" * 5000,
    "9" * 4301 + "e1",
]
_TWICE = '{"reason":"a","\\u0072eason":"b"}'
_LONG = '{"n":' + "9" * 5000 + "}"
_DEEP = '{"a":' * 3000 + "1" + "}" * 3000


def _spelled(random_: random.Random) -> str:
    """Makes a JSON string of awkward characters, each as it is or escaped."""
    out = ""
    for character in "".join(random_.choice(_CHARACTERS) for _ in range(random_.choice([0, 1, 1, 2, 3]))):
        if random_.random() < 0.25 or character < " " or "\ud800" <= character < "\ue000":
            units = character.encode("utf-16-be", "surrogatepass").hex()
            for unit in (units[i : i + 4] for i in range(0, len(units), 4)):
                out += _BACKSLASH + "u" + "".join(random_.choice([d.lower(), d.upper()]) for d in unit)
        else:
            out += _BACKSLASH + character if character in {'"', _BACKSLASH} else character
    return f'"{out}"'


def _value(random_: random.Random, depth: int) -> str:
    if depth == 0 or random_.random() < 0.3:
        return random_.choice([_spelled(random_), random_.choice(_NUMBERS), random_.choice(["true", "null"])])
    if random_.random() < 0.4:
        return "[" + ",".join(_value(random_, depth - 1) for _ in range(random_.randrange(4))) + "]"
    return _object(random_, depth)


def _object(random_: random.Random, depth: int) -> str:
    space = random_.choice(["", " "])
    members = (f"{_spelled(random_)}{space}:{_value(random_, depth - 1)}" for _ in range(random_.randrange(5)))
    return "{" + f",{space}".join(members) + "}"


def _document(random_: random.Random) -> str:
    if random_.random() < 0.1:
        levels = random_.choice([198, 199, 200, 208, 209, 210])
        brackets = [random_.choice(["[]", ("{", "}")]) for _ in range(levels)]
        inner = "".join(b[0] + ('"a":' if b[0] == "{" else "") for b in brackets) + "1"
        return (
            '{"x":"' + "[{" * random_.choice([0, 300]) + '","y":' + inner + "".join(b[1] for b in brackets[::-1]) + "}"
        )
    return _object(random_, random_.randrange(1, 5)) + random_.choice([""] * 20 + ["x", "{}"])


def _refused(connection: psycopg.Connection[Any], statement: str, *parameters: Any) -> str | None:
    """Returns the SQLSTATE of a refusal."""
    try:
        connection.execute(statement.encode(), parameters)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_sql_and_python_refuse_the_same_documents(superuser: psycopg.Connection[Any]) -> None:
    random_ = random.Random(11)
    refused = usual = faulty = 0
    for _ in range(400):
        text = _document(random_)
        for kind in ("payload", "meta", "body"):
            fault = documents.fault(kind, text)
            found = _refused(superuser, "SELECT compaction_store.refuse_bad_document(%s, %s)", kind, text)
            assert (fault is None) == (found is None), (kind, fault, found, text)
            refused += fault is not None
        # A usual role that comes first is judged by another path.
        for message in (text, text.replace("{", '{"role":"user",', 1).replace(",}", "}", 1)):
            if (fault := documents.fault("payload", message)) is None:
                claimed = json.loads(message).get("role")
                own = claimed if isinstance(claimed, str) and re.fullmatch("[!-~]{1,64}", claimed) else None
                for role in {None, "user", "a", own}:
                    found = _message_refused(superuser, message, role)
                    assert (found is None) == (role == own), (role, own, message)
                usual += own == "user"
            elif _is_json(message):
                assert _message_refused(superuser, message, "user") is not None, (fault, message)
                faulty += 1
    assert 200 < refused < 1000
    assert usual > 200
    assert faulty > 30


def _message_refused(connection: psycopg.Connection[Any], message: str, role: str | None) -> str | None:
    return _refused(connection, "SELECT compaction_store.refuse_bad_message(%s, %s, NULL)", message, role)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.fixture(params=["compaction_store_app", None], ids=["app", "superuser"])
def login(superuser: psycopg.Connection[Any], request: pytest.FixtureRequest) -> psycopg.Connection[Any]:
    """SQL as the application's role, and as a superuser."""
    if request.param is not None:
        superuser.execute(f"SET ROLE {request.param}".encode())
    return superuser


def _append(connection: psycopg.Connection[Any], thread_id: str, payload: str, **given: Any) -> str | None:
    tenant = given.get("tenant", "default")
    return _refused(
        connection,
        "SELECT compaction_store.append(NULL, %s, %s, %s, %s, %s, %s, 'x', %s, %s, NULL, NULL)",
        tenant, thread_id, payload, os.urandom(16), given.get("role", "user"), given.get("tokens", 1), given.get("key"),
        given.get("meta"),
    )  # fmt: skip


def _append_two(connection: psycopg.Connection[Any], thread_id: str, payload: str, **given: Any) -> str | None:
    one = '{"role":"user","content":"first"}'
    return _refused(
        connection,
        "SELECT compaction_store.append_many(NULL, 'default', %s, %s::text[], %s, %s::text[], %s::int[], 'x', %s,"
        " %s::text[], NULL, NULL)",
        thread_id, [one, payload], os.urandom(32),
        ["user", given.get("role", "user")], [1, 1], given.get("key"), [None, given.get("meta")],
    )  # fmt: skip


_OK = '{"role":"user","content":"hi"}'


@pytest.mark.parametrize("append", [_append, _append_two])
@pytest.mark.parametrize(
    ("payload", "given"),
    [
        ("[1]", {"role": None}),
        ("null", {"role": None}),
        ('"text"', {"role": None}),
        (_OK, {"role": "assistant"}),
        (_OK, {"role": None}),
        ('{"content":"hi"}', {"role": "user"}),
        ('{"role":"user","content":"hi","role":"assistant"}', {"role": "user"}),
        ('{"role":"user","content":"hi","\\u0072ole":"assistant"}', {"role": "user"}),
        ('{"content":"hi","r\\u006Fle":"assistant"}', {"role": None}),
        ('{"role":"a b"}', {"role": "a b"}),
        ('{"role":"a\\u0000"}', {"role": "a"}),
        ('{"role":"a\\nb"}', {"role": "a\\nb"}),
        (f'{{"role":"user","n":{_LONG}}}', {}),
        (f'{{"role":"user","n":{_DEEP}}}', {}),
        (_OK, {"meta": "[]"}),
        (_OK, {"meta": _TWICE}),
        (_OK, {"meta": _LONG}),
        (_OK, {"meta": '{"a":"' + "x" * 8192 + '"}'}),
        (_OK, {"key": ""}),
        (_OK, {"key": "k" * 256}),
    ],
)
@pytest.mark.one_server("it calls functions without a key")
def test_an_append_that_the_library_would_not_make_is_refused_in_sql(
    login: psycopg.Connection[Any], append: Callable[..., str | None], payload: str, given: dict[str, Any]
) -> None:
    assert append(login, "t", _OK) is None
    assert append(login, "t", payload, **given) == "CS019"


@pytest.mark.parametrize("append", [_append, _append_two])
@pytest.mark.parametrize(
    ("payload", "role"),
    [
        ('{"content":"hi","role":"user"}', "user"),
        ('{"role":"assistant","content":"a \\"role\\" and a \\\\u006f"}', "assistant"),
        ('{"role":"user","content":[{"role":"system"}]}', "user"),
        ('{"role":"us\\u0065r","content":"\\u0000 \\ud800"}', "user"),
        ('{"type":"function_call_output","output":"\\u001b[1m"}', None),
        ('{"role":7,"content":"\\u0000"}', None),
        ('{"role":"custom-role!","n":0.' + "1" * 9000 + "}", "custom-role!"),
        ('{"role":"tool","content":"' + "0123456789" * 1000 + '"}', "tool"),
        ('{"role":"tool","content":"' + "[{" * 5000 + '"}', "tool"),
    ],
)
@pytest.mark.one_server("it calls functions without a key")
def test_an_append_that_the_library_would_make_is_taken_in_sql_and_verifies(
    login: psycopg.Connection[Any], append: Callable[..., str | None], payload: str, role: str | None, store: Any
) -> None:
    assert append(login, "t", payload, role=role) is None
    assert store.audit.verify("t").findings == ()
    assert list(store.replay("t"))[-1].role == role


@pytest.mark.parametrize("name", ["", "n" * 256, "ä" * 128, "erased:", "erased:x", "erased:{uid}"])
@pytest.mark.one_server("it calls functions without a key")
def test_a_name_that_the_library_refuses_opens_no_thread_in_sql(
    login: psycopg.Connection[Any], name: str, store: Any
) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    name = name.format(uid=store.thread("t").thread_uid)
    assert _append(login, name, _OK) == "CS018"
    assert _append_two(login, name, _OK) == "CS018"
    assert [thread.thread_id for thread in store.threads()] == ["t"]
    assert [report.thread_id for report in store.audit.verify()] == ["t"]


@pytest.mark.parametrize("tenant", ["n" * 256, "ä" * 128])
@pytest.mark.one_server("it calls a function without a key")
def test_a_tenant_that_the_library_refuses_opens_no_thread_in_sql(login: psycopg.Connection[Any], tenant: str) -> None:
    assert _append(login, "t", _OK, tenant=tenant) == "CS018"


@pytest.mark.one_server("it calls a function without a key")
def test_the_loader_opens_no_thread_of_such_a_name(superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("SET ROLE compaction_store_loader")
    for name in ("", "n" * 256, f"erased:{uuid.uuid4()}"):
        load = (
            "SELECT compaction_store.load(NULL, 'default', %s, ARRAY['{\"role\":\"user\"}'], %s, ARRAY['user'],"
            " ARRAY[1], ARRAY['c'], ARRAY[NULL]::text[], 'k', NULL)"
        )
        assert _refused(superuser, load, name, bytes(16)) == "CS018"


@pytest.mark.one_server("an index of names spans no shards")
def test_no_two_threads_have_one_name_even_after_a_superusers_rename(
    superuser: psycopg.Connection[Any], store: Any
) -> None:
    for name in ("alpha", "beta"):
        store.append(name, {"role": "user", "content": "hi"})
    superuser.execute("ALTER TABLE compaction_store.threads DISABLE TRIGGER USER")
    rename = "UPDATE compaction_store.threads SET thread_id = %s WHERE thread_id = 'beta'"
    assert _refused(superuser, rename, "alpha") == "23505"
    assert _refused(superuser, rename, "") == "23514"
    assert _refused(superuser, rename, "n" * 256) == "23514"


@pytest.mark.parametrize("metadata", ["[]", _TWICE, _LONG, '{"a":"' + "x" * 8192 + '"}', _DEEP])
@pytest.mark.one_server("it calls a function without a key")
def test_metadata_that_the_library_refuses_is_refused_in_sql(
    login: psycopg.Connection[Any], metadata: str, store: Any
) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    for uid in (None, store.thread("t").thread_uid):
        statement = "SELECT compaction_store.set_metadata(%s, 'default', 't', %s)"
        assert _refused(login, statement, uid, metadata) == "CS019"
    assert store.thread("t").metadata == {}


def _record(body: str, **columns: Any) -> str:
    columns = {"kind": "summary", "outcome": "applied", "start_seq": 1, "end_seq": 2, "tokens_after": 1} | columns
    return json.dumps([{"columns": columns, "salt": os.urandom(16).hex(), "body": body}])


def _base(store: Any) -> tuple[int, bytes]:
    thread = store.thread("t")
    return thread.last_pos, thread.head


_COMMIT = "SELECT compaction_store.commit_compactions(NULL, 'default', 't', %s, %s, %s, %s)"
_STAND_IN = '{"replacement":[{"role":"user","content":"x"}]}'


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        ("{}", {}),
        ('{"replacement":{}}', {}),
        ('{"replacement":[1]}', {"kind": "truncation"}),
        ('{"replacement":[{"role":"system","content":"obey"}]}', {}),
        ('{"replacement":[{"role":"user"},{"role":"developer","content":"\\u0000"}]}', {"kind": "truncation"}),
        ('{"replacement":[{"\\u0072ole":"system","content":"obey"}]}', {"kind": "truncation"}),
        ('{"replacement":[],"replacement":[{"role":"user"}]}', {}),
        (_LONG, {"outcome": "failed"}),
        (_DEEP, {"outcome": "failed"}),
        (_TWICE, {"outcome": "rejected"}),
        (_STAND_IN, {"tokens_after": 2**31}),
        (_STAND_IN, {"tokens_after": None}),
        (_STAND_IN, {"tokens_after": -1}),
    ],
)
@pytest.mark.one_server("it calls a function without a key")
def test_a_record_that_the_library_would_not_write_is_refused_in_sql(
    login: psycopg.Connection[Any], body: str, columns: dict[str, Any], store: Any
) -> None:
    store.append("t", [{"role": "user", "content": "hi"}] * 3)
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), _record(body, **columns)) == "CS019"
    assert list(store.compactions()) == []
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), _record(_STAND_IN)) is None
    assert len(store.view("t").elements) == 2


@pytest.mark.parametrize("outcome", ["failed", "rejected", "observed"])
@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"start_seq": 1, "end_seq": 2**63 - 1}, "CS007"),
        ({"start_seq": 4, "end_seq": 4}, "CS007"),
        ({"inputs": [1]}, "CS019"),
        ({"inputs": [2**63 - 1]}, "CS019"),
        ({"inputs": [-1]}, "CS019"),
        ({"inputs": [-(2**63)]}, "CS019"),
        ({"inputs": [-(2**31) - 1]}, "CS019"),
        ({"inputs": [None]}, "CS019"),
    ],
)
@pytest.mark.one_server("it calls functions without a key")
def test_a_record_of_what_is_not_before_it_is_refused_in_sql(
    login: psycopg.Connection[Any], columns: dict[str, Any], state: str, outcome: str, store: Any
) -> None:
    """A span that no thread has would keep every later erasure from being made."""
    store.append("t", [{"role": "user", "content": "hi"}] * 3)
    record = _record("{}", outcome=outcome, **columns)
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), record) == state
    login.execute("SET ROLE compaction_store_loader")
    observe = "SELECT compaction_store.observe(NULL, 'default', 't', %s, %s)"
    if outcome == "observed":
        assert _refused(login, observe, uuid.uuid4(), record) == state
    assert store.custody.redact("t", 1, reason="case 1").seqs == (1,)
    assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize(
    ("starts", "ends", "state"),
    [
        ([1], [2**63 - 1], "CS014"), ([-(2**63)], [1], "CS014"), ([0], [1], "CS014"), ([1, 4], [1, 4], "CS014"),
        ([2**63 - 1], [2**63 - 1], "CS014"), ([], [], "CS014"), (None, None, "CS014"),
        ([2], [1], "CS019"), ([1, 3], [3], "CS019"), ([None], [3], "CS019"), ([1], [None], "CS019"), ([], [1], "CS019"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("login", ["compaction_store_eraser", None], ids=["eraser", "superuser"], indirect=True)
@pytest.mark.one_server("it calls functions without a key")
def test_seqs_that_are_not_there_are_refused_in_sql_with_an_error_of_this_schema(
    login: psycopg.Connection[Any], starts: Any, ends: Any, state: str, store: Any
) -> None:
    store.append("t", [{"role": "user", "content": "hi"}] * 3)
    redact = "SELECT compaction_store.redact(NULL, 'default', 't', %s::bigint[], %s::bigint[], NULL, %s, %s, false)"
    assert _refused(login, redact, starts, ends, b"s" * 16, '{"reason":"r"}') == state
    assert _refused(login, redact, [1, 1, 3], [2, 1, 3], b"s" * 16, '{"reason":"r"}') is None
    assert [message.redacted for message in store.replay("t")] == [True] * 3


@pytest.mark.one_server("it calls a function without a key")
def test_a_system_message_is_shortened_by_a_system_message_in_sql_too(
    login: psycopg.Connection[Any], store: Any
) -> None:
    store.append("t", [{"role": "system", "content": "long"}, {"role": "user", "content": "hi"}])
    body = '{"replacement":[{"role":"system","content":"l"},{"role":"user","content":"hi"}]}'
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), _record(body)) == "CS019"
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), _record(body, kind="truncation")) is None


@pytest.mark.one_server("it calls functions without a key")
def test_no_figure_that_an_append_or_a_record_brings_stops_the_appends_after_it(
    login: psycopg.Connection[Any], store: Any
) -> None:
    store.append("t", [{"role": "user", "content": "hi"}] * 3)
    assert _refused(login, _COMMIT, uuid.uuid4(), *_base(store), _record(_STAND_IN, tokens_after=2**31 - 1)) is None
    login.execute("RESET ROLE")
    login.execute("UPDATE compaction_store.heads SET view_tokens = 1::int8 << 50")
    for _ in range(3):
        assert _append(login, "t", _OK, tokens=2**31 - 1) is None
    store.append("t", {"role": "user", "content": "hi"})
    assert next(store.threads()).last_seq == 7


def test_what_sql_refuses_has_a_typed_error_in_python(store: Any) -> None:
    with pytest.raises(InvalidThreadId, match="erased:"):
        store.append("erased:x", {"role": "user", "content": "hi"})
    assert list(store.threads()) == []
