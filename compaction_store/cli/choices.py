"""Creates strategies and summarizers from options such as `sliding-window:retain=10,keep_first=false`.

A name with dots, `package.module.name`, is an object in a user's module. A strategy must be a callback, a `Strategy` or
a class that makes one without arguments. A summarizer must be a callable that takes the elements of a span.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from importlib import import_module
from traceback import walk_tb
from typing import Any

from compaction_store.cli.bundles import misuse
from compaction_store.errors import InvalidInput, MissingExtra

# The names on the command line, and the classes in `compaction_store.strategies`.
STRATEGIES = {
    "assistant-runs": "AssistantRuns",
    "sliding-window": "SlidingWindow",
    "ladder": "Ladder",
    "summary-tree": "SummaryTree",
    "clear-tool-results": "ClearToolResults",
}
SUMMARIZERS = ("state", "anthropic", "openai", "none")
# Parameters whose values a command line cannot express.
_NOT_OPTIONS = frozenset({"self", "summarize", "pin", "when", "client", "render", "parameters"})


def strategy(specs: list[str], summarizers: list[str]) -> Any:
    """Returns the strategy to run. Several strategies become a pipeline."""
    from compaction_store.compaction.callbacks import check_callback
    from compaction_store.strategies import Pipeline

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
    from compaction_store import strategies

    name, options = _parts(spec, "--strategy")
    if "." in name:
        found = _loaded(name, options, "--strategy")
        return _made(found, {}, "--strategy", name) if isinstance(found, type) else found
    if name not in STRATEGIES:
        raise misuse(f"must be {', '.join(STRATEGIES)} or package.module.name, not {name!r}", "--strategy")
    kind: Callable[..., Any] = getattr(strategies, STRATEGIES[name])
    if "summarize" in inspect.signature(kind).parameters:
        if summarize is None and kind is not strategies.Ladder:
            raise misuse(f"{name} needs a summarizer other than none", "--summarizer")
        options["summarize"] = summarize
    return _made(kind, options, "--strategy", name)


def summarize(specs: list[str], option: str = "--summarizer") -> Any:
    from compaction_store.summarizers import FallbackSummarizer

    chosen = [_one_summarizer(spec, option) for spec in specs]
    if None in chosen and len(chosen) > 1:
        raise misuse("none must not be combined with other summarizers", option)
    return chosen[0] if len(chosen) == 1 else FallbackSummarizer(*chosen)


def _one_summarizer(spec: str, option: str) -> Any:
    from compaction_store.summarizers import StateSummary

    if spec.startswith(("state:anthropic", "state:openai")):
        return _made(StateSummary, {}, option, "state", _one_summarizer(spec.removeprefix("state:"), option))
    name, options = _parts(spec, option)
    if "." in name:
        return _loaded(name, options, option)
    if name == "none" and not options:
        return None
    if name == "state":
        return _made(StateSummary, options, option, name)
    if name in ("anthropic", "openai"):
        return (_anthropic if name == "anthropic" else _openai)(options, option)
    raise misuse(f"must be {', '.join(SUMMARIZERS)} or package.module.name, not {spec!r}", option)


def _anthropic(options: dict[str, Any], option: str) -> Any:
    from compaction_store.summarizers import AnthropicSummarizer

    if "model" not in options:
        raise misuse("anthropic needs a model: anthropic:model=NAME", option)
    try:
        import anthropic
    except ImportError:
        raise MissingExtra("the summarizer anthropic", "anthropic") from None
    client = anthropic.Anthropic()
    if not any(getattr(client, name, None) for name in ("api_key", "auth_token", "credentials")):
        raise misuse("anthropic finds no API key: set ANTHROPIC_API_KEY", option)
    return _made(AnthropicSummarizer, options, option, "anthropic", client)


def _openai(options: dict[str, Any], option: str) -> Any:
    """Returns a summarizer for OpenAI's API, or for the compatible server at `base_url`."""
    from compaction_store.summarizers import OpenAISummarizer
    from compaction_store.summarizers.openai import client_of

    if "model" not in options:
        raise misuse("openai needs a model: openai:model=NAME[,base_url=URL]", option)
    base_url = options.pop("base_url", None)
    if base_url is not None and not isinstance(base_url, str):
        raise misuse(f"base_url must be a URL, not {base_url!r}", option)
    # The SDK requires a key, but most local servers do not.
    client = client_of(base_url, key_needed=base_url is None)
    if client is None:
        raise misuse("openai finds no API key: set OPENAI_API_KEY", option)
    return _made(OpenAISummarizer, options, option, "openai", client)


def _parts(spec: str, option: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = spec.partition(":")
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, given, text = part.partition("=")
        if not given or not key:
            raise misuse(f"an option must be NAME=VALUE, not {part!r}", option)
        options[key.replace("-", "_")] = value(text)
    return name, options


def value(text: str) -> Any:
    """Parses JSON, such as 10, 0.5 and false; returns other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _made(kind: Callable[..., Any], options: dict[str, Any], option: str, name: str, *arguments: Any) -> Any:
    allowed = [known for known in inspect.signature(kind).parameters if known not in _NOT_OPTIONS]
    for key in options:
        if key not in allowed and key != "summarize":
            raise misuse(f"an option of {name} must be one of {', '.join(allowed)}, not {key!r}", option)
    try:
        return kind(*arguments, **options)
    except (InvalidInput, TypeError) as error:
        raise misuse(f"{name}: {error}", option) from None


def _loaded(name: str, options: dict[str, Any], option: str) -> Any:
    if options:
        raise misuse("package.module.name must not have options: set them where your module creates the object", option)
    module, _, attribute = name.rpartition(".")
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise misuse(f"cannot load {name}: {error}", option) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 — importing a user's module may raise anything
        *_, (frame, line) = walk_tb(error.__traceback__)
        file, at = (
            (error.filename, error.lineno) if isinstance(error, SyntaxError) else (frame.f_code.co_filename, line)
        )
        raise misuse(f"cannot load {name}: {type(error).__name__}, at {file}:{at}", option) from None
    finally:
        sys.path.remove("")
