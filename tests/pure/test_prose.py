"""Prose as one writes it to a colleague: no phrases of the old voice, and errors about arguments that say "must"."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest
from support.paths import ROOT
from support.prose import Passage, passages

_OLD_VOICE = re.compile(
    r"""\b(
      told(?!\ apart) | tells\ of | stands?\ for | stood\ for | held\ against | held\ to(?!\ the\ end) | laid\ ready
      | of\ one's\ own | who(m)?ever | for\ ever | in\ the\ midst | (is|are|was|were)\ taken\ for | None\ is\ none
      | says\ something
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
# A sentence must not begin with its relative clause: "What is written meanwhile is not part of it." Questions may.
_FREE_RELATIVE = re.compile(r"^\W*(What|Whatever|Whom|Whose|Who)\b(?!.*[?:]\W*$)")
# Headings, cells of tables and titles of links may begin so too.
_TITLE = re.compile(r"\W*[#|\[]")
_ARGUMENT_ERRORS = {
    "InvalidInput", "InvalidThreadId", "InvalidMessage", "MessageTooLarge", "MessageTooDeep", "InvalidKey",
    "InvalidMeta", "BatchTooLarge", "InvalidSpan", "InvalidCallback", "ActorRequired", "CounterFailed",
}  # fmt: skip
# Errors of these classes that are not about the value of an argument, by a piece of their text, with the reason.
_EXCUSED: dict[str, str] = {
    "stdin is not a terminal": "nobody can be asked",
    "there is no login": "the database lacks it",
    "is NOINHERIT": "what the database says of the login",
    "it could do more than its role allows": "what the database says of the login",
    "has no span": "what is stored of the record",
}
# Texts that must stay: they are compared with what is stored already.
_KEPT = {"compaction_store/recall/pages.py": "whatever it says was said before, to whomever it was said"}


def _old_voice() -> Iterator[Passage]:
    for passage in passages():
        if _OLD_VOICE.search(passage.text.replace(_KEPT.get(passage.file, "\0"), "")):
            yield passage


def _free_relatives() -> Iterator[Passage]:
    for passage in passages():
        is_title = passage.path.suffix == ".md" and _TITLE.match(passage.text)
        if not is_title and _FREE_RELATIVE.search(passage.text):
            yield passage


def _argument_errors() -> Iterator[Passage]:
    """Yields the text of every error of these classes, if it is a constant of the same module."""
    for path in sorted((ROOT / "compaction_store").rglob("*.py")):
        if "_sync" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {each.targets[0].id: each.value for each in tree.body if _is_constant(each)}  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in _ARGUMENT_ERRORS:
                given = node.args[0]
                text = "".join(_texts(constants.get(given.id, given) if isinstance(given, ast.Name) else given))
                if text:
                    yield Passage(path, node.lineno, text)


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def _texts(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _without_must() -> Iterator[Passage]:
    for error in _argument_errors():
        if "must" not in error.text and not any(piece in error.text for piece in _EXCUSED):
            yield error


_RULES: dict[str, Callable[[], Iterator[Passage]]] = {
    "old voice": _old_voice,
    "free relatives": _free_relatives,
    "errors without must": _without_must,
}


def test_every_excuse_is_for_an_error_that_there_is() -> None:
    texts = [error.text for error in _argument_errors()]
    assert len(texts) > 100
    assert not [piece for piece in _EXCUSED if not any(piece in text for text in texts)]


@pytest.mark.parametrize("rule", _RULES)
def test_the_prose_keeps_the_rule(rule: str) -> None:
    assert not [f"{passage.file}:{passage.line}: {passage.text.strip()}" for passage in _RULES[rule]()]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("old voice", "Whoever calls it is told."),
        ("old voice", "the summary stands for no span"),
        ("free relatives", "What is written meanwhile is not part of it."),
        ("free relatives", "# Whom the calls of models are for."),
    ],
)
def test_the_rule_finds_what_it_is_for(monkeypatch: pytest.MonkeyPatch, rule: str, text: str) -> None:
    monkeypatch.setitem(globals(), "passages", lambda: iter([Passage(ROOT / "compaction_store" / "x.py", 1, text)]))
    assert list(_RULES[rule]())
