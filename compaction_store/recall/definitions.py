"""The tools' names, descriptions and arguments, in one table: it makes the schemas and checks the arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from compaction_store.models import Payload

SEARCH, EXPAND, DESCRIBE = "recall_search", "recall_expand", "recall_describe"
NAMES = frozenset({SEARCH, EXPAND, DESCRIBE})
CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})(?::(\d{1,15}))?", re.ASCII)
_MAX_LIMIT = 50
_MAX_INTEGER = 10**15


class TextField(NamedTuple):
    description: str
    max_length: int
    pattern: re.Pattern[str] | None = None


class IntegerField(NamedTuple):
    description: str
    minimum: int = 1
    maximum: int | None = None


class FlagField(NamedTuple):
    description: str


Field = TextField | IntegerField | FlagField


class Tool(NamedTuple):
    name: str
    description: str
    fields: Mapping[str, Field]
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> Payload:
        """The JSON Schema of the arguments."""
        properties = {name: _property(field) for name, field in self.fields.items()}
        schema: Payload = {"type": "object", "properties": properties}
        return schema | {"required": list(self.required), "additionalProperties": False}


class BadCall(Exception):
    """A call that cannot be carried out. The text tells the model why, and quotes nothing."""


# Models read these texts. They name every field of a result, because a model sees a result only after it has called.
_TOOLS = (
    Tool(
        SEARCH,
        "Search the original messages of this conversation, including messages that you now see only as notes or no"
        " longer see at all. Use it when you need something from earlier that your messages do not show: a name, a"
        " number, a file path, an error text, a decision. It compares text, not meaning: a word matches anywhere, also"
        " inside a longer word, and upper and lower case are the same. Returns JSON. `found` lists the messages that"
        " contain all the words, oldest first; if no message has all of them, it lists those that have the most. Each"
        " has its `seq` (its number in the conversation), its `role`, the matching `words`, an `excerpt`, and"
        " `folded_into_record` if a compaction record replaces it in your messages. `searched` is the range of seqs"
        " that was searched. Messages that were withdrawn, because somebody undid them or cleared the conversation, are"
        " left out; `withdrawn` lists their ranges of seqs. If `next` is present, there is more: call again with the"
        " same arguments and those in `next`. To read a message in full, pass its seq to recall_expand as start_seq.",
        {
            "query": TextField(
                'Words to look for, at most 16. Put words in "double quotes" to find them as one phrase. Few and rare'
                " words work best.",
                1000,
            ),
            "after_seq": IntegerField("Search only messages after this seq. Default: 0, the whole conversation.", 0),
            "until_seq": IntegerField("Search only messages up to and including this seq. Default: the last one."),
            "limit": IntegerField("The maximum number of messages to return. Default: 10.", 1, _MAX_LIMIT),
            "withdrawn": FlagField(
                "Search withdrawn messages too; those that are found have `withdrawn`. Default: false."
            ),
        },
        ("query",),
    ),
    Tool(
        EXPAND,
        "Read original messages of this conversation in full, word for word. Use it when notes on earlier messages are"
        " not exact enough, or to read what recall_search found. Give exactly one of record, start_seq and cursor: for"
        " notes on messages 3 to 40, give start_seq 3 and end_seq 40. Returns JSON. `messages` lists the messages,"
        " oldest first, each with its `seq` and the `message` itself; an erased message is marked as erased, and one"
        " that was withdrawn, because somebody undid it or cleared the conversation, comes without its content. A"
        " message too long for the result comes in parts of its JSON (`part_of_its_json`). If `next` is present, there"
        " is more: call again with its `cursor` in place of record, start_seq and end_seq.",
        {
            "record": IntegerField("The number of a compaction record: read all messages that it replaces."),
            "start_seq": IntegerField("The seq of the first message to read."),
            "end_seq": IntegerField("The seq of the last message to read. Only with start_seq; default: start_seq."),
            "cursor": TextField("The `cursor` from `next` in an earlier result: read on from there.", 50, CURSOR),
            "max_tokens": IntegerField("The maximum length of the result in tokens."),
            "withdrawn": FlagField("Read withdrawn messages too. Default: false."),
        },
    ),
    Tool(
        DESCRIBE,
        "List the compaction records of this conversation, newest first. A record says how earlier messages were"
        " replaced in what you see. Use it to find out which messages were compacted, when, by what, and into which"
        " summary. Without arguments it lists all records; start_seq and end_seq select those that concern a range"
        " of messages; record selects one, with its whole summary. Returns JSON. `records` lists the records, each"
        " with its number (`record`), `kind` (summary, truncation, removal, rewind, clear or revocation), `outcome`"
        " (applied, rejected, failed or observed), `status` (for example active, or revoked by another record),"
        " first and last seq (`messages`), `tokens` before and after, and its `summary`, which `summary_is_cut`"
        " marks as shortened. If `next` is present, there is more: call again with the same arguments and those in"
        " `next`.",
        {
            "record": IntegerField("The number of one record. Must be the only argument."),
            "start_seq": IntegerField("The seq of the first message of a range."),
            "end_seq": IntegerField(
                "The seq of the last message of the range. Only with start_seq; default: start_seq."
            ),
            "before_record": IntegerField("List only records with a smaller number than this."),
        },
    ),
)


def tools(max_tokens: int) -> tuple[Tool, ...]:
    """Returns the tools for results of at most `max_tokens`."""
    search, expand, describe = _TOOLS
    description = f"The maximum length of the result in tokens. Default: {max_tokens}."
    length = IntegerField(description, min(500, max_tokens), max_tokens)
    return search, expand._replace(fields={**expand.fields, "max_tokens": length}), describe


def _property(field: Field) -> Payload:
    if isinstance(field, FlagField):
        return {"type": "boolean", "description": field.description}
    if isinstance(field, TextField):
        return {"type": "string", "description": field.description}
    bounds = {"minimum": field.minimum} | ({} if field.maximum is None else {"maximum": field.maximum})
    return {"type": "integer", "description": field.description, **bounds}


def check_arguments(tool: Tool, given: Any) -> dict[str, Any]:
    """Returns the arguments of a call by name, without those that are null."""
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
    if isinstance(field, TextField):
        return _checked_text(name, field, value)
    if isinstance(field, FlagField):
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


def _checked_text(name: str, field: TextField, value: Any) -> str:
    if not isinstance(value, str):
        raise BadCall(f"{name} must be text, not {_kind(value)}")
    if not value.strip():
        raise BadCall(f"{name} must not be empty")
    if len(value) > field.max_length:
        raise BadCall(f"{name} must have at most {field.max_length:,} characters, not {len(value):,}")
    if field.pattern is not None and not field.pattern.fullmatch(value):
        raise BadCall(f"{name} must be the {name} from `next` in an earlier result")
    return value


def _kind(value: Any) -> str:
    """Names a value's type in JSON's words."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object"}
    return kinds.get(type(value), "null")
