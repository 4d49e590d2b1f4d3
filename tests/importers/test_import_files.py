"""Sessions of Claude Code and Codex, and messages of three APIs as JSON lines: nothing is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, left_out, metas, records, run, run_all, sound, stored
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import FORMATS, detect

SESSION = "5c0f3a52-6d0e-4b43-9a55-0f6f5a3c9b11"
ROLLOUT = "019a1f2e-7c11-7d32-b1c4-5d6e7f808182"
FILES = {
    "claude-code.jsonl": "claude-code",
    "claude-agent.jsonl": "claude-code",
    "codex.jsonl": "codex",
    "codex-old.jsonl": "codex",
    "chat.jsonl": "openai-chat",
    "chat-conversations.jsonl": "openai-chat",
    "responses.jsonl": "openai-responses",
    "responses-requests.jsonl": "openai-responses",
    "anthropic.jsonl": "anthropic",
    "anthropic-batch.jsonl": "anthropic",
}


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines()]


def uuid(i: int) -> str:
    return f"00000000-0000-4000-8000-{i:012d}"


@pytest.mark.parametrize(("name", "form"), FILES.items())
def test_every_format_is_known_by_its_looks(name: str, form: str) -> None:
    assert detect(FIXTURES / name) == form
    assert detect(str(FIXTURES / name)) == form
    assert form in FORMATS


def test_every_import_is_sound_and_done_again_adds_nothing(store: Face) -> None:
    for name, form in FILES.items():
        first = run(store, FIXTURES / name)
        assert first
        again = run(store, FIXTURES / name)
        assert [r.thread_id for r in again] == [r.thread_id for r in first]
        for result, repeated in zip(first, again, strict=True):
            assert result.loaded is not None
            assert repeated.loaded is not None
            assert result.loaded.added == result.loaded.count == repeated.loaded.count
            assert (repeated.loaded.added, repeated.loaded.observed) == (0, 0)
            assert (result.skipped, result.refused) == (0, None)
            assert set(metas(store, result.thread_id, "source")) == {form}
        sound(store, *(r.thread_id for r in first))


def test_a_session_of_claude_code(store: Face) -> None:
    main, side = run(store, FIXTURES / "claude-code.jsonl")
    assert (main.thread_id, side.thread_id) == (f"claude-code:{SESSION}", f"claude-code:{SESSION}/{uuid(7)}")
    assert (main.source_id, main.is_recognised, main.unknown) == (SESSION, True, {})
    assert left_out(main) == {"file-history-snapshot": 1, "queue-operation": 1, "summary": 1}
    there = [n for n in lines("claude-code.jsonl") if "message" in n]
    assert stored(store, main.thread_id) == [n["message"] for n in there if not n["isSidechain"]]
    assert stored(store, side.thread_id) == [n["message"] for n in there if n["isSidechain"]]
    main_lines = [n for n in there if not n["isSidechain"]]
    assert metas(store, main.thread_id, "external_id") == [n["uuid"] for n in main_lines]
    assert metas(store, main.thread_id, "parent_id") == [n["parentUuid"] for n in main_lines]
    assert metas(store, main.thread_id, "occurred_at") == [n["timestamp"] for n in main_lines]
    assert metas(store, main.thread_id, "is_meta")[:2] == [True, None]
    assert metas(store, main.thread_id, "is_compact_summary").index(True) == 7


def test_the_boundaries_of_claude_code_are_on_record(store: Face) -> None:
    main, _ = run(store, FIXTURES / "claude-code.jsonl")
    assert records(store, main.thread_id) == [
        (8, "summary", "provider:compact_boundary", 1, 7),
        (12, "truncation", "provider:microcompact_boundary", None, None),
        # The last two messages, which it says were preserved, are not in the span.
        (13, "summary", "provider:compact_boundary", 1, 8),
    ]
    first, _, last = store.compactions(main.thread_id)
    assert first.outcome == "observed"
    assert first.summary_text == stored(store, main.thread_id)[7]["content"]
    assert (first.tokens_before, first.tokens_after, first.counter) == (155123, 4210, "provider")
    assert first.body["occurred_at"] == "2026-05-04T09:10:00.000Z"
    assert first.body["provider"]["compactMetadata"]["trigger"] == "auto"
    assert (last.summary_text, last.tokens_before, last.tokens_after) == (None, 9000, None)
    # They fold nothing: the view has every message.
    assert len(store.view(main.thread_id).elements) == main.loaded.count  # type: ignore[union-attr]


def test_an_agents_file_is_a_thread_of_its_own(store: Face) -> None:
    [agent] = run(store, FIXTURES / "claude-agent.jsonl")
    assert agent.thread_id == f"claude-code:{SESSION}/agent-a1b2c3d"
    assert len(stored(store, agent.thread_id)) == 2


def test_a_sessions_name_is_its_files_where_that_is_an_id(store: Face, tmp_path: Path) -> None:
    """Older versions copied a session's lines, including the ids, into the file of the session that continued it."""
    other = "11111111-2222-4333-8444-555555555555"
    shutil.copy(FIXTURES / "claude-code.jsonl", tmp_path / f"{other}.jsonl")
    assert [r.source_id for r in run(store, tmp_path)] == [other, f"{other}/{uuid(7)}"]


def test_a_type_of_line_that_is_not_known_is_reported_and_what_was_said_in_it_is_a_message(
    store: Face, tmp_path: Path
) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    new: list[dict[str, Any]] = [
        {"type": "user", "message": {"role": "user", "content": "one"}},
        {"type": "human-turn", "message": {"role": "user", "content": "two"}},
        {"type": "attachment", "attachment": {"type": "voice_note", "text": "three"}},
        {"type": "system", "subtype": "overheard", "content": "four"},
        {"type": "note", "text": "five"},
        {"type": "note", "text": "six"},
    ]
    write(path, *(line | {"sessionId": SESSION} for line in new))
    [result, kept] = run_all(store, path)
    assert stored(store, result.thread_id) == [new[0]["message"], new[1]["message"]]
    assert result.unknown == {"human-turn": 1, "attachment/voice_note": 1, "system/overheard": 1, "note": 2}
    assert (result.left_out, result.is_recognised) == ({}, True)
    assert [json.loads(line["text"])["type"] for line in stored(store, kept.thread_id)] == [n["type"] for n in new]


def test_a_file_in_which_nothing_is_recognised_is_a_finding(store: Face, tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    write(path, {"type": "x", "sessionId": SESSION}, {"type": "y", "sessionId": SESSION})
    result, kept = run_all(store, path)
    assert (result.is_recognised, result.loaded, result.unknown) == (False, None, {"x": 1, "y": 1})
    assert kept.loaded is not None
    assert kept.is_recognised


def test_a_summary_without_a_boundary_is_a_compaction_all_the_same(store: Face, tmp_path: Path) -> None:
    old = [n for n in lines("claude-code.jsonl") if n.get("subtype") != "compact_boundary"]
    write(tmp_path / "old.jsonl", *old)
    main, _ = run(store, tmp_path / "old.jsonl")
    assert records(store, main.thread_id)[0] == (8, "summary", "provider:compact_boundary", 1, 7)
    [first, *_] = store.compactions(main.thread_id)
    assert "rounded twice" in first.summary_text
    assert "message" not in first.body["provider"]


def test_parallel_side_chains_are_kept_apart(store: Face, tmp_path: Path) -> None:
    def side(i: int, parent: int | None) -> dict[str, Any]:
        return {
            "type": "user", "isSidechain": True, "sessionId": SESSION, "uuid": uuid(i),
            "parentUuid": None if parent is None else uuid(parent), "message": {"role": "user", "content": str(i)},
        }  # fmt: skip

    write(tmp_path / "f.jsonl", side(1, None), side(2, None), side(3, 1), side(4, 2), side(5, 3), side(6, 99))
    found = {r.source_id.removeprefix(f"{SESSION}/"): stored(store, r.thread_id) for r in run(store, tmp_path)}
    assert {name: [m["content"] for m in said] for name, said in found.items()} == {
        uuid(1): ["1", "3", "5", "6"], uuid(2): ["2", "4"],
    }  # fmt: skip


def test_a_rollout_of_codex(store: Face) -> None:
    [result] = run(store, FIXTURES / "codex.jsonl")
    assert (result.thread_id, sum(left_out(result).values())) == (f"codex:{ROLLOUT}", 6)
    items = [n["payload"] for n in lines("codex.jsonl") if n["type"] == "response_item"]
    assert stored(store, result.thread_id) == [i for i in items if i["type"] != "ghost_snapshot"]
    assert metas(store, result.thread_id, "model")[:2] == [None, "gpt-5.3-codex"]
    assert metas(store, result.thread_id, "model")[-1] == "gpt-5.3-codex-mini"
    assert metas(store, result.thread_id, "occurred_at")[0] == "2026-05-04T10:00:00.000Z"
    assert records(store, result.thread_id) == [
        (7, "summary", "provider:compacted", 1, 6), (11, "summary", "provider:compacted", 1, 9),
    ]  # fmt: skip
    first, second = store.compactions(result.thread_id)
    assert (first.summary_text, first.model) == ("The column colour was renamed in models.py.", "gpt-5.3-codex")
    assert first.body["provider"]["replacement_history"][0]["role"] == "user"
    assert (second.summary_text, second.body["provider"]["window_number"]) == (None, 2)
    store.view(result.thread_id).for_openai(api="responses")


def test_a_rollout_of_the_first_versions(store: Face) -> None:
    [result] = run(store, FIXTURES / "codex-old.jsonl")
    assert (result.source_id, sum(left_out(result).values())) == ("9d3c7a10-1111-4222-8333-444455556666", 3)
    assert [m["role"] for m in stored(store, result.thread_id)] == ["user", "assistant"]


def test_a_fork_is_called_by_its_own_header(store: Face, tmp_path: Path) -> None:
    header = {"timestamp": "x", "type": "session_meta", "payload": {"id": "fork", "forked_from_id": ROLLOUT}}
    write(tmp_path / "rollout.jsonl", header, *lines("codex.jsonl"))
    assert [r.source_id for r in run(store, tmp_path)] == ["fork"]


def test_messages_of_chat(store: Face) -> None:
    [result] = run(store, FIXTURES / "chat.jsonl")
    assert result.thread_id == "openai-chat:chat"
    there = lines("chat.jsonl")
    there[4] = there[4]["choices"][0]["message"]
    assert stored(store, result.thread_id) == there
    answer, last = list(store.replay(result.thread_id))[-2:]
    assert answer.meta == {
        "source": "openai-chat", "occurred_at": "2026-05-04T09:00:00+00:00", "response_id": "chatcmpl-1",
        "model": "gpt-5.1", "usage": {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43},
    }  # fmt: skip
    assert last.meta["occurred_at"] == "2026-05-04T09:01:00+00:00"
    store.view(result.thread_id).for_openai()
    store.view(result.thread_id).for_anthropic()


def test_conversations_of_chat_are_a_thread_each(store: Face) -> None:
    results = run(store, FIXTURES / "chat-conversations.jsonl")
    assert [r.source_id for r in results] == ["chat-conversations:1", "request-2", "conv-3"]
    assert [len(stored(store, r.thread_id)) for r in results] == [3, 1, 3]


def test_items_of_responses(store: Face) -> None:
    [result] = run(store, FIXTURES / "responses.jsonl")
    there = lines("responses.jsonl")
    there[4] = there[4]["output"][0]
    assert stored(store, result.thread_id) == there
    assert metas(store, result.thread_id, "external_id")[4] == "msg_1"
    assert metas(store, result.thread_id, "occurred_at")[4] == "2026-05-04T09:00:00.500000+00:00"
    assert records(store, result.thread_id) == [(7, "summary", "provider:compaction", 1, 5)]


def test_requests_to_responses_are_a_thread_each(store: Face) -> None:
    first, second = run(store, FIXTURES / "responses-requests.jsonl")
    assert stored(store, first.thread_id) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
    ]  # fmt: skip
    assert [m["role"] for m in stored(store, second.thread_id)] == ["user", "assistant"]


def test_messages_of_anthropic(store: Face) -> None:
    [result] = run(store, FIXTURES / "anthropic.jsonl")
    assert stored(store, result.thread_id) == lines("anthropic.jsonl")
    assert records(store, result.thread_id) == [
        (3, "truncation", "provider:clear_tool_uses_20250919", None, None),
        (6, "summary", "provider:compaction", 1, 3),
    ]
    store.view(result.thread_id).for_anthropic()


def test_requests_to_anthropic_are_a_thread_each(store: Face) -> None:
    first, second = run(store, FIXTURES / "anthropic-batch.jsonl")
    assert stored(store, first.thread_id) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
    ]  # fmt: skip
    assert (second.source_id, len(stored(store, second.thread_id))) == ("second", 3)


def test_a_folder_is_all_its_files(store: Face, tmp_path: Path) -> None:
    (tmp_path / "2026" / "05").mkdir(parents=True)
    for number, line in enumerate(({"role": "user", "content": "a"}, {"role": "user", "content": "b"})):
        write(tmp_path / "2026" / "05" / f"{number}.jsonl", line)
    (tmp_path / "notes.txt").write_text("not read")
    assert detect(tmp_path) == "openai-chat"
    assert [r.thread_id for r in run(store, tmp_path)] == ["openai-chat:2026/05/0", "openai-chat:2026/05/1"]


PLAIN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_plain_text_is_what_it_is_said_to_be(store: Face, tmp_path: Path) -> None:
    write(tmp_path / "plain.jsonl", *PLAIN)
    assert detect(tmp_path / "plain.jsonl") == "openai-chat"
    [result] = run(store, tmp_path / "plain.jsonl", format="anthropic")
    assert (result.thread_id, result.format) == ("anthropic:plain", "anthropic")
    assert stored(store, result.thread_id) == PLAIN


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no line that is a JSON object"),
        ("hello\nthere\n", "no line that is a JSON object"),
        ('{"a":1}\n', "JSON objects with the fields a, which match no format"),
        ("[1]\n", "no line that is a JSON object"),
        ('{"type":"manifest","format":"compaction-store/bundle/1"}\n', "bundle"),
    ],
)
def test_what_is_nothing_known_is_said_to_be_so(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "f.jsonl").write_text(content)
    with pytest.raises(cs.InvalidSource, match=why):
        detect(tmp_path / "f.jsonl")


def test_what_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(cs.InvalidSource, match=r"cannot read gone\.jsonl: No such file"):
        detect(tmp_path / "gone.jsonl")
    with pytest.raises(cs.InvalidSource, match=r"no \.jsonl file"):
        detect(tmp_path)


def write(path: Path, *found: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")


def test_what_a_user_typed_while_a_tool_ran_is_a_message_at_its_place(store: Face, tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    attached = {"type": "queued_command", "prompt": "Stop! Never touch the database.", "commandMode": "prompt"}
    image = [
        {"type": "text", "text": "like this"},
        {"type": "image", "source": {"type": "url", "url": "https://a.b/c"}},
    ]
    said: list[dict[str, Any]] = [
        {"type": "user", "message": {"role": "user", "content": "Clean up."}},
        {"type": "assistant", "message": {"role": "assistant", "content": "I begin."}},
        {"type": "attachment", "attachment": attached, "rendered": [{"content": "<system-reminder>…"}]},
        {"type": "attachment", "attachment": attached | {"prompt": image}},
        {"type": "attachment", "attachment": {"type": "todo_reminder", "content": []}},
        {"type": "attachment", "attachment": attached | {"prompt": ""}},
        {"type": "attachment", "attachment": "odd"},
        {"type": "assistant", "message": {"role": "assistant", "content": "I stop."}},
    ]
    when = "2026-01-02T03:04:05.678Z"
    for number, line in enumerate(said):
        line |= {"uuid": uuid(number), "sessionId": SESSION, "timestamp": when}
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    [result] = run(store, path)
    assert (left_out(result), result.skipped) == ({"attachment/todo_reminder": 1, "attachment/queued_command": 1}, 0)
    assert result.unknown == {"attachment": 1}
    assert metas(store, result.thread_id, "rendered") == [None, None, ["<system-reminder>…"], None, None]
    assert [(m["role"], m["content"]) for m in stored(store, result.thread_id)] == [
        ("user", "Clean up."), ("assistant", "I begin."), ("user", "Stop! Never touch the database."), ("user", image),
        ("assistant", "I stop."),
    ]  # fmt: skip
    assert metas(store, result.thread_id, "external_id")[2] == uuid(2)
    assert metas(store, result.thread_id, "occurred_at")[2] == when
