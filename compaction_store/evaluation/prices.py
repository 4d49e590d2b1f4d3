"""Prices of models, from a file that the user provides. This package contains none, because prices change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput

_MILLION = 1_000_000
_NEEDED = ("input", "output")
_KNOWN = (*_NEEDED, "cache_read", "cache_write")


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The prices of a million tokens of a model. Without prices for the cache, nothing counts as read from it."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def call(self, tokens: int, prefix: int) -> float:
        """Returns the price of a request of this many tokens, of which the first `prefix` were sent before."""
        if self.cache_read is None:
            return tokens * self.input / _MILLION
        fresh = self.input if self.cache_write is None else self.cache_write
        return (prefix * self.cache_read + (tokens - prefix) * fresh) / _MILLION

    def request(self, fresh: int, cache_read: int, cache_write: int) -> float:
        """Returns the price of the input of a request, by its recorded usage."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (fresh * self.input + cache_read * read + cache_write * write) / _MILLION

    def summary(self, fresh: int, output: int, cache_read: int = 0, cache_write: int = 0) -> float:
        """Returns the price of a summary."""
        return self.request(fresh, cache_read, cache_write) + output * self.output / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of some models, and the currency and the date that the file states."""

    models: Mapping[str, ModelPrice]
    currency: str = "USD"
    as_of: str | None = None

    def of(self, model: str | None) -> ModelPrice | None:
        """Returns the price of a model, by its name or the longest listed name that it begins with."""
        if model is None:
            return None
        found = max((name for name in self.models if model.startswith(name)), key=len, default=None)
        return None if found is None else self.models[found]

    @classmethod
    def read(cls, path: Path) -> Prices:
        """Reads a file: `{"currency": "USD", "as_of": "2026-11-01", "models": {NAME: {"input": 3, "output": 15}}}`."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"prices must be a file that can be read, not {path}: {error.strerror}") from None
        except ValueError as error:
            raise InvalidInput(f"{path} must be JSON: {error}") from None
        return cls.of_json(given)

    @classmethod
    def of_json(cls, given: Any) -> Prices:
        models = given.get("models") if isinstance(given, Mapping) else None
        if not isinstance(models, Mapping) or not models:
            raise InvalidInput(
                f'prices must be a JSON object with "models", an object with a price for each name{other(given)}'
            )
        found = {name: _price(name, each) for name, each in models.items()}
        currency, as_of = given.get("currency", "USD"), given.get("as_of")
        if not isinstance(currency, str) or not (as_of is None or isinstance(as_of, str)):
            wrong = as_of if isinstance(currency, str) else currency
            raise InvalidInput(f"currency and as_of of the prices must be text{other(wrong)}")
        return cls(found, currency, as_of)


def _price(name: str, given: Any) -> ModelPrice:
    if not isinstance(given, Mapping) or any(key not in _KNOWN for key in given):
        raise InvalidInput(f"the price of {name!r} must be an object of {', '.join(_KNOWN)}{other(given)}")
    for key in _KNOWN:
        value: Any = given.get(key)
        # This also refuses NaN.
        is_number = type(value) in (int, float) and 0 <= value < _MILLION
        if not is_number and (key in _NEEDED or value is not None):
            raise InvalidInput(
                f"{key} of the price of {name!r} must be a number >= 0 for a million tokens{other(value)}"
            )
    return ModelPrice(**{key: given[key] for key in _KNOWN if given.get(key) is not None})
