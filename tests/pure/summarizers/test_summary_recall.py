"""The share of a conversation that a summary made by rules keeps, compared with simpler texts by the same rules."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.messages_server import elements
from support.paths import ROOT

from benchmarks.recall import recall
from compaction_store.messages import framing
from compaction_store.models.state import State
from compaction_store.summarizers import StateSummary

Payload = dict[str, Any]
WORDS = "order service payment gateway ledger row cart handler test queue customer support invoice call".split()  # noqa: SIM905 — readable


def prose(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count)).capitalize() + "."


def session(seed: int) -> list[Payload]:
    """An agent at work: large results full of figures, few words of people, decisions between the calls."""
    dice = random.Random(seed)
    made: list[Payload] = [{"role": "system", "content": prose(dice, 30)}, {"role": "user", "content": prose(dice, 30)}]
    for turn in range(14):
        wish = f"We must never touch table {dice.choice(WORDS)}_{turn} in this change, {prose(dice, 6)}"
        if turn % 3 == 0:
            made.append({"role": "user", "content": f"{prose(dice, 12)} {wish}"})
        path = f"src/{dice.choice(WORDS)}/part_{dice.randint(10, 99)}.py"
        function = {"name": "read", "arguments": json.dumps({"path": path})}
        made.append(
            {
                "role": "assistant",
                "content": f"{prose(dice, 20)} I decided to keep step {turn} as it is because of {dice.choice(WORDS)}.",
                "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}],
            }
        )
        rows = [f"{dice.choice(WORDS)} {dice.randint(1000, 9999)} {prose(dice, 8)}" for _ in range(25)]
        rows.insert(12, f"ValueError: no {dice.choice(WORDS)} in row {turn} of the table that was read")
        made.append({"role": "tool", "tool_call_id": f"c{turn}", "content": "\n".join(rows)})
    return [*made, *({"role": "user", "content": "Go on."} for _ in range(4))]


def test_it_keeps_more_than_random_sentences_and_than_head_and_tail() -> None:
    for writers in recall([session(seed) for seed in range(6)], [0.1, 0.25]).values():
        mean = {name: sum(kinds.values()) / len(kinds) for name, kinds in writers.items()}
        for other in ("random sentences", "head and tail", "tail"):
            assert mean["state"] > 1.3 * mean[other]
        assert writers["state"]["paths*"] > 0.9
        for kind in ("constraints", "decisions"):
            assert writers["state"][kind] >= writers["random sentences"][kind]


def test_every_kind_of_speech_has_its_share() -> None:
    text = StateSummary(share=0.1)(elements(*session(3))).text
    state = State.parse(text)
    assert state is not None
    assert set(state) >= {"task", "decisions", "facts", "errors"}
    assert "must never touch" in text
    assert "I decided to keep" in text
    assert "ValueError" in text


def test_names_that_no_sentence_holds_are_listed() -> None:
    dice = random.Random(1)
    said = [{"role": "user", "content": f"{prose(dice, 60)} And order_{n} {prose(dice, 60)}"} for n in range(8)]
    text = StateSummary(share=0.1)(elements(*said)).text
    listed = text.splitlines()[-1]
    assert listed.startswith("- named: order_")
    assert 0.05 * len(text) < len(listed) <= 0.15 * len(text)
    # Names of fields do not count, and the arguments of a call count even if the call is cut.
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": json.dumps({"a": "x " * 300, "b": "B-17"}),
    }
    row = {"type": "function_call_output", "call_id": "c", "output": json.dumps({"some_field": "y " * 400})}
    text = StateSummary(share=0.3)(elements(call, row)).text
    assert "B-17" in text


def test_the_benchmark_runs_on_a_file_of_threads(tmp_path: Path) -> None:
    file = tmp_path / "threads.jsonl"
    file.write_text("\n".join(json.dumps(session(seed)) for seed in range(2)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recall", str(file), "--shares", "0.2"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("| 20% |")
    assert "| state |" in done.stdout


def test_the_seqs_of_an_earlier_summary_are_no_figures_that_somebody_named() -> None:
    dice = random.Random(1)
    made = elements(
        *({"role": "user", "content": f"{prose(dice, 12)} It is {dice.choice(WORDS)}."} for _ in range(300))
    )
    first = StateSummary(share=0.1)(made[100:200]).text
    notes = made[100]._replace(
        messages=(framing.frame(first, 101, 200),), end_seq=200, number=1, kind="summary", tokens=len(first) // 4
    )
    again = StateSummary(share=0.02)([notes, *made[200:]]).text
    assert any(" [1" in line for line in first.splitlines())
    named = [line for line in again.splitlines() if line.startswith("- named:")]
    assert not re.search(r"\d", "".join(named))


def test_an_order_stays_in_summaries_of_summaries() -> None:
    dice = random.Random(1)
    order = "From now on, always name the parcel in your answer."
    made = elements(
        *(
            {"role": "user", "content": f"{prose(dice, 12)} {order if n == 3 else prose(dice, 5)} {prose(dice, 12)}"}
            for n in range(60)
        )
    )
    notes: list[Any] = list(made[:10])
    for end in range(10, 60, 10):
        text = StateSummary(share=0.3)(notes).text
        assert f"## Standing orders\n- {order} [4]" in text
        folded = notes[0]._replace(
            messages=(framing.frame(text, 1, end),), end_seq=end, number=1, kind="summary", tokens=len(text) // 4
        )
        notes = [folded, *made[end : end + 10]]
