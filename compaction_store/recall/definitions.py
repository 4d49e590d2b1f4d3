"""The names, descriptions and arguments of the tools. The JSON Schemas and the argument checks use the same table."""

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
    """Raised for a call that cannot be carried out. Its text tells the model why, and quotes no text of the call."""


# These texts are sent to models. They describe the results too, because a model chooses a tool before it sees a result.
_TOOLS = (
    Tool(
        SEARCH,
        "Search the original messages of this conversation, including messages that you now see only as notes and"
        " messages that you no longer see. Use this tool to find a detail from earlier that your current messages do"
        " not show, such as a name, a number, a file path, an error text or a decision. The search matches text, not"
        " meaning. It ignores upper and lower case, and it also finds a word inside a longer word. The result is JSON."
        " `found` lists the messages that contain all the words of the query, oldest first. If no message contains all"
        " of the words, `found` lists the messages that contain the most of them. Each entry has the message's `seq`"
        " (its number in the conversation), its `role`, the `words` that it contains, and an `excerpt`. If a compaction"
        " record replaces the message in your view, `folded_into_record` is the number of that record. `searched` is"
        " the range of seqs that was searched. Withdrawn messages, which somebody undid or cleared, are left out;"
        " `withdrawn` lists their ranges of seqs. `erased` counts erased messages, which cannot be searched. If `next`"
        " is present, there may be more results: call again with the same arguments plus the arguments in `next`. To"
        " read a whole message, call recall_expand with its seq as start_seq.",
        {
            "query": TextField(
                'The words to search for, at most 16. Put words in "double quotes" to search for a phrase. A few rare'
                " words work best.",
                1000,
            ),
            "after_seq": IntegerField("Search only messages after this seq. Default: 0, from the first message.", 0),
            "until_seq": IntegerField("Search only messages up to and including this seq. Default: the last message."),
            "limit": IntegerField("The maximum number of messages to return. Default: 10.", 1, _MAX_LIMIT),
            "withdrawn": FlagField(
                "Search withdrawn messages too. Such an entry has `withdrawn`: true. Default: false."
            ),
        },
        ("query",),
    ),
    Tool(
        EXPAND,
        "Read original messages of this conversation word for word. Use this tool when notes on earlier messages are"
        " not exact enough, or to read a message that recall_search found. Give exactly one of record, start_seq and"
        " cursor. For example, to read the messages behind notes on messages 3 to 40, or those that a line says were"
        " left out, such as [38 messages, seqs 3 to 40, left out], give start_seq 3 and end_seq 40."
        " The result is JSON. `messages` lists the messages, oldest first, each with its `seq` and the `message`"
        " itself. An erased message is marked as erased. A withdrawn message, which somebody undid or cleared, comes"
        " without its content. A message that is too long for one result comes in parts: `part_of_its_json` is a part"
        " of its JSON text. If `next` is present, there is more to read: call again with the `cursor` in `next` instead"
        " of record, start_seq and end_seq.",
        {
            "record": IntegerField("The number of a compaction record, to read all messages that the record covers."),
            "start_seq": IntegerField("The seq of the first message to read."),
            "end_seq": IntegerField("The seq of the last message to read. Needs start_seq. Default: start_seq."),
            "cursor": TextField("The `cursor` in `next` of an earlier result, to continue reading.", 50, CURSOR),
            "max_tokens": IntegerField("The maximum length of the result in tokens."),
            "withdrawn": FlagField("Include the content of withdrawn messages. Default: false."),
        },
    ),
    Tool(
        DESCRIBE,
        "List the compaction records of this conversation, newest first. A compaction record says how earlier messages"
        " were replaced or hidden in your view. Use this tool to find out which messages were compacted, when, by whom,"
        " and into which summary. Without arguments, it lists all records. With start_seq and end_seq, it lists only"
        " the records that overlap this range of messages. With record, it returns one record, with as much of its"
        " summary as fits. The result is JSON. Each entry of `records` has the record's number (`record`), its `kind`"
        " (summary, truncation, removal, adoption, rewind, clear or revocation), its `outcome` (applied, rejected,"
        " failed or observed), its `status` (for example active or revoked), the first and last seq"
        " that it covers (`messages`), the `tokens` before and after, the time (`written`), the `actor`, the `model`"
        " and the `summary`. `summary_is_cut` marks a shortened summary. If `next` is present, there may be more"
        " records: call again with the same arguments plus the arguments in `next`.",
        {
            "record": IntegerField("The number of the only record to return. Give no other argument with it."),
            "start_seq": IntegerField("The seq of the first message of a range."),
            "end_seq": IntegerField("The seq of the last message of the range. Needs start_seq. Default: start_seq."),
            "before_record": IntegerField("List only records with a number smaller than this."),
        },
    ),
)


def tools(max_tokens: int) -> tuple[Tool, ...]:
    """Returns the tools, with `max_tokens` as the default and the maximum length of a result."""
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
    """Returns the JSON name of a value's type, with an article."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object"}
    return kinds.get(type(value), "null")
