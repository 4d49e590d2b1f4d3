"""The two verifiers agree on changed bundles, and on those on which they once disagreed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.handmade_bundles import Thread, said, sealed

from reliability.rigs import apart


def test_three_thousand_changed_bundles_are_judged_alike() -> None:
    chance = random.Random(20261122)
    taken = 0
    for _ in range(3000):
        seed = chance.getrandbits(64)
        try:
            taken += not apart.judged(apart.bundle(random.Random(seed))[1])
        except AssertionError as error:
            raise AssertionError(f"bundle of seed {seed}") from error
    assert 300 < taken < 1500


def message(payload: str, meta: str | None = None) -> list[bytes]:
    made = Thread()
    made.message('{"role":"user"}', meta=meta, role=None)
    made.entries[0]["payload"] = payload
    return apart.rechained(said(made.lines()), made.genesis)


@pytest.mark.parametrize("number", ["9" * 4300, "-" + "9" * 4300, "1e400", "-0"])
def test_an_honest_number_passes_both(number: str) -> None:
    assert not apart.judged(message(f'{{"n":{number}}}'))


@pytest.mark.parametrize(
    "payload",
    ['{"n":NaN}', '{"n":Infinity}', "x", "[]", '{"n":' + "9" * 4301 + "}", '{"a":' * 990 + "1" + "}" * 990,
     '{"a":' * 201 + "1" + "}" * 201],
)  # fmt: skip
def test_a_payload_that_no_append_takes_is_found_by_both(payload: str) -> None:
    assert apart.judged(message(payload))


@pytest.mark.parametrize(
    ("payload", "role", "found"),
    [
        ('{"role":"user"}', "user", False), ('{"role":"user"}', None, True), ('{"role":"user"}', "tool", True),
        ("{}", "user", True), ('{"role":"two words"}', None, False), ('{"role":"two words"}', "two words", True),
        ('{"role":7}', None, False), ('{"role":"a","role":"b"}', "b", False), ('{"role":"a","role":"b"}', "a", True),
    ],
)  # fmt: skip
def test_a_role_that_is_not_the_payloads_is_found_by_both(payload: str, role: str | None, found: bool) -> None:
    made = Thread()
    made.message(payload, role=role)
    assert bool(apart.judged(made.lines())) == found


@pytest.mark.parametrize("meta", ["x", "[]", "5", '{"a":1,"a":2}', '{"a":"' + "x" * 9000 + '"}'])
def test_a_meta_that_no_append_takes_is_found_by_both(meta: str) -> None:
    assert apart.judged(message("{}", meta))


@pytest.mark.parametrize("body", ["x", "{}", '{"replacement":[1]}', '{"replacement":[],"replacement":[]}'])
def test_a_record_that_no_view_can_show_is_found_by_both(body: str) -> None:
    made = Thread()
    made.message("{}")
    made.compaction(body, start=1, end=1)
    assert apart.judged(made.lines())


@pytest.mark.parametrize("pos", [-(2**63), -1, 0, 1, 99, 2**63 - 1])
def test_an_erasure_in_the_name_of_no_redaction_is_found_by_both(pos: int) -> None:
    made = Thread()
    made.message("{}")
    manifest, line = said(made.lines())
    gone = dict.fromkeys(("salt", "meta", "payload"))
    assert apart.judged(sealed([manifest, line | gone | {"redacted_pos": pos}]))


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1, -(2**63)])
def test_a_time_that_no_store_writes_is_found_by_both(microseconds: int) -> None:
    made = Thread()
    made.message("{}")
    manifest, line = said(made.lines())
    assert apart.judged(apart.rechained([manifest, line | {"microseconds": microseconds}], made.genesis))


@pytest.mark.parametrize("outcome", ["failed", "rejected", "observed"])
@pytest.mark.parametrize(
    "columns",
    [{"start_seq": 1, "end_seq": 2**63 - 1}, {"start_seq": 2, "end_seq": 2}, {"inputs": [1]}, {"inputs": [-1]}],
)
def test_a_record_of_what_is_not_before_it_is_found_by_both(outcome: str, columns: dict[str, Any]) -> None:
    made = Thread()
    made.message("{}")
    made.compaction("{}", outcome=outcome, **columns)
    made.message("{}")
    assert apart.judged(made.lines())
