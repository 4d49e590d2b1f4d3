"""Calls: which only look something up, which are the same, and which files they change."""

from __future__ import annotations

from typing import Any

import pytest

from compaction_store.probes.calls import changed_files, looks_up, signature
from compaction_store.probes.speech import ToolCall


def made(name: str, given: Any) -> ToolCall:
    return ToolCall("c1", name, "content[0]", given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("read", {"path": "a.py"}),
        ("get_user_details", {"user_id": "u_1"}),
        ("search_direct_flight", {"from": "JFK"}),
        ("Grep", {"pattern": "x"}),
        ("listFiles", {}),
        ("str_replace_editor", {"command": "view", "path": "a.py"}),
        ("bash", {"command": "cd src && grep -rn 'a;b' . | head -5 2>/dev/null"}),
        ("Bash", {"command": "cat a.py"}),
        ("shell", {"command": ["bash", "-lc", "ls -la"]}),
        ("bash", {"command": "git log --oneline 2>&1"}),
    ],
)
def test_a_call_that_reads_or_searches_looks_up(name: str, given: Any) -> None:
    assert looks_up(made(name, given))
    assert not changed_files(made(name, given))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bash", {"command": "npm run check"}),
        ("bash", {"command": "cat a.py > b.py"}),
        ("bash", {"command": "sed -i s/a/b/ a.py"}),
        ("cancel_reservation", {"id": "X1"}),
        ("update_user", {"user_id": "u_1"}),
        ("think", {"thought": "read the file again"}),
        ("submit", {}),
        ("bash", {}),
        ("bash", None),
    ],
)
def test_any_other_call_does_not(name: str, given: Any) -> None:
    assert not looks_up(made(name, given))


@pytest.mark.parametrize(
    ("name", "given", "files"),
    [
        ("write", {"path": "a.py", "content": "rm b.py"}, [("a.py", "written")]),
        ("Edit", {"file_path": "src/a.py", "old_string": "x"}, [("src/a.py", "written")]),
        ("str_replace_based_edit_tool", {"command": "create", "path": "n.md"}, [("n.md", "written")]),
        ("delete_file", {"target_file": "old.ts"}, [("old.ts", "deleted")]),
        (
            "bash",
            {"command": "rm -rf old.txt && mv a.py b.py"},
            [("old.txt", "deleted"), ("a.py", "moved"), ("b.py", "written")],
        ),
        (
            "bash",
            {"command": "cat > f.py <<'EOF'\nrm x.py\nEOF\ntouch g.py"},
            [("f.py", "written"), ("g.py", "written")],
        ),
        ("bash", {"command": "echo 'a > b.txt' >> log.txt 2>&1"}, [("log.txt", "written")]),
        ("bash", {"command": "for f in *.py; do rm $f; done; mkdir out"}, []),
        (
            "apply_patch",
            "*** Begin Patch\n*** Add File: new.py\n+x\n*** Delete File: old.py\n*** End Patch",
            [("new.py", "written"), ("old.py", "deleted")],
        ),
        (
            "apply_patch",
            "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n+x\n*** Update File: c.py\n+x\n*** End Patch",
            [("a.py", "written"), ("a.py", "deleted"), ("b.py", "written"), ("c.py", "written")],
        ),
        ("apply_patch_call", {"type": "create_file", "path": "a.rs", "diff": "+x"}, [("a.rs", "written")]),
        ("update_order", {"order_id": "W1", "address": "x"}, []),
        ("write", {"path": ""}, []),
        ("write", "no json", []),
    ],
)
def test_the_files_that_a_call_changes_are_found(name: str, given: Any, files: list[tuple[str, str]]) -> None:
    assert [tuple(change) for change in changed_files(made(name, given))] == files


def test_equal_calls_have_one_signature() -> None:
    one = made("read", {"path": "a.py", "limit": 3, "description": "look"})
    other = made("read", {"limit": 3, "path": "a.py", "description": "look again"})
    assert signature(one) == signature(other)
    assert signature(one) != signature(made("read", {"path": "a.py"}))
    assert signature(made("find", "a  b")) == signature(made("find", "a b"))
