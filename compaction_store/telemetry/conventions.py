"""The span attributes of results, requests and answers, with the names of OpenTelemetry's semantic conventions.

The values are numbers, names (of operations, models, servers and errors, for example) and the reasons of runs. Only
`request_content` and `answer_content` return content. Values from an API are used only if they have the expected type,
so a malformed answer raises no error here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from compaction_store.errors import DatabaseError
from compaction_store.messages.parts import row_of
from compaction_store.models.vocabulary import COMPACTED, OUTCOMES
from compaction_store.module_data import ModuleData

Attributes = dict[str, str | int | float | tuple[str, ...]]

_DATA = ModuleData(__file__).values
#: The methods of a store that have a span, by the group that has them.
OPERATIONS: dict[str, tuple[str, ...]] = {group: tuple(names.split()) for group, names in _DATA["operations"].items()}
#: The arguments of each histogram.
HISTOGRAMS: dict[str, dict[str, Any]] = _DATA["histograms"]

_OURS = "compaction_store"
_LONGEST = 255
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_REQUEST = {"max_tokens": int, "max_completion_tokens": int, "temperature": float, "top_p": float, "top_k": int}
_PROVIDERS: dict[str, str] = _DATA["providers"]


def plain(text: str) -> str:
    """Returns a name as valid UTF-8 of bounded length, because exporters need that."""
    return text.encode(errors="replace")[:_LONGEST].decode(errors="ignore")


def error_attributes(error: BaseException) -> Attributes:
    """Returns the type and the SQLSTATE of an error as attributes."""
    attributes: Attributes = {"error.type": type(error).__qualname__}
    if isinstance(error, DatabaseError) and error.sqlstate is not None:
        attributes["db.response.status_code"] = error.sqlstate
    return attributes


def server(host: str | None, port: int | None, database: str | None) -> Attributes:
    """Returns the database and the address of a server as attributes, without the login."""
    attributes: Attributes = {"db.namespace": f"{plain(database)}|{_OURS}" if database else _OURS}
    if host is not None:
        attributes["server.address"] = plain(host)
        if port is not None:
            attributes["server.port"] = port
    return attributes


def result_attributes(operation: str, result: Any) -> Attributes:
    found = {f"{_OURS}.{name}": value for name, value in _facts(operation, result)}
    if operation in _WITH_VIEW and any(e.number is not None for e in getattr(result, "view", result).elements):
        found[COMPACTED] = True
    return found


def tokens_of_run(run: Any) -> tuple[int, int] | None:
    """Returns the number of tokens of a view before and after a run, or None if the run applied nothing."""
    if not run.applied:
        return None
    applied = [record for record in run if record.outcome == "applied"]
    return run.view.tokens + sum(r.tokens_before - r.tokens_after for r in applied), run.view.tokens


def _run(run: Any) -> Iterator[tuple[str, Any]]:
    yield "reason", run.reason
    counts = Counter(record.outcome for record in run)
    yield from ((f"records.{outcome}", counts[outcome]) for outcome in OUTCOMES if counts[outcome])
    if (tokens := tokens_of_run(run)) is not None:
        yield from zip(("tokens.before", "tokens.after"), tokens, strict=True)
    if run.errors:
        yield "errors", tuple(type(error).__qualname__ for error in run.errors)


def _facts(operation: str, result: Any) -> Iterable[tuple[str, Any]]:
    if operation in ("compact", "repair"):
        return _run(result)
    if operation == "append":
        return ("messages", len(result)), ("tokens", sum(m.tokens for m in result)), ("pos", result[-1].pos)
    read = ((name, attrgetter(path)(result)) for name, path in _DATA["results"].get(operation, {}).items())
    return ((name, len(value) if isinstance(value, tuple | list) else value) for name, value in read)


_WITH_VIEW = ("view", "fit", "compact", "repair", "seen_by")


def request_attributes(client: Any, parameters: Mapping[str, Any]) -> Attributes:
    """Returns the provider, the model and the server of a request as attributes."""
    kind = type(client).__name__
    provider = next((provider for part, provider in _PROVIDERS.items() if part in kind), "anthropic")
    attributes: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
    if isinstance(model := parameters.get("model"), str):
        attributes["gen_ai.request.model"] = plain(model)
    url = getattr(client, "base_url", None)
    if isinstance(host := getattr(url, "host", None), str) and host:
        attributes["server.address"] = plain(host)
        default = 80 if getattr(url, "scheme", "") == "http" else 443
        attributes["server.port"] = port if isinstance(port := getattr(url, "port", None), int) else default
    return attributes


def request_settings(parameters: Mapping[str, Any]) -> Attributes:
    """Returns the sampling parameters and the limits of a request as attributes."""
    return {
        f"gen_ai.request.{name.replace('completion_', '')}": kind(value)
        for name, kind in _REQUEST.items()
        if isinstance(value := parameters.get(name), int | float)
    }


def answer_attributes(answer: Mapping[str, Any]) -> Attributes:
    """Returns the model, the id and the stop reason of an answer as attributes."""
    attributes: Attributes = {}
    for name in ("model", "id"):
        if isinstance(value := answer.get(name), str):
            attributes[f"gen_ai.response.{name}"] = plain(value)
    if isinstance(reason := answer.get("stop_reason"), str):
        attributes["gen_ai.response.finish_reasons"] = (plain(reason),)
    return attributes


def token_usage(answer: Mapping[str, Any]) -> dict[str, int]:
    """Returns the numbers of billed input and output tokens. Sums the passes if the API reports several."""
    if not isinstance(usage := answer.get("usage"), dict):
        return {}
    passes = [one for one in usage.get("iterations") or () if isinstance(one, dict)] or [usage]
    return {"input": _sum(passes, _USAGE), "output": _sum(passes, ("output_tokens",))}


def _sum(usages: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int:
    return sum(value for usage in usages for name in names if isinstance(value := usage.get(name), int))


def request_content(parameters: Mapping[str, Any]) -> Attributes:
    messages = parameters.get("messages") or ()
    if isinstance(text := parameters.get("input"), str):
        messages = ({"role": "user", "content": text},)
    said = [{"role": one.get("role"), "parts": _parts(one.get("content"))} for one in messages]
    attributes: Attributes = {"gen_ai.input.messages": _json(said)}
    if system := parameters.get("system", parameters.get("instructions")):
        attributes["gen_ai.system_instructions"] = _json(_parts(system))
    return attributes


def answer_content(answer: Mapping[str, Any]) -> Attributes:
    message = {"role": "assistant", "parts": _parts(answer.get("content")), "finish_reason": answer.get("stop_reason")}
    return {"gen_ai.output.messages": _json([message])}


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(block) for block in content or () if isinstance(block, dict)]


def _part(block: dict[str, Any]) -> dict[str, Any]:
    row = row_of(block)
    if row.name == "text":
        return {"type": "text", "content": block.get("text")}
    if row.name == "thinking":
        return {"type": "reasoning", "content": block.get("thinking")}
    if row.step == "call" and row.is_clients:
        name, given = block.get("name"), row.input_of(block)[1]
        return {"type": "tool_call", "id": row.id_of(block), "name": name, "arguments": given}
    if row.step == "result" and row.is_clients:
        return {"type": "tool_call_response", "id": row.id_of(block), "response": block.get(row.returns)}
    return dict(block)


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
