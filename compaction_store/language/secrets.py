"""Recognizes strings that look like credentials: keys, tokens and passwords.

A check must not force a credential into a summary. A credential is recognized by a prefix such as `sk-`, by the words
before it (the name of its field, or `Bearer`), by its place in a URL, or by random letters and digits. The letters and
digits of a hexadecimal hash, of a path, or of the id of a message or a call do not count as random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MASK = "(withheld)"

# Names of fields that contain credentials.
FIELD = re.compile(
    r"(?:api|access|secret|private|auth)[_-]?key|(?:^|[_-])token$|secret|passw|authorization|credential|bearer",
    re.IGNORECASE,
)
_PREFIXED = re.compile(
    r"""
      \b(?:sk|pk|rk)[-_](?:live|test|ant|proj|or|lf)?[-_]?[A-Za-z0-9_-]{16,200}
    | \bgh[pousr]_[A-Za-z0-9]{20,200} | \bgithub_pat_\w{20,200} | \bglpat-[\w-]{16,100}
    | \b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}\b | \bAIza[\w-]{30,60} | \bya29\.[\w-]{20,200}
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,200} | \bhf_[A-Za-z0-9]{20,100} | \bnpm_[A-Za-z0-9]{30,60}
    | \bpypi-[\w-]{40,200} | \bdop_v1_[a-f0-9]{60,70} | \bSG\.[\w-]{16,40}\.[\w-]{16,60} | \bAGE-SECRET-KEY-1\w{40,80}
    | \beyJ[\w-]{8,2000}\.eyJ[\w-]{8,2000}(?:\.[\w-]{0,2000})?
    | -----BEGIN[ ][A-Z ]{0,30}PRIVATE[ ]KEY-----
    """,
    re.VERBOSE,
)
_FIELD_WITH_VALUE = re.compile(
    r"""
    \b(?:[\w-]{0,30}[_-])?
    (?:(?:api|access|private|auth)[ _-]?key|secret(?:[ _-]?key)?|token|pass(?:word|wd|phrase)?|pwd|credentials?)
    ["'`]?[ ]{0,2}(?:[:=]|[ ]is[ ](?=\S{0,400}\d))[ ]{0,2}["'`]?([^\s"'`,;<>(){}\[\]]{6,400})
    """,
    re.VERBOSE | re.IGNORECASE,
)
_HEADER = re.compile(r"\b(?:bearer|basic)[ ]{1,2}([A-Za-z0-9._~+/=-]{12,2000})", re.IGNORECASE)
_IN_URL = re.compile(r"://[^\s/:@\"']{1,100}:([^\s/@\"']{3,200})@")
_MIXED = re.compile(r"(?<![\w+/=-])[A-Za-z0-9_+/=-]{24,400}(?![\w+/=-])")
# The prefixes of ids that services and SDKs make. Such ids look like credentials, but give no access.
_ID = re.compile(
    r"(?:toolu|srvtoolu|mcptoolu|call|msg|chatcmpl|cmpl|resp|rs|fc|ctc|ws|req|run|thread|asst|file|batch|session|evt"
    r"|gen)[_-]"
)
# Values of a field that are no credential: code that reads one (`token = config.token`), a type, or a shortened value.
_CODE = re.compile(r"[A-Za-z_$][\w$]*\.[\w$.]+|undefined|string|[\w-]{0,20}\.{3,}", re.IGNORECASE)
_SHORTEST = 6
# The characters that are in no credential. They are those that end the value of a field.
_BETWEEN = re.compile(r"[\s\"'`,;<>(){}\[\]]+")
_DIGIT = re.compile(r"\d")
_LEAST_CHANGES = 0.35
_LEAST_DIGITS = 3


def secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each string in a text that looks like a credential."""
    lower = text.lower() if text.isascii() else None
    for pattern, group, least, signs in _PATTERNS:
        if len(text) < least or (lower is not None and signs and not any(sign in lower for sign in signs)):
            continue
        if pattern is _MIXED and max(map(len, text.split()), default=0) < least:
            continue
        for found in pattern.finditer(text):
            if pattern is _MIXED and not is_random(found[0]):
                continue
            if pattern is not _FIELD_WITH_VALUE or _CODE.fullmatch(found[group]) is None:
                yield found.span(group)


# Each pattern, with the group that is the credential, the length of its shortest match, and signs. If there are signs,
# every match has one of them when it is lower-cased. So a text without any of the signs need not be searched.
_PATTERNS: tuple[tuple[re.Pattern[str], int, int, tuple[str, ...]], ...] = (
    (_PREFIXED, 0, 15, (
        "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
        "akia", "asia", "agpa", "aida", "aroa", "aiza", "ya29.", "xox", "hf_", "npm_", "pypi-", "dop_v1_", "sg.",
        "age-secret-key-1", "eyj", "private key",
    )),
    (_HEADER, 1, 18, ("bearer ", "basic ")),
    (_IN_URL, 1, 9, ("://",)),
    (_MIXED, 0, 24, ()),
    (_FIELD_WITH_VALUE, 1, 10, ("key", "secret", "token", "pass", "pwd", "credential")),
)  # fmt: skip


def has_secret(text: str) -> bool:
    if len(text) < _SHORTEST or not (_DIGIT.search(text) or FIELD.search(text) or "PRIVATE KEY" in text):
        return False
    return next(secrets(text), None) is not None


def secret_words(text: str) -> Iterator[str]:
    """Yields the words of a text that are long enough for a credential, in lower case and without marks around them."""
    for word in _BETWEEN.split(text.casefold()):
        bare = word.strip(".!?:…")
        if len(bare) >= _SHORTEST:
            yield bare


def masked(text: str) -> str:
    """Returns a text in which everything that looks like a credential is masked."""
    kept: list[str] = []
    last = 0
    for start, end in sorted(secrets(text)):
        if end > last:
            kept += [text[last:start], MASK] if start >= last else []
            last = end
    return "".join([*kept, text[last:]])


def is_random(run: str) -> bool:
    """Returns whether a run of characters mixes upper case, lower case and digits as a random key does.

    Returns False for paths, hexadecimal numbers and the ids that services make.
    """
    if _ID.match(run) or run.startswith("0x") or run.count("/") > 1:
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run if c.isalnum()]
    if not {"d", "u", "l"} <= set(kinds) or kinds.count("d") < _LEAST_DIGITS:
        return False
    changes = sum(one != other for one, other in pairwise(kinds))
    return changes >= _LEAST_CHANGES * len(kinds)
