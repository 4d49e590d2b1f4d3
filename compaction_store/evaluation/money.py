"""Computes the money that each compaction cost and saved: measured if the usage of calls was recorded, else modelled.

A compaction takes tokens off every later call until it is replaced or undone. It costs its summarizer's calls, and the
next request from the summary on, which is not in the provider's cache. Measured and modelled figures are kept apart.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.evaluation.judge import SummarizerUse
from compaction_store.evaluation.replay import ModelCall, Replayed, ReplayedFold
from compaction_store.jsonable import AsDict
from compaction_store.messages import documents
from compaction_store.models import Compaction

Basis = Literal["measured", "modelled"]
BASES: tuple[Basis, ...] = ("measured", "modelled")


@dataclass(frozen=True, slots=True)
class FoldMoney(AsDict):
    """The costs and savings of one compaction. `calls` is the number of calls with it in the view.

    `summarizer` is the cost of the summary; None if the price, the usage or the size of the summary is unknown. A
    compaction was `needed` if the next call would not have fitted the window without any compaction; such a compaction
    is not compared. `basis` is "measured" if the usage of the call before the compaction, and of all calls with it, was
    recorded, and if no other program wrote the summary. The cost of another program's summary is modelled.
    """

    record: int
    calls: int
    saved: float
    billed_anew: float
    summarizer: float | None = 0.0
    needed: bool = False
    basis: Basis = "modelled"

    @property
    def net(self) -> float | None:
        return None if self.summarizer is None else self.saved - self.billed_anew - self.summarizer

    @property
    def is_loss(self) -> bool:
        return not self.needed and self.net is not None and self.net < 0

    @property
    def pays_after(self) -> float | None:
        """The number of calls after which the savings equal the cost; None if it is unknown or infinite."""
        if self.summarizer is None or self.saved <= 0 or not self.calls:
            return None
        return (self.billed_anew + self.summarizer) / (self.saved / self.calls)


@dataclass(frozen=True, slots=True)
class MoneySum(AsDict):
    """Costs and savings on one basis, without the compactions that were `needed` or have `unknown` costs."""

    requests: float = 0.0
    compared: int = 0
    saved: float = 0.0
    billed_anew: float = 0.0
    summarizers: float = 0.0
    losing: int = 0
    needed: int = 0
    unknown: int = 0

    @property
    def net(self) -> float:
        return self.saved - self.billed_anew - self.summarizers

    @property
    def folds(self) -> int:
        return self.compared + self.needed + self.unknown


@dataclass(frozen=True, slots=True)
class Money(AsDict):
    """The costs and savings of a thread under a policy.

    `measured` is the cost of the inputs of the calls with recorded usage, and `modelled` that of the other calls,
    computed from the sizes of their views. `wasted` is the cost of summaries that were not used; None if it is unknown.
    `beyond_window` is the number of calls that would not have fitted without compaction; the savings leave these calls
    out.
    """

    currency: str
    measured: float
    modelled: float
    wasted: float | None
    folds: tuple[FoldMoney, ...]
    beyond_window: int

    @property
    def losing(self) -> tuple[FoldMoney, ...]:
        return tuple(fold for fold in self.folds if fold.is_loss)


def money_of(
    run: Replayed, prices: Prices, model: ModelPrice, *, window: int | None, grown: Mapping[int, int]
) -> Money:
    """Computes the costs and savings of a thread. `grown` maps each seq to the tokens of all messages before it."""
    beyond = [window is not None and grown[call.seq] > window for call in run.calls]
    first = {each.first_call: each for each in sorted(run.folds, key=lambda fold: (-fold.prefix, -fold.record))}
    return Money(
        prices.currency,
        sum(model.request(*call.usage) for call in run.calls if call.usage is not None),
        sum(model.call(call.tokens, call.prefix) for call in run.calls if call.usage is None),
        _cost(run.wasted, prices),
        tuple(_of_fold(run, fold, prices, model, beyond, grown, first) for fold in run.folds),
        sum(beyond),
    )


def total(moneys: Iterable[Money], basis: Basis) -> MoneySum:
    """Adds up the costs and savings of threads on one basis."""
    listed = list(moneys)
    folds = [fold for money in listed for fold in money.folds if fold.basis == basis]
    known = [fold for fold in folds if not fold.needed and fold.summarizer is not None]
    return MoneySum(
        sum(getattr(money, basis) for money in listed), len(known), sum(fold.saved for fold in known),
        sum(fold.billed_anew for fold in known), sum(fold.summarizer or 0.0 for fold in known),
        sum(fold.is_loss for fold in folds), sum(fold.needed for fold in folds),
        sum(not fold.needed and fold.summarizer is None for fold in folds),
    )  # fmt: skip


def wasted(moneys: Iterable[Money]) -> float | None:
    """Adds up the costs of summaries that were not used; None if the cost of one is unknown."""
    parts = [money.wasted for money in moneys]
    return None if None in parts else sum(part for part in parts if part is not None)


def advice(folds: Sequence[FoldMoney]) -> str | None:
    """Returns a sentence on the compactions that lost money; None if there are none."""
    losing = [fold for fold in folds if fold.is_loss]
    if not losing:
        return None
    said = f"{len(losing):,} of {len(folds):,} compactions lost money"
    known = [(fold.calls, after) for fold in losing if (after := fold.pays_after) is not None]
    if not known:
        return f"{said}: they took too little off the calls after them; compact less often, and more at once"
    lasted, needed = (sorted(column)[len(known) // 2] for column in zip(*known, strict=True))
    return (
        f"{said}: the median one was in use for {lasted:,} calls and would have paid for itself after {needed:,.0f};"
        " compact less often, and more at once (a lower target)"
    )


def _of_fold(
    run: Replayed,
    fold: ReplayedFold,
    prices: Prices,
    model: ModelPrice,
    beyond: Sequence[bool],
    grown: Mapping[int, int],
    first: Mapping[int, ReplayedFold],
) -> FoldMoney:
    end = run.ends.get(fold.record, len(run.calls))
    spans = zip(run.calls[fold.first_call : end], beyond[fold.first_call : end], strict=True)
    with_it = [call for call, is_beyond in spans if not is_beyond]
    taken_off = fold.tokens_before - fold.tokens_after
    around = run.calls[max(0, fold.first_call - 1) : end]
    is_measured = bool(around) and not fold.is_observed and all(call.usage is not None for call in around)
    if is_measured:
        saved = sum(_as_in(call, abs(taken_off), model) for call in with_it)
    else:
        saved = len(with_it) * model.call(abs(taken_off), abs(taken_off))
    billed_anew = 0.0
    # If several folds come before one call, the call is billed again for everything after the place where the first of
    # them stands in the view. So only that first fold gets the cost.
    if 0 < fold.first_call < len(run.calls) and first[fold.first_call] is fold:
        before, call = run.calls[fold.first_call - 1], run.calls[fold.first_call]
        # The tokens of the summary, and those of the previous call after the span that are still in the view.
        modelled = max(0, before.tokens - fold.prefix - fold.tokens_before) + fold.tokens_after
        again = _measured_again(before, call, grown) if is_measured else min(modelled, call.tokens - call.prefix)
        billed_anew = model.call(again, 0) - model.call(again, again)
    needed = fold.first_call < len(beyond) and beyond[fold.first_call]
    use = {} if fold.summarizer is None or fold.use is None else {fold.summarizer: fold.use}
    summarizer = _modelled_summary(run, fold, model) if fold.is_observed else _cost(use, prices)
    return FoldMoney(
        fold.record, end - fold.first_call, saved if taken_off >= 0 else -saved, billed_anew, summarizer, needed,
        "measured" if is_measured else "modelled",
    )  # fmt: skip


def _modelled_summary(run: Replayed, fold: ReplayedFold, model: ModelPrice) -> float | None:
    """Returns the price of a summary by a program, as if the view was mostly read from the cache; None if unknown."""
    if not fold.tokens_after:
        return None
    cached = run.calls[fold.first_call - 1].tokens if fold.first_call else 0
    read = fold.prefix + fold.tokens_before
    return model.call(read, min(read, cached)) + model.summary(0, fold.tokens_after)


def _measured_again(before: ModelCall, call: ModelCall, grown: Mapping[int, int]) -> int:
    """Returns the tokens that were not read from the cache, without those of messages since the previous call."""
    assert before.usage is not None  # noqa: S101 — it is measured
    assert call.usage is not None  # noqa: S101
    if not before.usage.cache_read and not before.usage.cache_write:
        # Nothing was cached, so nothing was lost.
        return 0
    return max(0, call.usage.fresh + call.usage.cache_write - (grown[call.seq] - grown[before.seq]))


def _as_in(call: ModelCall, tokens: int, model: ModelPrice) -> float:
    """Returns the price of additional tokens at the start of a call, which are cached if the call used the cache."""
    assert call.usage is not None  # noqa: S101 — it is measured
    if call.usage.cache_read:
        return model.request(0, tokens, 0)
    return model.request(0, 0, tokens) if call.usage.cache_write else model.request(tokens, 0, 0)


def _cost(uses: Mapping[str, SummarizerUse], prices: Prices) -> float | None:
    """Returns the cost of summarizers; None if a price or a usage is unknown. Summarizers without a model are free."""
    spent = 0.0
    for name, use in uses.items():
        if use.without_usage:
            return None
        if use.tokens:
            if (price := prices.of(name)) is None:
                return None
            spent += price.summary(use.input_tokens, use.output_tokens, use.cache_read, use.cache_write)
    return spent


# ---- prices of models, from a file that the user provides. This package has none, because prices change

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

    def spent(self, record: Compaction) -> float | None:
        """Returns what the calls for a record cost, those that failed included; None if a price or usage is unknown."""
        calls = record.failed_before
        # If all summarizers failed, the last one is in the list.
        if not calls or record.outcome != "failed":
            calls = [*calls, {"model": record.model, "usage": record.usage}]
        uses: dict[str, SummarizerUse] = {}
        for call in calls:
            name, usage = call.get("model"), call.get("usage")
            use = uses.setdefault(name if isinstance(name, str) else "", SummarizerUse())
            use.add(usage if isinstance(usage, Mapping) else None, by_model=bool(name))
        return _cost(uses, self)

    @classmethod
    def read(cls, path: Path) -> Prices:
        """Reads a file: `{"currency": "USD", "as_of": "2026-11-01", "models": {NAME: {"input": 3, "output": 15}}}`."""
        try:
            given = documents.whole(path.read_bytes().removeprefix(BOM_UTF8))
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
                f'prices must be a JSON object with "models", an object of prices by model{other(given)}'
            )
        found = {name: _price(name, each) for name, each in models.items()}
        currency, as_of = given.get("currency", "USD"), given.get("as_of")
        if not isinstance(currency, str) or _CURRENCY.fullmatch(currency) is None:
            raise InvalidInput(f"currency of the prices must be a code such as USD, or a sign, not {_shown(currency)}")
        if as_of is not None and not _is_date(as_of):
            raise InvalidInput(f"as_of of the prices must be a date such as 2026-11-01, not {_shown(as_of)}")
        return cls(found, currency, as_of)


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
        if not (type(value) in (int, float) and 0 <= value < _MILLION) and (key in _NEEDED or value is not None):
            raise InvalidInput(
                f"{key} of the price of {name!r} must be a number >= 0 and < {_MILLION:,} for a million tokens,"
                f" not {_shown(value)}"
            )
    return ModelPrice(**{key: given[key] for key in _KNOWN if given.get(key) is not None})
