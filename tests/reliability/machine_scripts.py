"""What the machine draws: messages, and scripts of what a callback does and what happens meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st


class Step(NamedTuple):
    """One step of a callback: a call on the context, or something that happens during it."""

    what: str
    first: int
    size: int
    raw: bool
    text: str | None
    as_callable: bool
    allow: frozenset[str]
    message: tuple[str, int]


class Script(NamedTuple):
    """A callback: its steps, whether it handles refusals, and whether it raises in the end."""

    name: str
    steps: list[Step]
    careful: bool
    raises: bool


CONTENTS = ("hi", "x" * 20, "größe \0 \U0001f512", "\ud800", "")
ROLES = (*["assistant"] * 6, *["user"] * 2, *["call"] * 2, *["result"] * 3, "system")
NEW = st.tuples(st.sampled_from(ROLES), st.sampled_from(CONTENTS), st.sampled_from((30, 30, 5, 0)))
TEXTS = (*["s"] * 4, "short", "a longer summary of it all", "", None)
ALLOWS = tuple(map(frozenset, ((), (), ("last_user",), ("last_user", "system"), ("last_user", "system", "larger"))))
#: What happens while a callback runs. In the last five, a worker takes the lease that the run has, or its lease runs
#: out first: then a worker finds it and plans nothing, or something, or dies in its turn, or nobody notices.
MEANWHILE = ("append", "rival", "revoke", "worker", "found", "late", "dying", "slow")
KINDS = ("summary", "summary", "summary", "truncation", "removal")


def steps(*what: str) -> st.SearchStrategy[Step]:
    return st.builds(
        Step, st.sampled_from(what), st.integers(0, 9), st.integers(0, 5), st.sampled_from((False, False, False, True)),
        st.sampled_from(TEXTS), st.booleans(), st.sampled_from(ALLOWS),
        st.tuples(st.sampled_from(("user", "assistant", "call")), st.sampled_from((1, 30))),
    )  # fmt: skip


SCRIPTS = st.builds(
    Script,
    st.sampled_from("ab"),
    st.lists(steps(*KINDS, *KINDS, "wrong stand-ins", *MEANWHILE), min_size=1, max_size=4),
    st.sampled_from((True, True, True, False)),
    st.sampled_from((False, False, False, False, True)),
)


SENDABLE = st.builds(
    Script, st.sampled_from("ab"), st.lists(steps(*KINDS, "wrong stand-ins"), min_size=1, max_size=2),
    st.just(True), st.just(False),
)  # fmt: skip
STAND_INS = st.lists(
    st.tuples(st.sampled_from(("user", "assistant")), st.sampled_from(CONTENTS)), min_size=1, max_size=2
)
#: What a turn appends: through it or beside it, and if through it, whether only if nobody has appended beside it.
IN_TURN = st.lists(st.tuples(st.sampled_from(("through", "strictly", "beside")), NEW), min_size=1, max_size=4)
REPAIRS = steps("nothing", "nothing", "nothing", *MEANWHILE)
LATE = steps("found", "found", "late", "late", "dying", "slow")


class RefusedAsTooLong(Exception):
    """What an SDK raises."""


class Death(BaseException):
    """Ends a run as the end of its process does."""


class Differs(BaseException):
    """The store and the model disagree inside a callback: not an Exception, which the store would take as its own."""


def same(found: object, expected: object) -> None:
    if found != expected:
        raise Differs(f"{found!r} is not {expected!r}")
