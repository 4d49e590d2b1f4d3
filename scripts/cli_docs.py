"""Writes the reference part of docs/cli.md from the help texts. With --check, fails if the page is not up to date."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

from compaction_store.cli.bundles import expanded
from compaction_store.cli.program import PANELS, Verb

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
MARK = "<!-- From here on the page is written by scripts/cli_docs.py, from the help texts. -->\n"
# The options that all verbs share are documented once.
_SHARED = {"url": "`--url`", "tenant": "`--tenant`", "as_json": "`--json`"}


# An option that this many verbs have, with the same text, is described once too.
_OFTEN = 3
_COMMON = "Options of several verbs"


def reference() -> str:
    common = _common()
    table = f"## {_COMMON}\n\n| | |\n|---|---|\n" + "\n".join(common) + "\n\n"
    panels = (f"## {panel}\n\n" + "\n".join(_verb(verb, common) for verb in verbs) for panel, verbs in PANELS.items())
    return table + "\n".join(panels)


def _common() -> list[str]:
    """Returns the rows that several verbs have, the most frequent first, and one for each option."""
    verbs = [verb for verbs in PANELS.values() for verb in verbs]
    rows = Counter(_row(_option(p, i), p, i) for verb in verbs for p, i in _shown(verb) if isinstance(i, OptionInfo))
    found: dict[str, str] = {}
    for row, number in rows.most_common():
        if number >= _OFTEN:
            found.setdefault(row.split("`")[1].split()[0], row)
    return list(found.values())


def _parameters(verb: Verb) -> list[inspect.Parameter]:
    return list(map(_annotated, inspect.signature(expanded(verb.function), eval_str=True).parameters.values()))


def _shown(verb: Verb) -> list[tuple[inspect.Parameter, OptionInfo | ArgumentInfo]]:
    return [(p, info) for p in _parameters(verb) if (info := _info(p)) is not None and p.name not in _SHARED]


def _verb(verb: Verb, common: Sequence[str]) -> str:
    parameters, shown = _parameters(verb), _shown(verb)
    arguments = [(p, info) for p, info in shown if isinstance(info, ArgumentInfo)]
    options = [(p, info) for p, info in shown if isinstance(info, OptionInfo)]
    usage = " ".join(["compaction-store", verb.name, *(str(info.metavar) for _, info in arguments), "[OPTIONS]"])
    lines = [f"### {verb.name}", "", *_wrapped(verb.help), "", f"    {usage}"]
    lines += [f"    compaction-store {verb.example}", ""]
    rows = [_row(str(info.metavar), p, info) for p, info in arguments]
    rows += [_row(_option(p, info), p, info) for p, info in options]
    if own := [row for row in rows if row not in common]:
        lines += ["| | |", "|---|---|", *own, ""]
    if also := [f"`{'/'.join(i.param_decls or ())}`" for p, i in options if _row(_option(p, i), p, i) in common]:
        link = f"[{_COMMON.lower()}](#{_COMMON.lower().replace(' ', '-')})"
        lines += [*_wrapped(f"{'Also' if own else 'The'} {link}: {', '.join(also)}."), ""]
    missing = [option for key, option in _SHARED.items() if key not in {p.name for p in parameters}]
    if missing:
        lines += [f"Without {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _annotated(parameter: inspect.Parameter) -> inspect.Parameter:
    """Returns a parameter whose default is an option as one that is annotated with the option."""
    info = parameter.default
    if not isinstance(info, OptionInfo | ArgumentInfo):
        return parameter
    default = inspect.Parameter.empty if info.default is ... else info.default
    return parameter.replace(annotation=Annotated[parameter.annotation, info], default=default)


def _info(parameter: inspect.Parameter) -> OptionInfo | ArgumentInfo | None:
    found = [m for m in get_args(parameter.annotation) if isinstance(m, OptionInfo | ArgumentInfo)]
    return found[0] if found else None


def _option(parameter: inspect.Parameter, info: OptionInfo) -> str:
    names = "/".join(info.param_decls or ())
    kind = get_args(parameter.annotation)[0]
    parts = (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,)
    kinds = [part for part in parts if part is not type(None)]
    if kinds == [bool]:
        return names
    if get_origin(kinds[0]) is Literal:
        return f"{names} {'|'.join(get_args(kinds[0]))}"
    return f"{names} {info.metavar}"


def _row(name: str, parameter: inspect.Parameter, info: OptionInfo | ArgumentInfo) -> str:
    default = parameter.default
    value = ""
    if isinstance(info.show_default, str):
        value = info.show_default
    elif default is inspect.Parameter.empty and isinstance(info, OptionInfo):
        value = "required"
    elif default not in (None, False, "", inspect.Parameter.empty):
        value = f"`{default}`"
    text = f"{info.help or ''} ({value if value == 'required' else f'Default: {value}'})" if value else info.help or ""
    cells = (part.replace("|", chr(92) + "|") for part in (f"`{name}`", text))
    return f"| {' | '.join(cells)} |"


def _wrapped(text: str) -> list[str]:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(part, 120) for part in paragraphs).splitlines()


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, mark, written = text.partition(MARK)
    if not mark:
        raise SystemExit(f"cli_docs: {PAGE} must have the line that starts the generated part")
    wanted = "\n" + reference()
    if "--check" not in sys.argv:
        PAGE.write_text(head + mark + wanted, encoding="utf-8")
    elif written != wanted:
        raise SystemExit("cli_docs: docs/cli.md must match the help texts: run python scripts/cli_docs.py")


if __name__ == "__main__":
    main()
