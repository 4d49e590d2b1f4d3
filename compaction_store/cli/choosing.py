"""Strategies and summarizers by name, with their options: `sliding-window:retain=10,keep_first=false`.

A name with a dot is an object of one's own, `package.module.name`: a callback, a strategy, or for a summarizer any
callable that is given the elements of a span.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from importlib import import_module
from traceback import walk_tb
from typing import Any

from compaction_store.cli.options import misuse
from compaction_store.compaction.callbacks import check_callback
from compaction_store.errors import InvalidInput, MissingExtra
from compaction_store.strategies import (
    AssistantRuns,
    ClearToolResults,
    Ladder,
    Pipeline,
    SlidingWindow,
    SummaryTree,
)
from compaction_store.summarizers import (
    AnthropicSummarizer,
    ExtractiveSummarizer,
    FallbackSummarizer,
    OpenAISummarizer,
)
from compaction_store.summarizers.openai import client_of

STRATEGIES: dict[str, Callable[..., Any]] = {
    "assistant-runs": AssistantRuns,
    "sliding-window": SlidingWindow,
    "ladder": Ladder,
    "summary-tree": SummaryTree,
    "clear-tool-results": ClearToolResults,
}
SUMMARIZERS = ("extractive", "anthropic", "openai", "none")
# What an option on a command line cannot say.
_NOT_OPTIONS = frozenset({"self", "summarize", "pin", "when", "client", "render", "parameters"})


def strategy_names(incomplete: str) -> list[str]:
    return [name for name in STRATEGIES if name.startswith(incomplete)]


def summarizer_names(incomplete: str) -> list[str]:
    return [name for name in SUMMARIZERS if name.startswith(incomplete)]


def strategy(specs: list[str], summarizers: list[str]) -> Any:
    """What is to run: one strategy, or several as a pipeline."""
    summarize_ = summarize(summarizers)
    chosen = [_strategy(spec, summarize_) for spec in specs]
    found: Any = chosen[0] if len(chosen) == 1 else Pipeline(*chosen)
    try:
        check_callback(found, awaits=False)
    except TypeError as error:
        text = str(error).replace("needs an AsyncStore", "is for AsyncStore, not for the command line")
        raise misuse(text, "--strategy") from None
    return found


def _strategy(spec: str, summarize: Any) -> Any:
    name, options = _parts(spec, "--strategy")
    if "." in name:
        found = _loaded(name, options, "--strategy")
        return _made(found, {}, "--strategy", name) if isinstance(found, type) else found
    kind = STRATEGIES.get(name)
    if kind is None:
        raise misuse(f"no strategy {name!r}: {', '.join(STRATEGIES)}, or package.module.name", "--strategy")
    if "summarize" in inspect.signature(kind).parameters:
        if summarize is None and kind is not Ladder:
            raise misuse(f"{name} needs a summarizer", "--summarizer")
        options["summarize"] = summarize
    return _made(kind, options, "--strategy", name)


def summarize(specs: list[str]) -> Any:
    chosen = [_one_summarizer(spec) for spec in specs]
    if None in chosen and len(chosen) > 1:
        raise misuse("none stands alone", "--summarizer")
    return chosen[0] if len(chosen) == 1 else FallbackSummarizer(*chosen)


def _one_summarizer(spec: str) -> Any:
    name, options = _parts(spec, "--summarizer")
    if "." in name:
        return _loaded(name, options, "--summarizer")
    if name == "none" and not options:
        return None
    if name == "extractive":
        return _made(ExtractiveSummarizer, options, "--summarizer", name)
    if name == "anthropic":
        return _anthropic(options)
    if name == "openai":
        return _openai(options)
    raise misuse(f"no summarizer {spec!r}: {', '.join(SUMMARIZERS)}, or package.module.name", "--summarizer")


def _anthropic(options: dict[str, Any]) -> Any:
    if "model" not in options:
        raise misuse("anthropic needs a model: anthropic:model=NAME", "--summarizer")
    try:
        import anthropic  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra("a summarizer that asks Anthropic's models", "anthropic") from None
    client = anthropic.Anthropic()
    if not any(getattr(client, name, None) for name in ("api_key", "auth_token", "credentials")):
        raise misuse("Anthropic's client finds no key: set ANTHROPIC_API_KEY", "--summarizer")
    return _made(AnthropicSummarizer, options, "--summarizer", "anthropic", client)


def _openai(options: dict[str, Any]) -> Any:
    """A summarizer of a server that speaks OpenAI's API: OpenAI's own, or the one at `base_url`."""
    if "model" not in options:
        raise misuse("openai needs a model: openai:model=NAME[,base_url=URL]", "--summarizer")
    base_url = options.pop("base_url", None)
    if base_url is not None and not isinstance(base_url, str):
        raise misuse("base_url must be an address", "--summarizer")
    # A server of one's own mostly asks for no key, and the SDK insists on one.
    client = client_of(base_url, key_needed=base_url is None)
    if client is None:
        raise misuse("OpenAI's client finds no key: set OPENAI_API_KEY", "--summarizer")
    return _made(OpenAISummarizer, options, "--summarizer", "openai", client)


def _parts(spec: str, option: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = spec.partition(":")
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, given, text = part.partition("=")
        if not given or not key:
            raise misuse(f"{part!r} is no option: name=value", option)
        options[key.replace("-", "_")] = value(text)
    return name, options


def value(text: str) -> Any:
    """JSON where it is JSON, such as 10, 0.5 and false; else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _made(kind: Callable[..., Any], options: dict[str, Any], option: str, name: str, *arguments: Any) -> Any:
    allowed = [known for known in inspect.signature(kind).parameters if known not in _NOT_OPTIONS]
    for key in options:
        if key not in allowed and key != "summarize":
            raise misuse(f"{name} has no option {key!r}: {', '.join(allowed)}", option)
    try:
        return kind(*arguments, **options)
    except (InvalidInput, TypeError) as error:
        raise misuse(f"{name}: {error}", option) from None


def _loaded(name: str, options: dict[str, Any], option: str) -> Any:
    if options:
        raise misuse("an object of your own takes no options here: give it a name in your module, ready made", option)
    module, _, attribute = name.rpartition(".")
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise misuse(f"cannot load {name}: {error}", option) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 — whatever a module of somebody else's does when it is imported
        *_, (frame, line) = walk_tb(error.__traceback__)
        place = (
            f"{error.filename}:{error.lineno}"
            if isinstance(error, SyntaxError)
            else f"{frame.f_code.co_filename}:{line}"
        )
        raise misuse(f"cannot load {name}: {type(error).__name__}, at {place}", option) from None
    finally:
        sys.path.remove("")
