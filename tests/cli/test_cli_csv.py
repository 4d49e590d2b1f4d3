"""Lists as CSV: complete, by RFC 4180, and without cells that a spreadsheet runs."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO

import pytest
from support.compactable_thread import span

import compaction_store as cs
from cli.program import THREAD, Run
from compaction_store.audit import csv_rows

LISTS = (
    ("threads",), ("threads", "--metadata"), ("threads", "--hidden", "--limit", "1"), ("compactions",),
    ("compactions", THREAD, "--text"), ("compactions", "--outcome", "rejected"), ("events",), ("search", "tide"),
    ("search", "tide", "--text"), ("tenants",), ("verify", THREAD),
)  # fmt: skip


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text, newline=""), strict=True))


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_list_as_csv_has_what_it_has_as_json(run: Run, filled: cs.Store, arguments: tuple[str, ...]) -> None:
    filled.custody.hold(THREAD, reason="=cmd|'/c calc'!A1", actor='a\r\nb, "c"')
    filled.append("t-2", {"role": "user", "content": "the tide"})
    code = run(*arguments, "--json", code=None).returncode
    expected = run.json(*arguments, "--json", code=code)
    assert expected
    printed = run(*arguments, "--csv", code=code).stdout
    found = rows(printed)
    names = list(dict.fromkeys(name for line in expected for name in line))
    assert list(found[0]) == names
    assert len(found) == len(expected)
    for row, line in zip(found, expected, strict=True):
        assert row == {name: csv_rows.csv_cell(line.get(name)) for name in names}
    # Every line ends with CR LF, also where a cell has line breaks of its own.
    assert printed.endswith("\r\n")
    assert printed.split("\r\n", 1)[0] == ",".join(names)


def test_what_compactions_lost_is_a_list(run: Run, filled: cs.Store) -> None:
    assert [row["type"] for row in rows(run("explain", THREAD, "--lost", "--csv", "--text").stdout)] == [
        line["type"] for line in run.json("explain", THREAD, "--lost", "--text")
    ]
    assert "not a list" in run("explain", THREAD, "1", "--csv", code=2).stderr
    filled.append("t-3", {"role": "user", "content": "nothing is compacted here"})
    assert run("explain", "t-3", "--lost", "--csv").stdout == ""


def test_the_checks_of_doctor_are_rows(run: Run) -> None:
    # What they say of the server's speed differs from run to run.
    done = run("doctor", "--csv", code=None)
    assert [row["name"] for row in rows(done.stdout)] == [
        line["name"] for line in run.json("doctor", "--json", code=done.returncode)
    ]


def test_a_threads_compactions_and_a_tenants_costs_come_from_stats(run: Run, filled: cs.Store) -> None:
    found = rows(run("stats", THREAD, "--csv").stdout)
    assert [row["number"] for row in found] == [
        str(record.number) for record in filled.compactions(THREAD) if record.outcome == "applied"
    ]
    [every] = run.json("stats", "--json")
    assert rows(run("stats", "--csv").stdout) == [
        {name: csv_rows.csv_cell(value) for name, value in group.items()} for group in every["costs"]
    ]


NAMES = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\u00a0=1", "\uff1d1", "\uff0b1", "\uff0d1",
         "\uff20A", "\ufe66 1", "\u200b=1", "\ufeff+1")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_a_formula(run: Run, store: cs.Store, name: str) -> None:
    store.append(name, {"role": "user", "content": "hi"})
    [row] = rows(run("threads", "--csv").stdout)
    assert row["thread_id"] == f"'{name}"
    run("export", "--all", "--to", "out")
    [listed] = rows((run.folder / "out" / "index.csv").read_bytes().decode())
    assert listed["thread"] == f"'{name}"


def test_no_cell_of_any_list_is_a_formula(run: Run, store: cs.Store) -> None:
    for name in NAMES:
        message = {"role": "user", "content": f"{name} the tide"}
        store.append(name, [message] * 3, meta=[{name: name}] * 3)
        store.set_metadata(name, {name: name})
        made = cs.Summary(name, model=name, prompt=name, summarizer=name, settings={name: name})
        store.compact(name, span(1, 2, made, reason=name), actor=name, authority={name: name})
        store.compact(name, span(1, 2, "long " * 900, reason=name), actor=name)
        store.custody.hold(name, reason=name, actor=name)
        store.audit.review(name, 1, "bad", note=name, actor=name)
    for arguments in (*LISTS, ("stats",), ("stats", NAMES[0])):
        given = [NAMES[0] if each == THREAD else each for each in arguments]
        for row in rows(run(*given, "--csv", code=None).stdout):
            for column, cell in row.items():
                assert not cell.lstrip(" \u200b\ufeff\u00a0").startswith(
                    ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d")
                ), (arguments, column, cell)


@pytest.mark.parametrize("value", [-5, -0.5, 0, True, None, "t-1", "a=b", "{}", ["=1"], {"a": "=1"}])
def test_what_is_no_formula_stays_as_it_is(value: object) -> None:
    text = csv_rows.csv_cell(value)
    assert not text.startswith("'")
    as_json = "" if value is None else json.dumps(value, separators=(",", ":"))
    assert text == (value if isinstance(value, str) else as_json)


def test_a_line_keeps_what_must_be_quoted() -> None:
    cells = ['say "hi"', "a,b", "a\r\nb", "a\nb", "a\rb", "", " c "]
    assert next(csv.reader(StringIO(csv_rows.csv_line(cells).decode(), newline=""), strict=True)) == cells
    assert csv_rows.csv_line(["\ud800"]) == b"\\ud800\r\n"


def test_a_terminal_gets_no_control_characters(run: Run, store: cs.Store) -> None:
    store.append("a\x1b[31mb\u202ec", {"role": "user", "content": "hi"})
    shown = run.on_terminal("threads", "--csv")
    assert "a\\x1b[31mb\\u202ec" in shown
    assert "\x1b[31m" not in shown


def test_csv_excludes_the_other_forms_and_an_empty_list_has_no_lines(run: Run) -> None:
    assert run("threads", "--csv").stdout == ""
    for other in ("--json", "--table"):
        assert "must not be given with --json or --table" in run("threads", "--csv", other, code=2).stderr


DEVICES = ("con", "NUL.txt", "Aux", "com1", "lpt9.jsonl")


def test_every_name_of_a_thread_becomes_a_file_that_every_system_takes(run: Run, store: cs.Store) -> None:
    names = ["..", "../../etc/passwd", "a/b", "A/B", "\x01\x1b[2J", "x" * 255, "ü" * 127, "-rf", "C:\\x", "?", *DEVICES]
    for name in names:
        store.append(name, {"role": "user", "content": name})
    run("export", "--all", "--to", "out")
    listed = rows((run.folder / "out" / "index.csv").read_bytes().decode())
    assert {row["thread"].removeprefix("'") for row in listed} == set(names)
    files = [row["file"] for row in listed]
    assert {file.name for file in (run.folder / "out").glob("*.jsonl")} == set(files)
    assert len({file.casefold() for file in files}) == len(names)
    for file in files:
        assert re.fullmatch(r"\w[\w.-]{1,120}", file, re.ASCII), file
        assert file.split(".")[0].casefold() not in {name.split(".")[0].casefold() for name in DEVICES}
    done = [line["thread_id"] for line in run.json("verify", *(f"out/{file}" for file in files))]
    assert sorted(done) == sorted(names)
