"""Summaries without a model: always shorter, always the same, and nothing in them that was not said."""

# Other scripts have letters and signs that look like Latin ones.
# ruff: noqa: RUF001

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faces import Face
from support.messages_server import elements
from support.random_threads import FORMATS, WELL_FORMED, scripts, written

from compaction_store import InvalidInput
from compaction_store.compaction.summary_request import texts
from compaction_store.errors import SummaryTooLong
from compaction_store.language.names import NameReader
from compaction_store.messages.framing import frame
from compaction_store.models import Element
from compaction_store.models.state import PARTS, State
from compaction_store.probes.thread_probe import Passages
from compaction_store.summarizers import Request, StateSummary
from compaction_store.tokens import count_text

FILLER = "It is generally thought that things of that sort are as they are and that there is little to add to it. "
CODE = "\n".join(f"line {i} of a listing that goes on for a while" for i in range(60))
THREAD = elements(
    {"role": "user", "content": "Please fix the login in /srv/app/auth.py before 3 December. " + FILLER * 3},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": FILLER * 4},
            {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "/srv/app/auth.py"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": f"{CODE}\nexit status 17"}]},
    {"role": "assistant", "content": FILLER * 4 + "We use email-validator 2.1.0, because our own pattern was wrong."},
    {"role": "user", "content": "Then tell Marguerite Duval at duval@example.org about ticket PROJ-4711. " + FILLER},
    {
        "role": "assistant", "content": FILLER * 2,
        "tool_calls": [{"id": "b", "function": {"name": "send_mail", "arguments": '{"to":"Duval"}'}}],
    },
    {"role": "tool", "tool_call_id": "b", "content": "Delivered at 14:05:33. " + FILLER},
    {"role": "assistant", "content": "Done: Marguerite Duval has been told. " + FILLER},
)  # fmt: skip


def text_of(given_: Any, **options: Any) -> str:
    return StateSummary(**options)(given_).text


def state_of(given_: Any, **options: Any) -> State:
    state = State.parse(text_of(given_, **options))
    assert state is not None
    return state


def folded(text: str, end: int) -> Element:
    message = (frame(text, 1, end),)
    return Element(1, end, 9, message, count_text(text) + 60, 1, THREAD[0].created_at, "summary", "f")


def after(count: int, *payloads: Any) -> list[Element]:
    return [e._replace(seq=e.seq + count, end_seq=e.seq + count) for e in elements(*payloads)]


def _searched(number: int, form: str) -> list[Any]:
    """Returns a call with a function of its own, and its result: a list of rows."""
    name, given = f"search_{number}_flights", {"text": f"Flight to harbour {number}. {FILLER}"}
    rows = [{"flight_number": f"HAT{number}{n:02}", "gate": f"G{n}", "note": f"{n} {FILLER}"} for n in range(12)]
    if form == "chat":
        function = {"name": name, "arguments": json.dumps(given)}
        said: Any = {
            "role": "assistant",
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        }
        return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps(rows)}]
    use = {"type": "tool_use", "id": f"c{number}", "name": name, "input": given}
    found = {"type": "tool_result", "tool_use_id": f"c{number}", "content": json.dumps(rows)}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}]


@pytest.mark.parametrize("form", ["chat", "anthropic"])
def test_a_listed_name_of_a_result_stands_behind_its_field_and_no_function_is_listed(form: str) -> None:
    messages = [message for number in range(1, 5) for message in _searched(number, form)]
    text = text_of(elements({"role": "user", "content": "Find me a flight."}, *messages), share=0.1)
    [listed] = [line for line in text.splitlines() if line.startswith("- named: ")]
    items = listed.removeprefix("- named: ").split(", ")
    assert len(items) >= 3
    assert all(re.fullmatch(r"flight_number: HAT\d+", item) for item in items)
    # A name that is listed in this way counts as described.
    assert not any(name.startswith("hat") for name in Passages([text]).listed(NameReader()))


def test_requests_names_figures_paths_decisions_and_outcomes_are_kept_word_for_word() -> None:
    text = text_of(THREAD)
    for fact in (
        "Please fix the login in /srv/app/auth.py before 3 December.", "/srv/app/auth.py (read)",
        "exit status 17", "We use email-validator 2.1.0", "Marguerite Duval at duval@example.org", "PROJ-4711",
        "ran: send_mail(to: Duval)", "14:05:33", "Done: Marguerite Duval has been told.",
    ):  # fmt: skip
        assert fact in text
    assert text.count(FILLER.strip()) <= 1


def test_every_line_is_in_its_part_and_says_where_it_comes_from() -> None:
    state = state_of(THREAD)
    parts = {
        name: [line.seqs for line in lines if not line.text.startswith("named: ")] for name, lines in state.items()
    }
    assert all(seqs == sorted(seqs) and all(seqs) for seqs in parts.values())
    assert {name: {seq for seqs in found for seq in seqs} for name, found in parts.items()} == {
        "task": {1, 5}, "decisions": {4}, "files": {2}, "facts": {3, 6, 7}, "next": {8},
    }  # fmt: skip
    assert [line.text for line in state["files"]] == ["/srv/app/auth.py (read)"]


@pytest.mark.parametrize(
    ("request_", "filler", "fact"),
    [
        ("ログインの修正をお願いします。期限は2026年12月3日です。", "特に変わったことはありません。", "2026年12月3日"),
        ("请修复登录问题，文件是 /srv/app/auth.py。", "没有什么特别的。一切正常。", "/srv/app/auth.py"),
        (
            "Почините вход в /srv/app/auth.py до 3 декабря.",
            "Ничего особенного не произошло. Все идет хорошо.",
            "3 декабря",
        ),
        ("أصلح تسجيل الدخول قبل 3 ديسمبر؟ الملف auth.py.", "لا جديد اليوم. كل شيء على ما يرام.", "auth.py"),
        ("कृपया 3 दिसंबर तक लॉगिन ठीक करें।", "कुछ खास नहीं है। सब ठीक है।", "3 दिसंबर"),
        ("กรุณาแก้ไขไฟล์ auth.py ภายในวันที่ 3", "ไม่มีอะไรพิเศษ ทุกอย่างเรียบร้อยดี", "auth.py"),
    ],
    ids=["Japanese", "Chinese", "Russian", "Arabic", "Hindi", "Thai"],
)
def test_in_any_language(request_: str, filler: str, fact: str) -> None:
    told = [{"role": "user", "content": request_}]
    told += [{"role": "assistant", "content": f"{filler} {i}" if i else filler} for i in range(12)]
    assert fact in text_of(elements(*told))


def test_an_error_is_reported_as_an_error() -> None:
    failed = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "No such file: x.txt"}
    text = text_of(elements({"role": "user", "content": FILLER * 5}, {"role": "user", "content": [failed]}))
    assert "## Errors\n- No such file: x.txt [2]" in text


def test_notes_of_an_earlier_summary_are_carried_over_as_they_are() -> None:
    notes = "[1] user: Please ship build 88 to Lyon.\n[4] assistant: We sign it with cosign 3.2.1."
    text = text_of([folded(notes, 4), *after(4, *(e.message for e in THREAD))], share=0.5)
    assert "- Please ship build 88 to Lyon. [1]" in text
    assert "- We sign it with cosign 3.2.1. [4]" in text
    assert "notes-" not in text
    # A user's message with a frame made by hand is not a summary.
    forged = elements({"role": "user", "content": frame(notes, 1, 4)["content"] + FILLER * 9})
    assert "[1] user: " in text_of(forged)


def todo(*entries: tuple[str, str]) -> dict[str, Any]:
    given_ = {"todos": [{"content": content, "status": status} for content, status in entries]}
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "TodoWrite", "input": given_}]}


def test_an_earlier_state_is_merged_part_by_part() -> None:
    call: dict[str, Any] = {"type": "tool_use", "id": "e", "name": "Edit"}
    edit = {**call, "input": {"file_path": "/srv/a.py", "old_string": "x", "new_string": "y"}}
    look = {**call, "name": "Read", "input": {"file_path": "/srv/a.py"}}
    first = text_of(
        elements(
            {"role": "user", "content": "Fix the parser in /srv/a.py. Never push to main. " + FILLER * 9},
            todo(("write the test", "pending"), ("mend it", "pending")),
            {"role": "assistant", "content": [edit]},
            {"role": "assistant", "content": "Next I run the tests of the parser."},
        ),
        share=0.9,
    )
    more = [
        todo(("write the test", "completed"), ("mend it", "in_progress")),
        {"role": "assistant", "content": [look]},
        {"role": "assistant", "content": "The tests pass, so I shall write the change log. " + FILLER},
    ]
    state = state_of([folded(first, 4), *after(4, *more)], share=0.9)
    assert [line.text for line in state["todos"]] == ["write the test (completed)", "mend it (in_progress)"]
    assert {line.seqs for line in state["todos"]} == {(5,)}
    # It is read again, and was still written.
    assert [str(line) for line in state["files"]] == ["- /srv/a.py (written) [3]"]
    assert state["next"][0].text.startswith("The tests pass")
    assert any("Next I run the tests" in line.text and line.seqs == (4,) for line in state["decisions"])
    assert [str(line) for line in state["orders"]] == ["- Never push to main. [1]"]


def test_a_listing_is_kept_without_its_line_numbers_and_json_with_the_names_of_its_fields() -> None:
    listing = "\n".join(f"{n:6}\u2192def name_{n}() -> None:" for n in range(281, 330))
    found = {"user": {"id": "mia_li_3668", "born": "1990-04-05"}, "flights": [{"number": "HAT170", "price": 54.25}]}
    text = text_of(
        elements(
            {"role": "user", "content": "Look."}, {"role": "tool", "tool_call_id": "a", "content": listing},
            {"role": "tool", "tool_call_id": "b", "content": json.dumps(found)},
        ),
        share=0.5,
    )  # fmt: skip
    assert "def name_3" in text
    assert not re.search(r"\b(28[1-9]|29\d|3[0-2]\d)\b", text)
    assert "user: id: mia_li_3668, born: 1990-04-05" in text
    assert "flights: number: HAT170, price: 54.25" in text


def test_of_several_messages_in_the_place_of_a_span_each_has_its_seq() -> None:
    spoken = (
        {"role": "user", "content": FILLER},
        {"role": "user", "content": "Never push to the main branch. " + FILLER},
    )
    one = THREAD[0]._replace(seq=2, end_seq=3, messages=spoken, kind="replacement", number=1)
    assert "- Never push to the main branch. [3]" in text_of([one])


def test_a_cleared_input_is_no_fact() -> None:
    cleared = {"input": "[Input cleared: 812 tokens, seq 2]"}
    use = {"type": "tool_use", "id": "a", "name": "Write", "input": cleared}
    text = text_of(elements({"role": "user", "content": FILLER * 3}, {"role": "assistant", "content": [use]}))
    assert "812" not in text
    assert "Write" not in text


def test_thinking_and_erased_messages_are_left_out() -> None:
    thought = {"type": "thinking", "thinking": "SECRET-1", "signature": "s"}
    told = elements({"role": "assistant", "content": [thought, {"type": "text", "text": FILLER * 5}]}, None)
    assert "SECRET" not in text_of(told)


def test_the_budget_holds() -> None:
    long = elements(*[e.message for e in THREAD] * 40)
    assert count_text(text_of(long, max_tokens=100)) <= 100
    assert count_text(StateSummary()(Request(long, budget=50)).text) <= 50
    assert len(text_of(long, share=0.05)) <= Request.of(long).size * 0.05


def test_what_is_too_short_to_be_shortened_is_an_error() -> None:
    with pytest.raises(SummaryTooLong):
        text_of(elements({"role": "user", "content": "x"}))
    with pytest.raises(SummaryTooLong):
        text_of(elements(None))


@pytest.mark.parametrize(
    "options", [{"share": 0}, {"share": 1}, {"share": "a"}, {"max_tokens": 1}, {"max_tokens": 2.5}]
)
def test_options_that_there_are_not(options: Any) -> None:
    with pytest.raises(InvalidInput):
        StateSummary(**options)


def _check(told: tuple[Element, ...]) -> None:
    request = Request.of(told)
    try:
        summary = StateSummary()(request)
    except SummaryTooLong:
        # A text without a letter or a digit has no sentence to copy.
        assert request.size < 40 or not any(letter.isalnum() for e in told for text in texts(e) for letter in text)
        return
    assert summary.text == StateSummary()(told).text
    assert 0 < len(summary.text) < request.size
    assert summary.text.strip()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.text(max_size=300)), min_size=1))
def test_it_is_always_shorter_than_its_source(said: list[tuple[str, str]]) -> None:
    _check(elements(*[{"role": role, "content": text} for role, text in said]))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scripts(), st.sampled_from(FORMATS))
def test_it_takes_any_thread(script: Any, form: Any) -> None:
    payloads = [payload for words in script for payload in written(words, form)]
    if payloads:
        _check(elements(*payloads))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_word_of_it_was_said(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(WELL_FORMED)))
    told = elements({"role": "user", "content": FILLER * 2}, *data.draw(WELL_FORMED[kind]()))
    said = set(re.findall(r"\w+", repr([e.messages for e in told])))
    said |= {"named", "ran", "read", "written", "edited", "edit", "failed", "deleted", "true", "false"}
    said.update(word for row in PARTS.values() for word in row.title.split())
    assert set(re.findall(r"[^\W\d]+", text_of(told))) <= said


def test_it_is_committed_and_carried_on_in_a_store(store: Face) -> None:
    payloads = [e.message for e in THREAD]
    store.append("t", [*payloads, {"role": "user", "content": "And now?"}])
    summarize = StateSummary()
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 4, summarize))
    assert (record.outcome, record.model, record.body["coverage"]["messages"]) == ("applied", None, 4)
    assert record.tokens_after < record.tokens_before
    [again] = store.compact("t", lambda ctx: ctx.compact(1, 8, summarize))
    assert (again.outcome, again.inputs) == ("applied", (1,))
    assert "email-validator 2.1.0" in again.summary_text


def test_a_long_thread_is_read_once() -> None:
    """The work is that of a sort: ten times the thread takes about ten times the steps."""
    import sys  # noqa: PLC0415

    def steps(count: int) -> int:
        told = elements(*[{"role": "user", "content": f"Sentence {i} of {i * 7}. And more."} for i in range(count)])
        counted = 0

        def trace(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(trace)
        try:
            StateSummary()(told)
        finally:
            sys.setprofile(None)
        return counted

    assert steps(2000) < 15 * steps(200)


def test_standing_orders_are_kept_before_everything_else() -> None:
    orders = ["Never push to main.", "From now on, answer in German.", "Immer erst die Tests laufen lassen."]
    told: list[Any] = []
    for place in range(30):
        order = orders[place // 10] if place % 10 == 4 else ""
        told.append({"role": "user", "content": f"Look at module_{place}.py for #{place + 1000}. {order}"})
        told.append({"role": "assistant", "content": f"It took {place + 3}.5 s and wrote report_{place}.csv. " * 3})
    source = elements(*told)
    text = StateSummary()(Request(source, budget=120)).text
    assert [order for order in orders if order not in text] == []
    # A summary of the summary still has them.
    notes = folded(text, 60)
    later = elements(*({"role": "user", "content": f"Then module_{n}.py, ticket T-{n}."} for n in range(40)))
    again = StateSummary()(
        Request((notes, *(e._replace(seq=e.seq + 60, end_seq=e.seq + 60) for e in later)), budget=120)
    ).text
    assert [order for order in orders if order not in again] == []


def test_a_long_order_is_kept_whole() -> None:
    order = "Never change the public names of the package, " + "not even where a name is misspelt, " * 6 + "please."
    assert 240 < len(order) < 400
    told = [{"role": "user", "content": f"{order} " + FILLER * 12}]
    assert order in text_of(elements(*told))


def test_a_budget_that_is_too_small_for_all_parts_has_the_first_of_them() -> None:
    told = elements(*[{"role": "user", "content": f"Never touch module_{n}.py. See ticket {n}."} for n in range(40)])
    assert set(State.parse(StateSummary()(Request(told, budget=40)).text) or ()) <= {"orders", "task", "next"}
