"""A refusal for length is recognized whichever provider words it, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from compaction_store.api_rules.too_long import TooLong, too_long

REFUSALS = [
    ("prompt is too long: 209353 tokens > 199999 maximum", 209353, 199999),
    ("input length and `max_tokens` exceed context limit: 190,000 + 20,000 > 200,000", 190000, 180000),
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens.",
        8545, 8192,
    ),
    (
        "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10346 in it).",
        10346, 8191,
    ),
    (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", 1196265, 1048575,
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 537812, 131072,
    ),
    ("request (5121 tokens) exceeds the available context size (4096 tokens), try increasing it", 5121, 4096),
    (
        "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        65673, 32768,
    ),
    ("Input length (265330) exceeds model's maximum context length (262144).", 265330, 262144),
    ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", 131393, 131040),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    ("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}", None, None),
    ("ValidationException: Input is too long for requested model.", None, None),
    ("Please reduce the length of the messages or completion.", None, None),
    ("The total length of all messages is too long.", None, None),
    ("too many tokens: size limit exceeded by 19296 tokens. Try using shorter or fewer inputs.", None, None),
    ("prompt is too long: the figures 1 tokens > 0 maximum are odd", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tokens", "limit"), REFUSALS)
def test_texts_of_providers_are_recognized_with_their_figures(text: str, tokens: int | None, limit: int | None) -> None:
    assert too_long(RuntimeError(text)) == TooLong(tokens, limit)
    assert too_long(RuntimeError(text.upper())) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the model is overloaded",
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens",
        "messages.1: `tool_use` ids were found without `tool_result` blocks",
        "ThrottlingException: Too many tokens, please wait before trying again. Throttled.",
        "Rate limit reached: Request too large on tokens per min (TPM): Limit 30000, Requested 40000",
        "the summary is too long",
    ],
)
def test_other_errors_are_not(text: str) -> None:
    assert too_long(RuntimeError(text)) is None


class SdkError(Exception):
    def __init__(self, text: str = "refused", **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"code": "context_length_exceeded"},
        {"status_code": 413},
        {"body": {"type": "error", "error": {"type": "request_too_large"}}},
        {"body": {"error": {"code": "context_length_exceeded"}}},
    ],
)
def test_codes_are_recognized_too(attributes: dict[str, Any]) -> None:
    assert too_long(SdkError(**attributes)) == TooLong(None, None)


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_limit_per_minute_is_another_limit(status: int) -> None:
    assert too_long(SdkError("prompt is too long: 2 tokens > 1 maximum", status_code=status)) is None


def test_the_cause_counts() -> None:
    wrapped = RuntimeError("the model call failed")
    wrapped.__cause__ = ValueError("the provider said no")
    wrapped.__cause__.__cause__ = SdkError("prompt is too long: 3 tokens > 2 maximum")
    assert too_long(wrapped) == TooLong(3, 2)


def test_the_only_error_of_a_task_group_counts() -> None:
    refused = SdkError("prompt is too long: 3 tokens > 2 maximum")
    assert too_long(ExceptionGroup("unhandled errors in a TaskGroup", [refused])) == TooLong(3, 2)
    assert too_long(ExceptionGroup("unhandled errors in a TaskGroup", [refused, ValueError("another")])) is None


def test_an_error_that_was_handled_before_another_counts_unless_it_is_left_out() -> None:
    def fall_back(*, hide: bool) -> None:
        try:
            raise SdkError("prompt is too long: 3 tokens > 2 maximum")
        except SdkError as error:
            other = RuntimeError("the key of the other model is wrong")
            if hide:
                raise other from None
            raise other from error

    for hide, expected in ((False, TooLong(3, 2)), (True, None)):
        with pytest.raises(RuntimeError) as caught:
            fall_back(hide=hide)
        assert too_long(caught.value) == expected


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert too_long(first) is None


def test_an_error_that_cannot_be_printed_is_no_refusal() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert too_long(Unprintable()) is None


def test_a_long_text_takes_no_longer_than_a_short_one() -> None:
    assert too_long(RuntimeError("maximum context length is 1 tokens" + " a" * 1_000_000)) == TooLong(None, None)
