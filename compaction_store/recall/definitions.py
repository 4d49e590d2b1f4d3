"""What the tools are called and take: one table, from which the schemas are made and by which arguments are judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from compaction_store.models import Payload

SEARCH, EXPAND, DESCRIBE = "recall_search", "recall_expand", "recall_describe"
NAMES = frozenset({SEARCH, EXPAND, DESCRIBE})
MOST_HITS = 50
CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})(?::(\d{1,15}))?", re.ASCII)
_LARGEST = 10**15


class Text(NamedTuple):
    about: str
    longest: int
    pattern: re.Pattern[str] | None = None


class Number(NamedTuple):
    about: str
    least: int = 1
    most: int | None = None


class Tool(NamedTuple):
    name: str
    description: str
    fields: Mapping[str, Text | Number]
    needed: tuple[str, ...] = ()

    @property
    def schema(self) -> Payload:
        """The JSON Schema of the arguments."""
        properties = {name: _property(field) for name, field in self.fields.items()}
        schema: Payload = {"type": "object", "properties": properties}
        return schema | {"required": list(self.needed), "additionalProperties": False}


class Unfit(Exception):
    """What is wrong with a call, in words for the model that made it."""


_NEXT = "A result that has more says in `next` which arguments to call with for it."
_TOOLS = (
    Tool(
        SEARCH,
        "Searches every original message of this conversation, those included that you see only as notes or not at"
        " all. Looks for words as they stand, whatever their case, also inside longer words; a message is found if it"
        ' has all of them. "Words in quotes" are looked for together. Where none has all, those with some are given.'
        f" Oldest first, each with its seq and an excerpt. {_NEXT}",
        {
            "query": Text("The words, such as a name, a path, or an error's text.", 1000),
            "after_seq": Number("Only messages after this seq.", 0),
            "until_seq": Number("Only messages up to this seq."),
            "limit": Number("How many messages to find at most; 10 if not given.", 1, MOST_HITS),
        },
        ("query",),
    ),
    Tool(
        EXPAND,
        "Gives original messages of this conversation word for word: those that notes or a compaction record stand for,"
        " or those from one seq to another. Notes on messages 3 to 40 are expanded by start_seq 3 and end_seq 40."
        f" {_NEXT}",
        {
            "record": Number("The number of a compaction record, whose messages are wanted."),
            "start_seq": Number("The seq of the first message wanted, instead of a record."),
            "end_seq": Number("The seq of the last message wanted; start_seq's if not given."),
            "cursor": Text("From the `next` of an earlier result, instead of all other arguments.", 50, CURSOR),
            "max_tokens": Number("How long the result may be."),
        },
    ),
    Tool(
        DESCRIBE,
        "Tells of the compaction records of this conversation, newest first: which messages each stands for, its"
        " summary, how it was made, and whether it is in force. Of all of them, of those that touch a span of messages,"
        f" or of one by its number. {_NEXT}",
        {
            "record": Number("The number of the one record that is wanted."),
            "start_seq": Number("The seq of the first message of a span."),
            "end_seq": Number("The seq of its last message; start_seq's if not given."),
            "before_record": Number("Only records with a smaller number than this."),
        },
    ),
)


def tools(max_tokens: int) -> tuple[Tool, ...]:
    """The tools, where no result may take more tokens than this."""
    search, expand, describe = _TOOLS
    longest = Number(f"How long the result may be; {max_tokens} if not given.", min(500, max_tokens), max_tokens)
    return search, expand._replace(fields={**expand.fields, "max_tokens": longest}), describe


def _property(field: Text | Number) -> Payload:
    if isinstance(field, Text):
        return {"type": "string", "description": field.about}
    bounds = {"minimum": field.least} | ({} if field.most is None else {"maximum": field.most})
    return {"type": "integer", "description": field.about, **bounds}


def judged(tool: Tool, given: Any) -> dict[str, Any]:
    """The arguments of a call, those that are there; None is none."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise Unfit("the arguments are one JSON object")
    if given.keys() - tool.fields.keys():
        raise Unfit(f"it takes no other arguments than {', '.join(tool.fields)}")
    found = {name: value for name, value in given.items() if value is not None}
    for name in tool.needed:
        if name not in found:
            raise Unfit(f"{name} is missing")
    return {name: _value(name, tool.fields[name], value) for name, value in found.items()}


def _value(name: str, field: Text | Number, value: Any) -> str | int:
    if isinstance(field, Text):
        return _text(name, field, value)
    most = _LARGEST if field.most is None else field.most
    # To JSON, 3.0 is a whole number.
    whole = int(value) if type(value) is float and value.is_integer() else value
    if type(whole) is not int or not field.least <= whole <= most:
        upper = "" if field.most is None else f" to {most}"
        raise Unfit(f"{name} is a whole number from {field.least}{upper}{'' if upper else ' on'}")
    return whole


def _text(name: str, field: Text, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unfit(f"{name} is text that says something")
    if len(value) > field.longest:
        raise Unfit(f"{name} has at most {field.longest} characters")
    if field.pattern is not None and not field.pattern.fullmatch(value):
        raise Unfit(f"{name} is not one that an earlier result gave")
    return value
