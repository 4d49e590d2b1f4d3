"""Account exports of ChatGPT and Claude.ai: one file of all conversations, a folder of them, or the archive."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, left_out, metas, run, sound, stored
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import Notes, detect, exports, open_source
from compaction_store.importers.exports import Exported, elements
from compaction_store.importers.line_files import Unreadable

CHATGPT, CLAUDE = FIXTURES / "chatgpt.json", FIXTURES / "claude-ai.json"


def said(store: Face, thread_id: str) -> list[tuple[Any, Any]]:
    return [(m["role"], m["content"]) for m in stored(store, thread_id)]


# ---- ChatGPT


def test_chatgpts_last_shown_branch_is_a_thread_of_chat_messages(store: Face) -> None:
    assert detect(CHATGPT) == "chatgpt"
    first, second = run(store, CHATGPT)
    assert (first.thread_id, second.thread_id) == ("chatgpt:conv-1", "chatgpt:conv-2")
    # A system message without text, and an answer that was generated again.
    assert (left_out(first), left_out(second)) == ({"branch": 1, "empty message": 1}, {})
    code = "len(open('größe.csv').readlines())"
    assert said(store, "chatgpt:conv-1") == [
        ("user", "[image_asset_pointer]\nHow many rows does größe.csv 🔒 have?"), ("assistant", ""), ("tool", "42"),
        ("assistant", "It printed 42.\nCounting"), ("assistant", "It has 42 rows."), ("user", "Thanks."),
        ("assistant", "You are welcome."),
    ]  # fmt: skip
    user, call, result, *_ = stored(store, "chatgpt:conv-1")
    assert user["chatgpt"]["content"]["parts"][0]["asset_pointer"] == "file-service://file-abc"
    [made] = call["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("python", {"input": code})
    assert result["tool_call_id"] == made["id"] == "m3"
    assert said(store, "chatgpt:conv-2") == [("user", 'Hi, "quoted" [and] {braced}, \\ too'), ("assistant", "Hello")]
    message = next(iter(store.replay("chatgpt:conv-1", after=1)))
    assert message.meta == {
        "source": "chatgpt", "occurred_at": "2023-11-14T22:13:23.500000+00:00", "external_id": "m3", "parent_id": "n2",
        "model": "gpt-4o",
    }  # fmt: skip
    sound(store, "chatgpt:conv-1", "chatgpt:conv-2")
    store.view("chatgpt:conv-1").for_openai()
    assert store.compact("chatgpt:conv-1", lambda ctx: ctx.remove(2, 3)).applied
    assert [r.loaded.added for r in run(store, CHATGPT)] == [0, 0]  # type: ignore[union-attr]


def test_a_conversation_without_a_current_node_ends_with_its_newest_message(store: Face, tmp_path: Path) -> None:
    [one, _] = json.loads(CHATGPT.read_text(encoding="utf-8"))
    del one["current_node"]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([one]), encoding="utf-8")
    run(store, path, prefix="")
    assert said(store, "conv-1")[-1] == ("assistant", "A first answer that was regenerated.")


def test_a_tree_that_goes_in_a_circle_is_read_once(store: Face, tmp_path: Path) -> None:
    [_, two] = json.loads(CHATGPT.read_text(encoding="utf-8"))
    two["mapping"]["a"]["parent"] = "c"
    two["current_node"] = "c"
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([two]), encoding="utf-8")
    run(store, path, prefix="")
    assert len(said(store, "conv-2")) == 2


# ---- Claude.ai


def test_claudes_messages_are_those_of_its_api(store: Face) -> None:
    assert detect(CLAUDE) == "claude-ai"
    results = run(store, CLAUDE)
    assert [(r.thread_id, left_out(r), r.loaded is None) for r in results] == [
        ("claude-ai:c-1", {"branch": 1}, False), ("claude-ai:c-2", {}, False), ("claude-ai:c-3", {}, True),
    ]  # fmt: skip
    question, answer, result, last, thanks = stored(store, "claude-ai:c-1")
    assert question["content"] == [
        {"type": "text", "text": "How many rows?"}, {"type": "text", "text": "größe.csv:\na,b\n1,2"},
    ]  # fmt: skip
    assert question["claude"]["attachments"] == [{"file_name": "größe.csv", "file_size": 9, "file_type": "text/csv"}]
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][2] == {"type": "tool_use", "name": "repl", "input": {"code": "1+1"}, "id": "u-3:2"}
    assert answer["claude"]["blocks"][0]["summaries"] == [{"summary": "Counting"}]
    assert (result["role"], result["content"][0]["tool_use_id"]) == ("user", "u-3:2")
    assert (last["role"], last["content"]) == ("assistant", "It has 2 rows. 🔒")
    assert (thanks["content"], thanks["claude"]["files"]) == ("Thanks", [{"file_name": "photo.png"}])
    assert said(store, "claude-ai:c-2") == [("user", "Old form"), ("assistant", "Without content")]
    assert metas(store, "claude-ai:c-1", "external_id") == ["u-1", "u-3", "u-3", "u-3", "u-4"]
    assert metas(store, "claude-ai:c-1", "parent_id")[-1] == "u-3"
    sound(store, "claude-ai:c-1", "claude-ai:c-2")
    assert store.compact("claude-ai:c-1", lambda ctx: ctx.remove(2, 3)).applied
    assert [r.loaded and r.loaded.added for r in run(store, CLAUDE)] == [0, 0, None]


# ---- files


@pytest.mark.parametrize("fixture", [CHATGPT, CLAUDE], ids=["chatgpt", "claude-ai"])
@pytest.mark.parametrize("form", ["folder", "archive", "archive with a folder", "several files"])
def test_an_export_as_it_comes(store: Face, tmp_path: Path, fixture: Path, form: str) -> None:
    expected = len(run(store, fixture))
    path = tmp_path / "export"
    if form == "folder":
        path.mkdir()
        shutil.copy(fixture, path / "conversations.json")
        (path / "user.json").write_text("{}")
    elif form == "several files":
        path.mkdir()
        for number, conversation in enumerate(json.loads(fixture.read_text(encoding="utf-8"))):
            (path / f"conversations-{number:03d}.json").write_text(json.dumps([conversation]))
    else:
        inside = "" if form == "archive" else "data-2026/"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(fixture, f"{inside}conversations.json")
            archive.writestr(f"{inside}user.json", "{}")
    assert detect(path) == fixture.stem
    results = run(store, path)
    assert [r.loaded.added for r in results if r.loaded] == [0, 0]
    assert len(results) == expected


def test_what_is_no_export_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    for text, why in [
        ('[{"role": "user", "content": "SECRET"}]', "array of objects with the fields content, role: they must be"),
        ('{"SECRET KEY": 1, "title": "SECRET"}\n', "its lines are JSON objects with the fields title, which match no"),
        ("SECRET\n", "it has no line that is a JSON object"),
        ("[]", "it has no line that is a JSON object"),
    ]:  # fmt: skip
        path.write_text(text)
        with pytest.raises(cs.InvalidSource, match=why) as caught:
            detect(path)
        assert "SECRET" not in str(caught.value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "[]")
    with pytest.raises(cs.InvalidSource, match=r"the archive talk\.json has no conversations\.json"):
        open_source(path, format="chatgpt")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mapping": {}}', "must be a JSON array"),
        ('[{"id": "a", "mapping": {}}, {"id"', "ends before the array does"),
        ('[{"id": "a", "id": "b", "mapping": {}}]', "conversation 1 of .*: an object has the same name twice"),
        ('[{"mapping": {}}]', "conversation 1 of .*: it must have an id"),
        ('[{"id": "a"}]', "conversation 1 of .*: it must have a `mapping`"),
        ("[7]", "conversation 1 of .*: it must be a JSON object"),
        ('[{"id": "a", "mapping": {"n": {"message": {"author": {"role": "SECRET"}, "content": "x"}}}}]', "author must"),
    ],
)  # fmt: skip
def test_a_bad_export_names_the_place(store: Face, tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(text)
    with pytest.raises(cs.InvalidSource, match=why) as caught:
        run(store, path, format="chatgpt")
    assert "SECRET" not in str(caught.value)


def test_a_bad_conversation_among_others_is_skipped_if_asked(store: Face, tmp_path: Path) -> None:
    one, two = json.loads(CHATGPT.read_text(encoding="utf-8"))
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([one, "no conversation", two, {"mapping": {}}]))
    results = run(store, path, skip_bad=True, prefix="")
    assert [(r.thread_id, r.skipped) for r in results] == [("conv-1", 0), ("conv-2", 1), ("conversations.json", 1)]


def test_an_array_is_cut_alike_wherever_its_blocks_end() -> None:
    chance = random.Random(7)
    values = [
        {"a": 'x"[]{},\\', "b": [1, [2, {"c": '\\\\"'}]]}, [], {}, "é🔒,", 1.5, None, {"long": "y" * 50}, [[["]"]]],
    ]  # fmt: skip
    for indent in (None, 1):
        data = json.dumps(values, ensure_ascii=False, indent=indent).encode()
        for _ in range(300):
            cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(6)))
            blocks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            assert [json.loads(e) for e in elements(iter(blocks), longest=10_000) if e is not None] == values


def test_a_conversation_that_is_too_long_is_skipped_and_little_of_it_is_kept() -> None:
    def blocks() -> Iterator[bytes]:
        yield b'[{"a": 1}, {"b": ['
        for _ in range(1000):
            yield b'"0123456789", '
        yield b'1]}, {"c": 2}]'

    assert list(elements(blocks(), longest=200)) == [b'{"a": 1}', None, b' {"c": 2}']

    def one_string() -> Iterator[bytes]:
        yield b'["'
        while True:
            yield b"x" * 100

    with pytest.raises(Unreadable, match="a string is longer than 200 bytes"):
        list(elements(one_string(), longest=200))


def test_the_note_on_a_conversation_that_is_too_long_has_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "LONGEST_CONVERSATION", 20)
    monkeypatch.setattr(exports, "_BLOCK", 8)
    path = tmp_path / "conversations.json"
    path.write_text('[{"a": 1}, {"b": ["0123456", "789abcdef"]}]')
    notes = Notes(skip_bad=True)
    assert [found for _, found in Exported(path).conversations(notes)] == [{"a": 1}]
    assert [bad.why for bad in notes.bad] == ["it is longer than 20 bytes"]


def test_an_export_is_closed_after_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    shutil.copy(CHATGPT, path)
    with closing(open_source(path)) as source:
        next(source.threads())
    path.unlink()


def test_titles_become_metadata_unless_the_thread_has_one(store: Face, tmp_path: Path) -> None:
    conversations = json.loads(CHATGPT.read_text(encoding="utf-8"))
    conversations[0]["title"] = "Größe 🔒 \ud800" + "x" * 9000
    conversations[1]["title"] = ""
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(conversations))
    first, second = run(store, path)
    assert store.thread(first.thread_id).metadata == {"title": "Größe 🔒 \ud800" + "x" * 491}
    assert store.thread(second.thread_id).metadata == {}
    store.set_metadata(first.thread_id, {"title": "mine", "user": 7})
    store.set_metadata(second.thread_id, {"user": 8})
    conversations[1]["title"] = "A later title"
    path.write_text(json.dumps(conversations))
    run(store, path)
    assert store.thread(first.thread_id).metadata == {"title": "mine", "user": 7}
    assert store.thread(second.thread_id).metadata == {"user": 8, "title": "A later title"}
    named = json.loads(CLAUDE.read_text(encoding="utf-8"))
    titles = {r.source_id: store.thread(r.thread_id).metadata.get("title") for r in run(store, CLAUDE) if r.loaded}
    assert titles == {c["uuid"]: c.get("name") or None for c in named if c["uuid"] in titles}
    assert len(titles) > 1


def test_a_string_is_read_once_however_many_blocks_it_has() -> None:
    """Scanning it again from its start for each block would take hours."""

    def blocks(text: bytes) -> Iterator[bytes]:
        yield b'[{"a":"'
        for _ in range(32_000):
            yield text
        yield b'"},{"b":"\\"]}"},3]'

    for text in (b"x" * 1024, b"\\n" * 512, b'\\"' * 512, b"\\"):
        kept = list(elements(blocks(text), 64 * 1024 * 1024))
        assert kept[0] == b'{"a":"' + text * 32_000 + b'"}'
        assert kept[1:] == [b'{"b":"\\"]}"}', b"3"]
        with pytest.raises(Unreadable, match="a string is longer than 1,000 bytes"):
            list(elements(blocks(text), 1000))


def test_escapes_take_no_memory_of_their_own() -> None:
    text = b'["' + b"\\n" * 1_000_000 + b'"]'
    tracemalloc.start()
    try:
        [kept] = elements(iter([text]), 2**30)
        assert kept is not None
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()
