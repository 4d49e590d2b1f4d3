"""Writes docs/reference.md from the signatures and docstrings of the code. With --check, fails if it is out of date.

The page has every public name. If no section lists a name or a method, the script fails.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fields import SHARED, described, member, unused

import compaction_store as cs
from compaction_store import (
    checkpoints,
    checks,
    distribution,
    embedded,
    errors,
    importers,
    migrate,
    models,
    probes,
    recall,
    strategies,
    summarizers,
    tokens,
)
from compaction_store.deploy import roles
from compaction_store.store._sync import audit, custody, loader, turns
from compaction_store.strategies.base import BaseStrategy
from compaction_store.summarizers.prompted import ModelSummarizer

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
WIDTH = 120

STORE: dict[str, tuple[str, ...]] = {
    "Opening and closing": ("open", "of_tenant", "close"),
    "Appending": ("append", "set_metadata", "fork"),
    "Loading": ("load.messages", "load.threads", "load.bundle"),
    "Taking turns": ("turn",),
    "Reading": ("view", "replay", "message", "thread", "threads", "compactions", "compaction", "seen_by"),
    "Compacting": (
        "on_compact",
        "on_recorded",
        "compact",
        "fit",
        "plan",
        "send",
        "revoke",
        "repair",
        "adopt",
        "rewind",
        "clear",
        "due",
        "leases",
    ),
    "Verifying": ("audit.verify", "audit.verify_schema", "audit.verify_entry", "audit.checkpoint", "audit.export"),
    "Auditing": (
        "audit.events",
        "audit.feed",
        "audit.explain",
        "audit.originals",
        "audit.tree",
        "audit.search",
        "audit.counts",
        "audit.figures",
        "audit.sample",
        "audit.review",
        "audit.record_evaluation",
        "audit.record_verification",
        "audit.outline",
        "audit.compare",
        "audit.elements",
        "audit.entries",
        "audit.neighbours",
        "audit.token_steps",
        "audit.names_of",
        "audit.tenants",
    ),
    "Erasing": (
        "custody.redact",
        "custody.erase",
        "custody.hold",
        "custody.release",
        "custody.retain",
        "custody.apply_retention",
        "custody.set_retention",
        "custody.retention_rule",
        "custody.erase_subject",
        "custody.shred",
        "custody.remove_tenant",
        "custody.set_subject",
    ),
}
# Classes whose parameters are not shown, because only the store makes their objects.
_MADE_HERE = {"CompactionContext", "Turn"}
# Names that are described elsewhere on the page, or need no description.
_FACES = {"Store", "AsyncStore", "Reader", "AsyncReader", "BudgetExceeded", "Payload"}
_ABOUT = "The page is made from the code by `scripts/reference.py`, and a test compares them."


_GROUPS = {"audit": audit.StoreAudit, "custody": custody.Custody, "load": loader.Loader}


def _public(module: ModuleType) -> tuple[str, ...]:
    """Returns the names in the `__all__` of a package, which its stub does not repeat."""
    return tuple(vars(module)["__all__"])


class Section(NamedTuple):
    title: str
    about: str
    module: Any
    names: tuple[str, ...]


SECTIONS = (
    Section(
        "Compaction", "For callbacks. [Compaction](compaction.md) explains it.", cs,
        ("CompactionContext", "TokenBudget", "Summary"),
    ),
    Section(
        "Turns", "Made by `turn`. [How to](how-to/turns.md).", turns, ("Turn",),
    ),
    Section(
        "Values",
        "Return values. All are immutable, no `repr` shows content, and each has `as_dict()`. These fields mean the"
        " same in every value:", cs,
        (
            "Message", "Appended", "Element", "View", "FittedView", "Rendered", "SeenView", "Thread", "Event",
            "Compaction", "CompactionRun", "CompactionPlan", "Explanation", "Redaction", "Report", "Finding",
        ),
    ),
    Section(
        "More values", "`compaction_store.models`, which has all values above except the views, runs and plans too.",
        models,
        (
            "Lease", "ToLoad", "Observed", "Loaded", "ThreadLoaded", "Imported", "Forked", "Origin", "RedactedFork",
            "Expiry", "Span", "TokenStep", "Sample", "FeedEntry",
            "Attempt", "CompactionTree", "Found", "Measured", "PendingCall", "Outline", "Part", "Comparison",
            "Figures", "DayFigures",
            "ComparedPart", "Verdict", "State", "StateLine",
        ),
    ),
    Section(
        "Checkpoints", "[Checkpoints](checkpoints.md) explains them.", cs,
        ("Checkpoint", "CheckpointLog", "SigningKey"),
    ),
    Section(
        "Removals", "`compaction_store.checkpoints`. [Erasing](erasure.md#whole-tenants) explains them.", checkpoints,
        ("Removal", "check_removal"),
    ),
    Section(
        "Strategies",
        "`compaction_store.strategies`. [Strategies](strategies.md) compares them. `name` is the name in records,"
        " `needs_async` says whether an `AsyncStore` is needed, and `steps(ctx)` yields `Ask`s and is sent the result"
        " of each.", strategies,
        _public(strategies),
    ),
    Section(
        "Summarizers",
        "`compaction_store.summarizers`. [Summarizers](summarizers.md) describes each. `name` and `needs_async` are as"
        " for strategies; `can_repair` says whether it can repair a summary if it is given the faults.", summarizers,
        tuple(summarizers.__all__),
    ),
    Section(
        "Checks", "`compaction_store.checks`. [Evaluation](evaluation.md#checked-summaries) explains them.", checks,
        tuple(checks.__all__),
    ),
    Section(
        "Probes", "`compaction_store.probes`. [Evaluation](evaluation.md) says what each finds.", probes,
        ("ThreadFacts", "ThreadMessage", "ThreadProbe", "Fold", "Probe", "Place"),
    ),
    Section(
        "Recall", "`compaction_store.recall`: tools for agents. [How to](how-to/recall.md).", recall,
        ("recall_tools", "RecallTools", "AsyncRecallTools", "Recalled"),
    ),
    Section(
        "Tokens", "`compaction_store.tokens`. [Tokens](tokens.md) has the rules.", tokens,
        ("Counter", "o200k_base", "bytes_over_four", "count_text", "cut", "load"),
    ),
    Section(
        "Telemetry", "[How to](how-to/telemetry.md) lists spans and metrics.", cs, ("Telemetry",),
    ),
    Section(
        "Importers", "`compaction_store.importers`. [Imports](imports.md) has the formats.", importers,
        tuple(name for name in _public(importers) if name != "FORMATS"),
    ),
    Section(
        "Deploying", "`compaction_store.migrate`.", migrate, ("upgrade", "check", "current", "sql", "downgrade"),
    ),
    Section("Distributing", "`compaction_store.distribution`. [How to](how-to/citus.md).", distribution,
        ("distribute", "Distributed", "rebalance"),
    ),
    Section("Roles", "`compaction_store.grants`. [Threats](threats.md#2-roles) has what each may do.", roles,
        ("grant", "revoke"),
    ),
    Section("The embedded Postgres", "`compaction_store.embedded`. [Its page](embedded.md).", embedded,
        ("default_folder", "url"),
    ),
)  # fmt: skip


def page() -> str:
    parts = [
        "# Reference\n",
        *_wrapped(f"Every public name, with its docstring. {_ABOUT}"),
        *_wrapped(
            "`AsyncStore` has the methods of `Store`, awaited; use `async for` with those that return an iterator."
            " `Reader` and `AsyncReader` lack the methods that are marked *Store only*. `thread_id` comes first,"
            " options are keyword-only."
        ),
        *_store(),
        *(part for section in SECTIONS for part in _section(section)),
        "## Errors\n",
        *_wrapped(
            "All are in `compaction_store.errors`, except `BudgetExceeded`; those that applications usually catch can"
            f" be imported from `compaction_store`: {_caught()}. An error names thread, seq and number, and never"
            " repeats content."
        ),
        _tree(cs.CompactionStoreError),
    ]
    if rest := _rest():
        raise SystemExit(f"reference: no section of scripts/reference.py has {', '.join(sorted(rest))}")
    if old := unused(_all_fields()):
        raise SystemExit(f"reference: scripts/fields.py describes fields that are gone: {', '.join(old)}")
    return "\n".join(parts)


def _all_fields() -> dict[str, set[str]]:
    found = {name: getattr(section.module, name) for section in SECTIONS for name in section.names}
    return {name: set(_fields(kind)) for name, kind in found.items() if inspect.isclass(kind)}


def _caught() -> str:
    names = (name for name in cs.__all__ if inspect.isclass(kind := getattr(cs, name)) and issubclass(kind, Exception))
    return ", ".join(f"`{name}`" for name in names)


def _rest() -> set[str]:
    """Returns the public names that are not on the page."""
    told = {name for section in SECTIONS for name in section.names} | _FACES
    told |= {"__version__", "verify_bundle", "LEVELS", "Level"}
    mistakes = {name for name, found in vars(errors).items() if inspect.isclass(found)}
    methods = {
        f"{group}.{name}" if group else name
        for group in ("", *_GROUPS)
        for name in _inherited(_GROUPS[group] if group else cs.Store)
        if not name.startswith("_") and name not in _GROUPS
    }
    named = {*cs.__all__, *_public(models), *recall.__all__}
    return (named - told - mistakes) | (methods - {name for names in STORE.values() for name in names})


def _method(kind: type, path: str) -> Any:
    """Returns a method of a class, or of one of its groups of methods; None if it is not there."""
    group, _, name = path.rpartition(".")
    if not group:
        return getattr(kind, name, None)
    if not hasattr(kind, group):
        return None
    return getattr(audit.Audit if (kind, group) == (cs.Reader, "audit") else _GROUPS[group], name, None)


def _inherited(kind: type) -> dict[str, Any]:
    return {name: found for base in kind.__mro__ for name, found in vars(base).items()}


def _store() -> Iterator[str]:
    yield "## Store\n"
    for title, names in STORE.items():
        yield f"### {title}\n"
        for name in names:
            method = _method(cs.Store, name)
            if method is None:
                continue
            of_class = "Store" if name == "open" else "store"
            marks = " *Store only*" if _method(cs.Reader, name) is None else ""
            yield f"#### {of_class}.{name}{marks}\n"
            yield _code(f"{of_class}.{name}", method)
            yield from _prose(method)
    yield "#### verify_bundle\n"
    yield _code("verify_bundle", cs.verify_bundle)
    yield from _prose(cs.verify_bundle)


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}\n"
    yield from _wrapped(section.about)
    if section.title == "Values":
        yield _shared_fields()
    for name in section.names:
        found = getattr(section.module, name)
        yield f"### {name}\n"
        yield from _named(name, found)


def _named(name: str, found: Any) -> Iterator[str]:
    if name.startswith("Async"):
        yield from _wrapped(f"The methods of `{name.removeprefix('Async')}`, awaited, for an `AsyncStore`.")
        return
    if not inspect.isclass(found):
        if callable(found) and inspect.isroutine(found):
            yield _code(name, found)
            yield from _prose(found)
        else:
            yield f"```text\n{name} = {_plain(str(found))}\n```\n"
        return
    fields = _fields(found)
    if fields:
        yield from _prose(found)
        yield "| | |\n|---|---|\n" + "".join(_field_rows(found, fields))
    else:
        if "__init__" in vars(found) and not getattr(found, "_is_protocol", False) and name not in _MADE_HERE:
            yield _code(name, found)
        yield from _prose(found)
    yield from _members(found, fields)


# A field is the subject of a sentence.
_SUBJECT = r"(?:^|[.:;]\s+|,\sand\s){}\s(?:is|are|has|have|says|means|names|identifies)\b"


def _field_rows(kind: type, fields: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yields a row for each field, and one row for those that the docstring or the table of shared fields describes."""
    described_once: dict[str, list[str]] = {"above": [], "as in [all values](#values)": []}
    for field, (type_, default) in fields.items():
        shown = f"`{_cell(f'{field}: {type_}' + (default and f' = {default}'))}`"
        text, is_shared = described(kind.__name__, field)
        marked = f"`{field}`"
        if re.search(
            rf"(?:^|[.:;]\s+|,\sand\s){marked}\s(?:is|are|has|have|says|means|names|identifies)\b", _doc(kind)
        ):
            described_once["above"].append(shown)
        elif is_shared:
            described_once["as in [all values](#values)"].append(shown)
        else:
            yield f"| {shown} | {_cell(text)} |\n"
    for where, names in described_once.items():
        if names:
            yield f"| {', '.join(names)} | {where} |\n"


def _shared_fields() -> str:
    rows = (f"| `{name}` | {_cell(text)} |\n" for name, text in SHARED.items())
    return "| | |\n|---|---|\n" + "".join(rows)


def _own(kind: type) -> dict[str, Any]:
    """Returns the members of a class and of its private base classes."""
    inner = {base for base in kind.__mro__ if base.__name__.startswith("_") or base is ModelSummarizer}
    bases = (base for base in kind.__mro__ if base is kind or base in inner)
    return {name: found for base in bases for name, found in vars(base).items()}


# The page says once that every value has as_dict().
_FIELDS = "Returns the fields"


def _members(kind: type, fields: Collection[str]) -> Iterator[str]:
    """Yields the table of a class's properties and methods."""
    rows = []
    hidden = _HIDDEN.get(kind.__name__, set()) | (_SAID_ONCE if kind.__module__.startswith(_CHOICES) else set())
    for name, found in _own(kind).items():
        if name.startswith("_") or name in fields or name in hidden:
            continue
        if name == "as_dict" and (inspect.getdoc(found) or _FIELDS).startswith(_FIELDS):
            continue
        if isinstance(found, property | types.FunctionType | classmethod | staticmethod) or hasattr(found, "func"):
            rows.append(_row(kind.__name__, name, found))
    if rows:
        yield "| | |\n|---|---|\n" + "".join(rows)


# The page says once what these are.
_CHOICES = (strategies.__name__, summarizers.__name__)
_SAID_ONCE = {"name", "needs_async", "can_repair", "steps"}
_HIDDEN = {
    "Rendered": {"thread_id", "pos"},
    "Window": {"count", "index"},
    "Telemetry": {"watch", "statement", "instrument", "observer", "model_call"},
    "Turn": {"check", "watching", "note", "write"},
    "Request": {"unquoted_after", "unquoted_rest"},
    "ClearToolResults": {"batch", "changes"},
    "AnthropicSummarizer": {"asked", "notes"},
    "OpenAISummarizer": {"asked", "notes"},
    "Ladder": {"limit", "steps_to", "recent", "old"},
    # These are shared with the planner for plain lists.
    "AssistantRuns": {"runs"},
    "SlidingWindow": {"reached", "kept", "outline", "folds"},
    "SummaryTree": {"growth"},
}


def _row(kind: str, name: str, found: Any) -> str:
    function: Any = found.fget if isinstance(found, property) else getattr(found, "func", None) or found
    function = getattr(function, "__func__", function)
    is_method = not isinstance(found, property) and not hasattr(found, "func")
    shown = f"{name}{_arguments(function)}" if is_method else name
    text = " ".join((inspect.getdoc(function) or member(kind, name)).split("\n\n")[0].split())
    return f"| `{_cell(shown)}` | {_cell(text)} |\n"


def _fields(kind: type) -> dict[str, tuple[str, str]]:
    """Returns the fields of a value, each with its type and default."""
    if issubclass(kind, BaseStrategy):
        # The fields of a strategy are its arguments.
        return {}
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]
        return {field.name: (_plain(str(field.type)), _given(field.default)) for field in fields}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        defaults = getattr(kind, "_field_defaults", {})
        names: tuple[str, ...] = kind._fields
        return {
            name: (_plain(_annotation(kind, name)), _given(defaults.get(name, dataclasses.MISSING))) for name in names
        }
    return {}


def _given(default: Any) -> str:
    return "" if default is dataclasses.MISSING else _default(default)


def _annotation(kind: type, name: str) -> str:
    found = inspect.get_annotations(kind).get(name, typing.Any)
    return getattr(found, "__forward_arg__", None) or inspect.formatannotation(found)


def _code(name: str, found: Callable[..., Any]) -> str:
    line = f"{name}{_arguments(found)}"
    if len(line) > WIDTH:
        inside = ",\n    ".join(_parameters(found))
        line = f"{name}(\n    {inside},\n){_returned(found)}"
    return f"```text\n{line}\n```\n"


def _arguments(found: Callable[..., Any]) -> str:
    return f"({', '.join(_parameters(found))}){_returned(found)}"


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameters(found: Callable[..., Any]) -> list[str]:
    shown = []
    starred = False
    for parameter in inspect.signature(found).parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.VAR_KEYWORD and (typed := _typed(found, parameter.name)) is not None:
            shown += [f"{name}: {_shown(kind)} = None" for name, kind in typed.items()]
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = _STARS.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {_shown(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        shown.append(f"{stars}{parameter.name}{kind}{default}")
    return shown


def _typed(found: Callable[..., Any], name: str) -> dict[str, Any] | None:
    """Returns the names and types of `**name: Unpack[SomeTypedDict]`; None if it has another type."""
    unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(found.__annotations__.get(name)))
    if unpacked is None:
        return None
    kinds: dict[str, Any] = getattr(sys.modules[found.__module__], unpacked[1]).__annotations__
    return {name: getattr(kind, "__forward_arg__", kind) for name, kind in kinds.items()}


def _default(value: Any) -> str:
    # Show an object's name if its repr is an address.
    return _plain(repr(value)) if " at 0x" not in repr(value) else f"{getattr(value, '__name__', type(value).__name__)}"


def _returned(found: Callable[..., Any]) -> str:
    if inspect.isclass(found):
        return ""
    returned = inspect.signature(found).return_annotation
    return "" if returned is inspect.Signature.empty else f" -> {_shown(returned)}"


def _shown(annotation: Any) -> str:
    return _plain(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _plain(text: str) -> str:
    """Removes module names."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    return re.sub(r"ForwardRef\('([^']+)'[^)]*\)", r"\1", text).replace('"', "")


def _prose(found: Any) -> Iterator[str]:
    for part in filter(None, _doc(found).split("\n\n")):
        yield from _wrapped(part)


def _doc(found: Any) -> str:
    text = inspect.getdoc(found) or ""
    # A dataclass without a docstring gets its signature as docstring.
    return "" if text.startswith(f"{getattr(found, '__name__', '')}(") else text


def _wrapped(text: str) -> Iterator[str]:
    yield "\n".join(textwrap.wrap(" ".join(text.split()), WIDTH, break_on_hyphens=False)) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _tree(kind: type[Exception], depth: int = 0) -> str:
    """Returns an error and those that derive from it as a list, each with the first sentence about it."""
    said = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")
    parts = [f"{'  ' * depth}- `{kind.__name__}`: {said[:1].lower()}{said[1:]}\n"]
    below = [each for each in kind.__subclasses__() if each.__module__.startswith(cs.__name__)]
    return "".join([*parts, *(_tree(each, depth + 1) for each in below if not each.__name__.startswith("_"))])


def main() -> None:
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        raise SystemExit("reference: docs/reference.md is not what the code says: run python scripts/reference.py")


if __name__ == "__main__":
    main()
