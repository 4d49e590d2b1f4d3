"""The rule for stored JSON documents, as Python applies it: what it refuses, what it accepts, and that it accepts
everything that an append stores.
"""

from __future__ import annotations

import json
import random
import sys

import pytest

from compaction_store.messages import documents, encoding

_DEEP_BODY = '{"a":' * documents.BODY_LEVELS + "1" + "}" * documents.BODY_LEVELS
_DEEP = '{"a":' * documents.LEVELS + "1" + "}" * documents.LEVELS


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("payload", "", "the payload is not JSON"),
        ("payload", "x", "the payload is not JSON"),
        ("body", "[1]", "the body is not a JSON object"),
        ("meta", "null", "the meta is not a JSON object"),
        ("meta", '{"a":1}{', "the meta is not JSON"),
        ("meta", '{"a":"\ud800"}', "the meta is not JSON"),
        ("payload", f'{{"b":{_DEEP}}}', "the payload nests deeper than 200 levels"),
        ("body", f'{{"b":{_DEEP_BODY}}}', "the body nests deeper than 210 levels"),
        ("body", '{"a":' + "[" * 100_000, "the body nests deeper than 210 levels"),
        ("payload", '{"a":' + "9" * 4301 + "}", "the payload has an integer of more than 4,300 digits"),
        ("metadata", '{"a":-' + "9" * 4301 + "}", "the metadata has an integer of more than 4,300 digits"),
        ("body", '{"a":NaN}', "the body has a number that is NaN or infinite"),
        ("payload", '{"a":-Infinity}', "the payload has a number that is NaN or infinite"),
        ("meta", '{"a":1,"a":1}', "the meta has a name twice in one object"),
        ("body", '{"a":1,"\\u0061":1}', "the body has a name twice in one object"),
        ("body", '{"a":[{"b":{"c":1,"d":2,"c":3}}]}', "the body has a name twice in one object"),
        ("body", '{"\\ud83d\\ude00":1,"😀":1}', "the body has a name twice in one object"),
        ("meta", '{"a":"' + "x" * 8192 + '"}', "the meta is longer than 8,192 bytes"),
        ("metadata", '{"a":"' + "ä" * 4096 + '"}', "the metadata is longer than 8,192 bytes"),
    ],
)
def test_a_document_that_breaks_the_rule_is_refused_without_a_word_of_its_content(
    kind: documents.Kind, text: str, said: str
) -> None:
    assert documents.fault(kind, text) == said


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("payload", "{}"),
        ("payload", _DEEP),
        ("body", _DEEP_BODY),
        ("payload", '{"a":-' + "9" * 4300 + "}"),
        ("body", ' {"a" : 1.50, "b": [1e5], "\\u00e4": "\\u0000", "c": "\\ud800"} '),
        ("body", json.dumps({"a": "\\" * 3 + '"' + "[{" * 500, "b": ["{" * 300]})),
        ("meta", '{"a":{"x":1},"b":{"x":1}}'),
        ("payload", '{"role":"user","role":"assistant"}'),
        ("payload", '{"a":"' + "x" * 10_000 + '"}'),
    ],
)
def test_a_document_that_obeys_the_rule_is_read(kind: documents.Kind, text: str) -> None:
    assert documents.fault(kind, text) is None
    assert documents.read(kind, text) == json.loads(text)


def test_how_deep_a_document_may_be_does_not_depend_on_the_caller() -> None:
    def from_below(frames: int) -> str | None:
        return documents.fault("payload", _DEEP) if frames == 0 else from_below(frames - 1)

    assert from_below(sys.getrecursionlimit() // 2) is None


@pytest.mark.parametrize(
    ("outcome", "kind", "body", "said"),
    [
        ("applied", "summary", "{}", "the body's replacement is not a list of JSON objects"),
        ("applied", "truncation", '{"replacement":{}}', "the body's replacement is not a list of JSON objects"),
        ("applied", "summary", '{"replacement":["x"]}', "the body's replacement is not a list of JSON objects"),
        ("applied", "summary", '{"replacement":[]', "the body is not JSON"),
        ("applied", "removal", '{"replacement":[]}', None),
        ("applied", "summary", '{"replacement":[{"role":"user"}]}', None),
        ("applied", "revocation", "{}", None),
        ("applied", "revocation", '{"replacement":[]}', "the body of a revocation has a replacement"),
        ("applied", "revocation", '{"replacement":null}', "the body of a revocation has a replacement"),
        ("applied", "revocation", '{"reason":"x","replacement":"x"}', "the body of a revocation has a replacement"),
        ("failed", "summary", "{}", None),
    ],
)
def test_a_record_that_folds_must_hold_its_stand_ins(outcome: str, kind: str, body: str, said: str | None) -> None:
    assert documents.record_fault(kind, outcome, body) == said


def test_what_an_append_stores_obeys_the_rule() -> None:
    random.seed(7)

    def value(depth: int) -> object:
        leaves = ["", "a\\", '"', "[{", "\x00", "\ud800", "😀", "\u2028", 0, -1, 10**4299, 1e16, 1.5e-9, None, True]
        if depth == 0 or random.random() < 0.4:
            return random.choice(leaves)
        if random.random() < 0.5:
            return [value(depth - 1) for _ in range(random.randrange(4))]
        return {random.choice(["a", "", "\x00", "b\\", "\ud800", "ä"]): value(depth - 1) for _ in range(3)}

    for _ in range(500):
        text = encoding.encode({"role": "user", "content": value(random.randrange(1, 12))}).text
        assert documents.fault("payload", text) is None
        assert documents.fault("body", text) is None
