"""Summaries of agents without tools: commands are in the assistant's texts, and outputs are messages of the user."""

from __future__ import annotations

from typing import Any

import pytest
from support.messages_server import elements

from compaction_store.compaction.standing_orders import orders_in
from compaction_store.models.state import PartName, State
from compaction_store.summarizers import Request, StateSummary

EXAMPLE = """Here is a demonstration of how to correctly accomplish this task. You must not copy it.
--- DEMONSTRATION ---
ISSUE:
The clock is slow. Never touch clock.py.
(Open file: n/a)
bash-$
--- END OF DEMONSTRATION ---
"""
TASK = """We're currently solving the following issue within our repository. Here's the issue text:
ISSUE:
Rounding of durations
The function `to_seconds` in `src/time/span.py` rounds 344.9 down to 344.
```python
from time.span import to_seconds
value = to_seconds(milliseconds=344900)
print(value)
```
It should be 345.

INSTRUCTIONS:
Now, you're going to solve this issue on your own. You can use any bash commands or the special interface to help you.
Remember, YOU CAN ONLY ENTER ONE COMMAND AT A TIME. Edit all the files you need to and run any checks that you want.

IMPORTANT TIPS:
1. Always start by trying to replicate the bug.
2. If the script prints nothing, we recommend adding a line that prints something.
3. Never use an interactive command such as vim.
4. Large files are shown in windows of 100 lines.
5. Do not install packages with pip.

(Open file: n/a)
(Current directory: /repo)
bash-$"""
PROMPT = "\n(Open file: /repo/src/time/span.py)\n(Current directory: /repo)\nbash-$"
WINDOW = """[File: /repo/src/time/span.py (620 lines total)]
(98 more lines above)
99:def to_seconds(milliseconds: int) -> int:
100:    \"\"\"Returns the seconds. Must be called with whole milliseconds.\"\"\"
101:    try:
102:        return int(milliseconds // 1000)
103:    except (TypeError, ValueError) as error:
104:        raise SpanError("invalid") from error
105:
106:default_error_messages = {"invalid": "Not a valid span."}
(518 more lines below)"""
REFUSED = f"""Your proposed edit has introduced new syntax error(s). Please read this error message carefully.
ERRORS:
- E999 IndentationError: unexpected indent

This is how your edit would have looked if applied
-------------------------------------------------
{WINDOW}
-------------------------------------------------
Your changes have NOT been applied. Please fix your edit command and try again.
DO NOT re-run the same failed edit command. Running it again will lead to the same error.{PROMPT}"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def agent(thought: str, command: str, form: str = "```\n{}\n```") -> dict[str, Any]:
    return {"role": "assistant", "content": f"{thought}\n{form.format(command)}"}


SESSION = [
    user(EXAMPLE),
    user(TASK),
    agent("Let's reproduce the bug first, because the issue has an example.", "create reproduce.py"),
    user("[File: /repo/reproduce.py (1 lines total)]\n1:\n(Open file: /repo/reproduce.py)\nbash-$"),
    agent("Now I paste the example.", "edit 1:1\nfrom time import span\nprint(span.to_seconds(344900))\nend_of_edit"),
    user("File updated. Please review the changes.\n(Open file: /repo/reproduce.py)\nbash-$"),
    agent("Let's check the files provided", "file ~/data/*"),
    user("/root/data/a.bin: ELF 64-bit LSB executable" + PROMPT),
    agent("Run it to see the same output as the issue.", "python reproduce.py"),
    user("344\n(Open file: /repo/reproduce.py)\nbash-$"),
    agent("The function is in span.py, so open it.", "open src/time/span.py 99"),
    user(WINDOW + PROMPT),
    agent("The division cuts off the rest, so I round it instead.", "edit 102:102\n  return round(x)\nend_of_edit"),
    user(REFUSED),
    agent("The indentation was wrong. I shall indent it.", "edit 102:102\n        return y\nend_of_edit"),
]  # fmt: skip


def state_of(messages: list[dict[str, Any]], **options: Any) -> State:
    state = State.parse(StateSummary(**options)(elements(*messages)).text)
    assert state is not None
    return state


def said(state: State, part: PartName) -> list[str]:
    return [line.text for line in state.get(part, ())]


def test_the_task_is_the_issues_own_sentences_and_no_instruction_or_output() -> None:
    [task] = said(state_of(SESSION, share=0.5), "task")
    assert "Rounding of durations The function `to_seconds` in `src/time/span.py` rounds 344.9 down to 344." in task
    assert task.endswith("It should be 345.")
    for strange in ("bash-$", "Open file", "lines total", "special interface", "The clock is slow", "DEMONSTRATION"):
        assert strange not in task


def test_the_orders_of_a_list_have_no_numbers_and_each_is_said_once() -> None:
    found = said(state_of([*SESSION, user(TASK)], share=0.5), "orders")
    assert found == [
        "Remember, YOU CAN ONLY ENTER ONE COMMAND AT A TIME.", "Always start by trying to replicate the bug.",
        "Never use an interactive command such as vim.", "Do not install packages with pip.",
    ]  # fmt: skip
    # They are the same sentences that are in force as the user's orders.
    assert set(found) <= orders_in(elements(user(TASK)))


@pytest.mark.parametrize(
    "form",
    ["```\n{}\n```", "```bash\n{}\n```", "<command>\n{}\n</command>", "{}"],
    ids=["fence", "bash", "tag", "line"],
)
def test_a_command_is_apart_from_what_the_assistant_said(form: str) -> None:
    told = [agent("Let's check the files provided", "file ~/data/*", form), user("a.bin: ELF 64-bit" + PROMPT)]
    state = state_of([*SESSION[:2], *told, agent("It is a program. I run it.", "python reproduce.py", form)], share=0.6)
    assert said(state, "decisions") == ["Let's check the files provided"]
    assert said(state, "next") == ["It is a program. I run it."]
    assert said(state, "facts")[0] == "ran: `file ~/data/*`: a.bin: ELF 64-bit"
    assert "ran: `python reproduce.py`" in said(state, "facts")


def test_files_have_their_last_state() -> None:
    assert said(state_of(SESSION, share=0.5), "files") == ["reproduce.py (edited)", "src/time/span.py (edited)"]
    assert said(state_of(SESSION[:-1], share=0.5), "files") == [
        "reproduce.py (edited)",
        "src/time/span.py (edit failed)",
    ]
    assert said(state_of(SESSION[:12], share=0.5), "files")[1] == "src/time/span.py (read)"


def test_a_command_and_its_short_result_are_one_line() -> None:
    state = state_of(SESSION, share=0.5)
    assert any(str(line) == "- ran: `python reproduce.py`: 344 [9, 10]" for line in state["facts"])
    assert not any("end_of_edit" in line or "reproduce.py\n" in line for name in state for line in said(state, name))


def test_an_error_is_its_notice_and_no_source_code_or_hint() -> None:
    state = state_of(SESSION, share=0.6)
    assert said(state, "errors") == [
        "Your proposed edit has introduced new syntax error(s). … E999 IndentationError: unexpected indent"
    ]
    text = state.text
    for strange in ("except (", "raise SpanError", "DO NOT re-run", "Running it again", "more lines below", "NOT been"):
        assert strange not in text


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("TypeError: integer argument expected, got float", True),
        ("requests.exceptions.ConnectionError: no route", True),
        ("src/main.c:14:3: error: expected ';' before '}' token", True),
        ("bash: foo: command not found", True),
        ("cat: a.txt: No such file or directory", True),
        ("fatal: not a git repository", True),
        ("3 failed, 12 passed in 0.4 s", True),
        ("a1b2c3d Fix ASAN error with long names", False),
        ("    raise ValueError(msg)", False),
        ("    except OverflowError as error:", False),
        ("default_error_messages = {'invalid': 'Not valid.'}", False),
        ("The build finished with 0 errors", False),
    ],
)  # fmt: skip
def test_which_lines_of_an_output_are_errors(line: str, is_error: bool) -> None:
    told = [
        user("Look at it. " * 30),
        {"role": "tool", "tool_call_id": "a", "content": f"It began.\n{line}\nIt ended."},
    ]
    assert (line.strip() in " ".join(said(state_of(told, share=0.9), "errors"))) is is_error


def test_a_users_message_is_an_output_only_after_the_assistant_spoke() -> None:
    whole = elements(*SESSION)
    view = lambda: whole  # noqa: E731
    last = State.parse(StateSummary()(Request(tuple(whole[11:]), view)).text)
    assert last is not None
    assert "task" not in last
    first = State.parse(StateSummary()(Request(tuple(whole[1:5]), view)).text)
    assert first is not None
    assert "Rounding of durations" in first["task"][0].text


def test_what_a_user_says_between_outputs_is_no_output() -> None:
    told = [*SESSION[:8], user("Never push to main. And use tabs in span.py, please."), *SESSION[8:]]
    state = state_of(told, share=0.5)
    assert "Never push to main." in said(state, "orders")
    assert any("use tabs in span.py" in line for line in said(state, "task"))


def test_a_text_that_an_assistant_shows_is_no_command_if_nothing_ran_it() -> None:
    told = [user("How do I list files? " * 9), agent("You list files as follows.", "ls -la"), user("Thanks a lot.")]
    assert "ran:" not in state_of(told, share=0.9).text


def test_a_list_of_names_is_short_and_has_no_data() -> None:
    digest, base64 = (
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "VGhlIHBlb3BsZSBvZiB0aGUgd29ybGQ5",
    )
    rows = "\n".join(f"/srv/data/report_{n}.csv is a copy of {digest} and {base64}{n}" for n in range(40))
    told = [user("Look for the reports. " * 9), {"role": "tool", "tool_call_id": "a", "content": rows}]
    text = StateSummary()(elements(*told)).text
    listed = [line for line in text.splitlines() if line.startswith("- named: ")]
    assert sum(map(len, listed)) <= 0.16 * len(text)
    assert not any(digest in line or base64 in line for line in listed)


def test_the_beginning_of_a_request_is_kept_whole_in_a_small_room() -> None:
    task = "I want the parser to accept dates. It is in src/parse.py. The tests are in tests/test_parse.py. "
    more = [user(f"Ticket {n} mentions module_{n}.py and {n * 7} rows of data in table_{n}.") for n in range(30)]
    [first, *_] = said(state_of([user(task), *more], share=0.2), "task")
    assert first == task.strip()


def test_politeness_is_no_decision_and_no_next_step() -> None:
    told = [
        user("I want to cancel my flight HAT045 because it is late. " * 3),
        {"role": "assistant", "content": "Sure, I can help you with that. The fare is refundable, so I cancel it."},
        {"role": "tool", "tool_call_id": "a", "content": "\n".join(f"row {n} = {n}" for n in range(99))},
        user("Do that, and tell me the sum."),
        {"role": "assistant", "content": "You get 177 dollars back. If you have any further questions, please ask me."},
    ]
    state = state_of(told, share=0.9)
    assert said(state, "decisions") == ["The fare is refundable, so I cancel it."]
    assert said(state, "next") == ["You get 177 dollars back."]
