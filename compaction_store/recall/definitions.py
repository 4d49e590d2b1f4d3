"""The names, descriptions and arguments of the tools. The JSON Schemas and the argument checks use the same table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from compaction_store.models import Payload
from compaction_store.models.state import PART_NAMES
from compaction_store.module_data import ModuleData

SEARCH, EXPAND, DESCRIBE = "recall_search", "recall_expand", "recall_describe"
NAMES = frozenset({SEARCH, EXPAND, DESCRIBE})
CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})(?::(\d{1,15}))?", re.ASCII)
_MAX_INTEGER = 10**15


class Field(NamedTuple):
    """An argument of a tool: a number with bounds, a text with a maximum length and a pattern, a flag or a part."""

    description: str
    kind: Literal["integer", "text", "flag", "part"] = "integer"
    minimum: int = 1
    maximum: int | None = None
    max_length: int = 0
    pattern: str | None = None


class Tool(NamedTuple):
    name: str
    description: str
    fields: Mapping[str, Field]
    required: Sequence[str] = ()

    @property
    def schema(self) -> Payload:
        """The JSON Schema of the arguments."""
        properties = {name: _property(field) for name, field in self.fields.items()}
        schema: Payload = {"type": "object", "properties": properties}
        return schema | {"required": list(self.required), "additionalProperties": False}


class BadCall(Exception):
    """Raised for a call that cannot be carried out. Its text tells the model why, and quotes no text of the call."""


def tools_in(data: ModuleData) -> tuple[Tool, ...]:
    """Returns the tools that a data file defines."""
    return tuple(
        Tool(name, **tool | {"fields": {each: Field(**field) for each, field in tool["fields"].items()}})
        for name, tool in data.values.items()
    )


_TOOLS = tools_in(ModuleData(__file__))


def tools(max_tokens: int) -> tuple[Tool, ...]:
    """Returns the tools, with `max_tokens` as the default and the maximum length of a result."""
    search, expand, describe = _TOOLS
    description = f"The maximum length of the result in tokens. Default: {max_tokens}."
    length = Field(description, minimum=min(500, max_tokens), maximum=max_tokens)
    return search, expand._replace(fields={**expand.fields, "max_tokens": length}), describe


def _property(field: Field) -> Payload:
    if field.kind == "part":
        return {"type": "string", "enum": list(PART_NAMES), "description": field.description}
    if field.kind != "integer":
        return {"type": "string" if field.kind == "text" else "boolean", "description": field.description}
    bounds = {"minimum": field.minimum} | ({} if field.maximum is None else {"maximum": field.maximum})
    return {"type": "integer", "description": field.description, **bounds}


def check_arguments(tool: Tool, given: Any) -> dict[str, Any]:
    """Checks the arguments of a call and returns them by name, without null values. Raises BadCall."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise BadCall(f"the arguments must be a JSON object, not {_kind(given)}")
    if given.keys() - tool.fields.keys():
        raise BadCall(f"the arguments of {tool.name} must be among {', '.join(tool.fields)}")
    found = {name: value for name, value in given.items() if value is not None}
    for name in tool.required:
        if name not in found:
            raise BadCall(f"{name} must be given")
    return {name: _checked(name, tool.fields[name], value) for name, value in found.items()}


def _checked(name: str, field: Field, value: Any) -> str | int:
    if field.kind == "text":
        return _checked_text(name, field, value)
    if field.kind == "part":
        if value not in PART_NAMES:
            raise BadCall(f"{name} must be one of {', '.join(PART_NAMES)}")
        return str(value)
    if field.kind == "flag":
        if not isinstance(value, bool):
            raise BadCall(f"{name} must be true or false, not {_kind(value)}")
        return value
    maximum = _MAX_INTEGER if field.maximum is None else field.maximum
    # JSON does not distinguish 3.0 from 3.
    number = int(value) if type(value) is float and value.is_integer() else value
    if type(number) is not int or not field.minimum <= number <= maximum:
        bounds = f">= {field.minimum}" if field.maximum is None else f"from {field.minimum} to {maximum}"
        is_short = type(value) is float or (type(value) is int and abs(value) <= _MAX_INTEGER)
        shown = value if is_short else _kind(value)
        raise BadCall(f"{name} must be an integer {bounds}, not {shown}")
    return number


def _checked_text(name: str, field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise BadCall(f"{name} must be text, not {_kind(value)}")
    if not value.strip():
        raise BadCall(f"{name} must not be empty")
    if len(value) > field.max_length:
        raise BadCall(f"{name} must have at most {field.max_length:,} characters, not {len(value):,}")
    if field.pattern is not None and not re.fullmatch(field.pattern, value, re.ASCII):
        raise BadCall(f"{name} must be the {name} from `next` in an earlier result")
    return value


def _kind(value: Any) -> str:
    """Returns the JSON name of a value's type, with an article."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object"}
    return kinds.get(type(value), "null")
