"""After a redaction, no row of any table has the erased text, however a record came to repeat it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store.errors import InvalidMessage, SummaryRefused
from compaction_store.models import Observed
from compaction_store.store import loads
from compaction_store.summarizers import FallbackSummarizer, Request

PLAIN = "nothing to see here " * 12


def everywhere(connection: psycopg.Connection[Any]) -> str:
    """Returns every row of every table as text, as in a dump of the database."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'compaction_store'").fetchall()
    return "\n".join(
        row[0]
        for (table,) in tables
        for row in connection.execute(f"SELECT t::text FROM compaction_store.{table} AS t".encode()).fetchall()
    )


def mark(seq: int) -> str:
    return f"mark-{seq}-"


def message(seq: int, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": f"{mark(seq)} {PLAIN}"}


def text_of(elements: Any) -> str:
    """Returns the marks in some elements, as a summarizer would quote them."""
    words = str([element.messages for element in elements or ()]).split()
    return " ".join(dict.fromkeys(word.strip("'\"") for word in words if "mark-" in word)) or "nothing"


def in_span(elements: Any) -> str:
    return text_of(elements)


def looks_before(elements: Any) -> cs.Summary:
    return cs.Summary("the span", prompt=text_of(elements.before))


def looks_after(elements: Any) -> cs.Summary:
    return cs.Summary("the span", prompt=text_of(elements.after))


def looks_around(elements: Any) -> cs.Summary:
    return cs.Summary("the span", provider={"all": text_of(elements.view())})


def looks_by_another(elements: Any) -> cs.Summary:
    """Reads the elements through another request, which it makes from the given one."""
    again = Request.within(elements, elements.view.unquoted())
    return cs.Summary("the span", coverage={"before": text_of(again.before), "after": text_of(again.after)})


def fails_after_looking(elements: Any) -> str:
    text_of(elements.before)
    raise SummaryRefused(text_of(elements.after))


def is_rejected_after_looking(elements: Any) -> cs.Summary:
    return cs.Summary(PLAIN * 40, prompt=text_of(elements.before) + text_of(elements.after))


SUMMARIZERS: list[Callable[..., Any]] = [
    in_span, looks_before, looks_after, looks_around, looks_by_another, fails_after_looking, is_rejected_after_looking,
    FallbackSummarizer(fails_after_looking, looks_around),
]  # fmt: skip


def raises(ctx: Any) -> None:
    raise cs.InvalidInput(text_of(ctx.elements))


def raises_its_own(ctx: Any) -> None:
    class Own(InvalidMessage):
        pass

    raise Own(text_of(ctx.elements))


@pytest.fixture(params=[1, 2, 3, 4])
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_what_callbacks_and_summarizers_looked_at_goes_with_its_message(
    store: Any, superuser: psycopg.Connection[Any], chance: random.Random
) -> None:
    count = 0
    for _ in range(12):
        new = [message(count + i + 1, chance.choice(["user", "assistant"])) for i in range(chance.randint(1, 4))]
        store.append("t", new)
        count += len(new)
        view = store.view("t").elements
        low = chance.randrange(len(view))
        span = view[low].seq, view[min(len(view) - 1, low + chance.randrange(4))].end_seq
        summarize = chance.choice(SUMMARIZERS)
        allow = chance.choice([("last_user", "larger"), ("last_user",)])

        def plans(ctx: Any, span: Any = span, summarize: Any = summarize, allow: Any = allow) -> Any:
            return ctx.compact(*span, summarize, allow=allow)

        def truncates(ctx: Any, span: Any = span) -> None:
            inside = [e for e in ctx.elements if span[0] <= e.seq <= span[1]]
            ctx.replace(*span, [{"role": "user", "content": text_of(inside)}], allow=("last_user", "larger"))

        store.compact("t", chance.choice([plans, plans, plans, truncates, raises, raises_its_own]))
    assert store.audit.verify("t").findings == ()
    order = chance.sample(range(1, count + 1), count)
    for done, seq in enumerate(order, 1):
        store.custody.redact("t", seq, reason="r")
        found = everywhere(superuser)
        assert [gone for gone in order[:done] if mark(gone) in found] == []
    assert store.audit.verify("t").findings == ()


def test_a_record_of_a_span_alone_stays_when_a_message_outside_goes(store: Any) -> None:
    store.append("t", [message(seq) for seq in range(1, 7)])
    store.compact("t", lambda ctx: ctx.compact(1, 2, in_span))
    store.compact("t", lambda ctx: ctx.compact(3, 4, looks_around))
    plain, looked = store.compactions("t")
    assert (plain.inputs, looked.inputs) == ((), (0,))
    assert store.custody.redact("t", 6, reason="r").records == (2,)
    assert store.custody.redact("t", 5, reason="r").records == ()
    assert store.custody.redact("t", 1, reason="r").records == (1,)


def test_a_failed_record_keeps_no_text_that_a_callback_wrote(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", [message(1), message(2)])
    for callback in (raises, raises_its_own):
        [record] = store.compact("t", callback)
        assert record.error["text"] == "the callback failed"
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 1, fails_after_looking))
    assert record.error["text"] == "the summarizer failed"
    assert everywhere(superuser).count(mark(1)) == 1
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 1, lambda _: 7))
    assert record.error["text"].startswith("a summarizer must return text")


def _told(seq: int, chance: random.Random) -> Any:
    """Returns a message or a record for a load. Each may repeat the messages before it and itself."""
    kind = chance.choice(["message", "message", "block", "edit"])
    before = mark(seq) + " " + mark(chance.randint(1, seq))
    if kind == "block":
        return {"role": "assistant", "content": [{"type": "compaction", "content": before}]}
    if kind == "edit":
        edit = {"type": "clear_tool_uses", "note": before}
        return {"role": "assistant", "content": mark(seq), "context_management": {"applied_edits": [edit]}}
    return message(seq)


def _records(seq: int, chance: random.Random) -> Iterator[Observed]:
    before = mark(chance.randint(1, seq))
    if chance.random() < 0.5:
        yield Observed("x", spans=chance.random() < 0.5, summary_text=before, provider={"said": before})


def test_a_record_of_a_load_goes_with_its_message_after_writes_of_others_in_between(
    store: Any, url: str, superuser: psycopg.Connection[Any], chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The number of a mark is the place in the load, not the seq, because others append in between.

    monkeypatch.setattr(loads, "CHUNK_MESSAGES", 2, raising=False)
    with cs.Store.open(url) as other:

        def source() -> Iterator[Any]:
            for place in range(1, 16):
                yield _told(place, chance)
                yield from _records(place, chance)
                if chance.random() < 0.4:
                    other.append("t", {"role": "user", "content": "somebody else"})

        store.load.messages("t", source())
        store.append("t", _told(16, chance))
    messages = [m.payload for m in store.replay("t")]
    order = chance.sample(range(1, len(messages) + 1), len(messages))
    for seq in order:
        told = [place for place in range(1, 17) if mark(place) in str(messages[seq - 1])]
        store.custody.redact("t", seq, reason="r")
        messages[seq - 1] = None
        found = everywhere(superuser)
        gone = [place for place in told if not any(mark(place) in str(payload) for payload in messages)]
        assert [place for place in gone if mark(place) in found] == []
    assert "mark-" not in everywhere(superuser)
    assert store.audit.verify("t").findings == ()
