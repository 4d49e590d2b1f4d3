"""What telemetry says of a result, a request and an answer, under the names that OpenTelemetry's conventions give it.

Numbers, and names of operations, models and errors. What anybody said is in `said` alone, which is asked only where
content was asked for. Another's values are taken only where they are of the kind they should be: an answer that makes
no sense is told as far as it does, and never an error of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from compaction_store.errors import DatabaseError

Attributes = dict[str, str | int | float | tuple[str, ...]]

#: What a store's methods are called, and what a span of each is called after.
OPERATIONS = (
    "append", "load", "set_metadata", "view", "message", "thread", "compact", "fit", "plan", "revoke", "compaction",
    "tree", "explain", "seen_by", "verify", "checkpoint", "redact", "erase", "hold", "release", "retain",
    "import_bundle",
)  # fmt: skip
OUTCOMES = ("applied", "rejected", "failed", "observed")
# As the conventions advise; the first are the databases'.
DATABASE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
MODEL_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

_OURS = "compaction_store"
_LONGEST = 255
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_REQUEST = {"max_tokens": int, "max_completion_tokens": int, "temperature": float, "top_p": float, "top_k": int}
_PROVIDERS = {
    "Bedrock": "aws.bedrock", "Vertex": "gcp.vertex_ai", "Foundry": "azure.ai.inference",
    "AzureOpenAI": "azure.ai.openai", "OpenAI": "openai",
}  # fmt: skip


def plain(text: str) -> str:
    """A name as an exporter can send it, whatever it is made of."""
    return text.encode(errors="replace")[:_LONGEST].decode(errors="ignore")


def about(error: BaseException) -> Attributes:
    """The kind of an error: its type, and what Postgres called it."""
    said: Attributes = {"error.type": type(error).__qualname__}
    if isinstance(error, DatabaseError) and error.sqlstate is not None:
        said["db.response.status_code"] = error.sqlstate
    return said


def server(host: str | None, port: int | None, database: str | None) -> Attributes:
    """The attributes of a database server: where statements go, never the login."""
    found: Attributes = {"db.namespace": f"{plain(database)}|{_OURS}" if database else _OURS}
    if host is not None:
        found["server.address"] = plain(host)
        if port is not None:
            found["server.port"] = port
    return found


# ---- results of a store's methods


def result(operation: str, given: Any) -> Attributes:
    """What came of an operation, in numbers."""
    describe = _RESULTS.get(operation)
    return {} if describe is None else {f"{_OURS}.{name}": value for name, value in describe(given)}


def saved(run: Any) -> tuple[int, int] | None:
    """The tokens of a thread's view before a run and after it; None where nothing was applied."""
    if not run.applied:
        return None
    applied = [record for record in run if record.outcome == "applied"]
    return run.view.tokens + sum(r.tokens_before - r.tokens_after for r in applied), run.view.tokens


def outcomes(run: Any) -> Counter[tuple[str, str]]:
    """How many records of each outcome and kind."""
    return Counter((record.outcome, record.kind) for record in run)


_Said = Iterator[tuple[str, Any]]


def _messages(messages: Any) -> _Said:
    yield "messages", len(messages)
    yield "tokens", sum(message.tokens for message in messages)
    yield "pos", messages[-1].pos


def _view(view: Any) -> _Said:
    yield "pos", view.pos
    yield "elements", len(view.elements)
    yield "tokens", view.tokens


def _run(run: Any) -> _Said:
    yield "reason", run.reason
    counts = Counter(record.outcome for record in run)
    yield from ((f"records.{outcome}", counts[outcome]) for outcome in OUTCOMES if counts[outcome])
    if (tokens := saved(run)) is not None:
        yield from zip(("tokens.before", "tokens.after"), tokens, strict=True)
    if run.errors:
        yield "errors", tuple(type(error).__qualname__ for error in run.errors)


def _plan(plan: Any) -> _Said:
    yield "reason", plan.reason
    yield "tokens.before", plan.before.tokens
    yield "tokens.after", plan.after.tokens


def _report(report: Any) -> _Said:
    yield "level", report.level
    yield "entries", report.entries
    yield "findings", len(report.findings)


def _seen(seen: Any) -> _Said:
    yield "evidence", seen.evidence
    yield "pos", seen.view.pos


_RESULTS: dict[str, Callable[[Any], _Said]] = {
    "append": _messages, "view": _view, "fit": _view, "compact": _run, "plan": _plan, "verify": _report,
    "seen_by": _seen,
}  # fmt: skip


# ---- calls of models


def asked(client: Any, parameters: Mapping[str, Any]) -> Attributes:
    """A request of the Messages API, by whatever way it goes."""
    told: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _provider(client)}
    if isinstance(model := parameters.get("model"), str):
        told["gen_ai.request.model"] = plain(model)
    url = getattr(client, "base_url", None)
    if isinstance(host := getattr(url, "host", None), str) and host:
        told["server.address"] = plain(host)
        port = getattr(url, "port", None)
        told["server.port"] = port if isinstance(port, int) else 80 if getattr(url, "scheme", "") == "http" else 443
    return told


def settings(parameters: Mapping[str, Any]) -> Attributes:
    """What shapes the answer to a request."""
    told: Attributes = {}
    for name, kind in _REQUEST.items():
        if isinstance(value := parameters.get(name), int | float):
            told[f"gen_ai.request.{name.replace('completion_', '')}"] = kind(value)
    return told


def _provider(client: Any) -> str:
    name = type(client).__name__
    return next((provider for part, provider in _PROVIDERS.items() if part in name), "anthropic")


def answered(answer: Mapping[str, Any]) -> Attributes:
    """What an answer says of itself, without what it says."""
    told: Attributes = {}
    for name, field in (("model", "model"), ("id", "id")):
        if isinstance(value := answer.get(field), str):
            told[f"gen_ai.response.{name}"] = plain(value)
    if isinstance(reason := answer.get("stop_reason"), str):
        told["gen_ai.response.finish_reasons"] = (plain(reason),)
    return told


def used(answer: Mapping[str, Any]) -> dict[str, int]:
    """The tokens that are paid for, in and out: of all passes, where the API tells of several."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return {}
    passes = [one for one in usage.get("iterations") or () if isinstance(one, dict)] or [usage]
    return {"input": _sum(passes, _USAGE), "output": _sum(passes, ("output_tokens",))}


def _sum(usages: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int:
    found = [usage.get(name) for usage in usages for name in names]
    return sum(value for value in found if isinstance(value, int))


def refused(error: Exception) -> str:
    """What kind of error a model's API answered with, or its client raised."""
    status = getattr(error, "status_code", None)
    return str(status) if isinstance(status, int) else type(error).__qualname__


# ---- what was said


def said(parameters: Mapping[str, Any]) -> Attributes:
    """The content of a request."""
    told = {"gen_ai.input.messages": _json([_message(one) for one in parameters.get("messages") or ()])}
    if system := parameters.get("system"):
        told["gen_ai.system_instructions"] = _json(_parts(system))
    return {**told}


def answered_with(answer: Mapping[str, Any]) -> Attributes:
    """The content of an answer."""
    message = {"role": "assistant", "parts": _parts(answer.get("content")), "finish_reason": answer.get("stop_reason")}
    return {"gen_ai.output.messages": _json([message])}


def _message(given: Any) -> dict[str, Any]:
    return {"role": given.get("role"), "parts": _parts(given.get("content"))}


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(block) for block in content or () if isinstance(block, dict)]


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "content": block.get("text")}
    if kind == "thinking":
        return {"type": "reasoning", "content": block.get("thinking")}
    if kind == "tool_use":
        return {"type": "tool_call", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
    if kind == "tool_result":
        return {"type": "tool_call_response", "id": block.get("tool_use_id"), "response": block.get("content")}
    return dict(block)


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
