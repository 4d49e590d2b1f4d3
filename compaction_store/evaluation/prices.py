"""Reads prices of models from a file that the user provides. This package has no prices, because prices change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput

_MILLION = 1_000_000
_NEEDED = ("input", "output")
_KNOWN = (*_NEEDED, "cache_read", "cache_write")
# The suffix that providers add to a model's name for one version. A name with another suffix is another model's.
_VERSION = re.compile(r"[-@](?:latest|\d{4}|\d{6}|\d{8}|\d{4}-\d{2}-\d{2})")
# The maximum number of characters of a wrong value in an error.
_SHOWN = 40
_CURRENCY = re.compile(r"[^\W\d_]{1,10}|\S")


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The prices of a million tokens of a model. Without prices for the cache, cached tokens cost as much as others."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def call(self, tokens: int, prefix: int) -> float:
        """Returns the price of a request of `tokens` tokens, of which the previous request had the first `prefix`."""
        if self.cache_read is None:
            return tokens * self.input / _MILLION
        fresh = self.input if self.cache_write is None else self.cache_write
        return (prefix * self.cache_read + (tokens - prefix) * fresh) / _MILLION

    def request(self, fresh: int, cache_read: int, cache_write: int) -> float:
        """Returns the price of the input of a request from its recorded usage."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (fresh * self.input + cache_read * read + cache_write * write) / _MILLION

    def summary(self, fresh: int, output: int, cache_read: int = 0, cache_write: int = 0) -> float:
        """Returns the price of a summary."""
        return self.request(fresh, cache_read, cache_write) + output * self.output / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of models, with the currency and the date that the file states."""

    models: Mapping[str, ModelPrice]
    currency: str = "USD"
    as_of: str | None = None

    def of(self, model: str | None) -> ModelPrice | None:
        """Returns the prices of a model. Its name may end in a date or `-latest` that the name in the file lacks."""
        if model is None or model in self.models:
            return None if model is None else self.models[model]
        return next((
            price for name, price in self.models.items()
            if model.startswith(name) and _VERSION.fullmatch(model, len(name))
        ), None)  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Prices:
        """Reads a file: `{"currency": "USD", "as_of": "2026-11-01", "models": {NAME: {"input": 3, "output": 15}}}`."""
        try:
            given = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_twins)
        except OSError as error:
            raise InvalidInput(f"prices must be a file that can be read, not {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} must be JSON: {error}") from None
        return cls.of_json(given)

    @classmethod
    def of_json(cls, given: Any) -> Prices:
        models = given.get("models") if isinstance(given, Mapping) else None
        if not isinstance(models, Mapping) or not models:
            raise InvalidInput(
                f'prices must be a JSON object with "models", an object of prices by model{other(given)}'
            )
        found = {name: _price(name, each) for name, each in models.items()}
        currency, as_of = given.get("currency", "USD"), given.get("as_of")
        if not isinstance(currency, str) or _CURRENCY.fullmatch(currency) is None:
            raise InvalidInput(f"currency of the prices must be a code such as USD, or a sign, not {_shown(currency)}")
        if as_of is not None and not _is_date(as_of):
            raise InvalidInput(f"as_of of the prices must be a date such as 2026-11-01, not {_shown(as_of)}")
        return cls(found, currency, as_of)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=lambda each: type(each).__name__)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _price(name: str, given: Any) -> ModelPrice:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInput("the name of a model with a price must not be empty")
    if not isinstance(given, Mapping) or any(key not in _KNOWN for key in given):
        raise InvalidInput(f"the price of {name!r} must be an object of {', '.join(_KNOWN)}{other(given)}")
    for key in _KNOWN:
        value: Any = given.get(key)
        # This also refuses NaN.
        is_number = type(value) in (int, float) and 0 <= value < _MILLION
        if not is_number and (key in _NEEDED or value is not None):
            raise InvalidInput(
                f"{key} of the price of {name!r} must be a number >= 0 and < {_MILLION:,} for a million tokens,"
                f" not {_shown(value)}"
            )
    return ModelPrice(**{key: given[key] for key in _KNOWN if given.get(key) is not None})
