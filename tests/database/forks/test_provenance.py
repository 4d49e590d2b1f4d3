"""Where a copied message comes from, and what a copied reply was written from."""

from __future__ import annotations

from support.faces import Face

import compaction_store as cs

from .conftest import message, shown


def test_explain_says_where_a_copied_message_was_appended(whole: Face) -> None:
    whole.fork("p", "f")
    whole.append("f", message(13))
    whole.fork("f", "g")
    whole.append("g", message(14))
    origin = whole.audit.explain("g", 3).origin
    original = whole.message("p", 3)
    assert (origin.thread_id, origin.pos, origin.created_at) == ("p", original.pos, original.created_at)
    assert origin.thread_uid == whole.thread("p").thread_uid
    assert whole.message("g", 3).created_at > original.created_at
    origin = whole.audit.explain("g", 13).origin
    assert (origin.thread_id, origin.pos) == ("f", whole.message("f", 13).pos)
    assert whole.audit.explain("g", 14).origin is None
    assert whole.audit.explain("p", 3).origin is None
    assert whole.audit.explain("f", 13).origin is None


def test_a_copied_receipt_is_proved_by_the_view_in_the_parent(whole: Face) -> None:
    there = whole.seen_by("p", 9)
    whole.fork("p", "f")
    whole.fork("f", "g")
    for name in ("f", "g"):
        seen = whole.seen_by(name, 9)
        assert (seen.evidence, seen.view.thread_id, seen.view.pos) == ("proved", "p", there.view.pos)
        assert shown(seen.view) == shown(there.view)


def test_without_the_parent_the_copy_of_its_view_proves_the_receipt(whole: Face) -> None:
    whole.fork("p", "f")
    whole.custody.erase("p", reason="case 3", forks=False)
    seen = whole.seen_by("f", 9)
    assert (seen.evidence, seen.view.thread_id) == ("proved", "f")
    origin = whole.audit.explain("f", 3).origin
    assert origin.thread_id.startswith("erased:")


def test_the_parent_proves_a_receipt_whose_copy_was_erased(whole: Face) -> None:
    whole.fork("p", "f")
    whole.custody.redact("f", 8, reason="case 3")
    assert whole.seen_by("f", 9).view.thread_id == "p"
    whole.custody.redact("p", 8, reason="case 3")
    assert whole.seen_by("f", 9).evidence == "differs"


def test_a_reply_without_a_receipt_is_reconstructed_from_the_copy(whole: Face) -> None:
    whole.fork("p", "f")
    seen = whole.seen_by("f", 8)
    assert (seen.evidence, shown(seen.view)) == ("reconstructed", shown(whole.seen_by("p", 8).view))
    for name in ("p", "f"):
        try:
            whole.seen_by(name, 1)
        except cs.MessageNotFound:
            continue
        raise AssertionError(name)


def test_a_reported_usage_counts_for_the_view_it_was_written_from(store: Face) -> None:
    """A copied receipt names a pos of the parent, where the fork has another view."""
    for i in range(1, 6):
        store.append("p", message(i), tokens=100)
    usage = {"usage": {"input_tokens": 1000}}
    store.append("p", {"role": "assistant", "content": "A reply."}, view=store.view("p"), meta=usage, tokens=10)
    store.fork("p", "f")
    store.fork("f", "g")
    budget = cs.TokenBudget(2000, trigger=0.5)
    sizes = {name: store.fit(name, budget, lambda _: None).measured.tokens for name in ("p", "f", "g")}
    assert sizes["p"] == sizes["f"] == sizes["g"]
