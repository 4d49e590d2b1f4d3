"""Credentials are recognized by their shape; hashes, ids, paths and code are not taken for them."""

from __future__ import annotations

import pytest

from compaction_store.language.secrets import has_secret, masked

# Put together here, so that no scanner of the repository takes them for real ones.
_LETTERS = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SECRETS = {
    "anthropic": "sk-ant-" + "api03-" + _LETTERS,
    "openai": "sk-" + "proj-" + _LETTERS,
    "github": "ghp" + "_" + _LETTERS,
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "slack": "xoxb" + "-123456789012-abcdefGHIJKL",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0" + ".abcDEF123456",
    "key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "random": "Zx8Qw3Rt6Yu1Io9Pa4Sd7Fg2Hj5Kl",
}
IN_A_TEXT = {
    "assignment": ("password = hunter2xyz", "hunter2xyz"),
    "json": ('{"api_key": "0123abcd4567"}', "0123abcd4567"),
    "header": ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
    "url": ("postgresql://eva:pa55word@db/app", "pa55word"),
    "sentence": ("my token is f00barbaz1", "f00barbaz1"),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_credential_is_recognized_and_masked(kind: str) -> None:
    text = f"use {SECRETS[kind]} for it"
    assert has_secret(text)
    assert masked(text) == "use (withheld) for it"


@pytest.mark.parametrize("kind", IN_A_TEXT)
def test_the_name_of_its_field_gives_a_credential_away(kind: str) -> None:
    text, value = IN_A_TEXT[kind]
    assert value not in masked(text)
    assert masked(text).startswith(text.partition(value)[0])


@pytest.mark.parametrize(
    "text",
    [
        "commit 9f2c1de0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3",
        "550e8400-e29b-41d4-a716-446655440000",
        "toolu_01HyRE7qQdzgMnHJ9F2oMCfo and call_I3WHVqSB8LfMWiSb44Q4ohBh",
        "src/components/UserSettingsPanel2/index.tsx",
        "QueueModeSelectorComponent.handleKeyDown",
        "token: int = 3, secret = settings.secret, password: string",
        "export ANTHROPIC_API_KEY=sk-ant-...",
        "the token limit is 4096",
        "order W2378156 of sofia_kim_7287 with gift_card_6941833",
    ],
)
def test_other_strings_are_none(text: str) -> None:
    assert not has_secret(text)
    assert masked(text) == text


def test_two_credentials_in_one_text_are_both_masked() -> None:
    text = masked(f"{SECRETS['aws']} and {SECRETS['github']}, then password: {SECRETS['random']}")
    assert text == "(withheld) and (withheld), then password: (withheld)"
