"""Models the money that each compaction cost and saved, from the sizes of the views.

A compaction takes tokens off every later call until it is replaced or undone. Against that stand the summarizer, and
the part of the next request after the summary, which the provider's cache does not have any more. Calls that would not
have fitted the window without compaction are counted apart: there is nothing to compare them with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compaction_store.evaluation.prices import ModelPrice, Prices
from compaction_store.evaluation.replaying import Folded, Replayed
from compaction_store.jsonable import AsDict


@dataclass(frozen=True, slots=True)
class FoldMoney(AsDict):
    """The money of one compaction, without its summarizer. `calls` are those with it in the view.

    If it was `needed`, the next call would not have fitted without compaction, and there is nothing to compare it with.
    """

    record: int
    calls: int
    saved: float
    billed_anew: float
    needed: bool = False

    @property
    def net(self) -> float:
        return self.saved - self.billed_anew


@dataclass(frozen=True, slots=True)
class Money(AsDict):
    """The money of a thread under a policy.

    `summarizers` is None if a summarizer's price or usage is unknown. `beyond_window` are calls that would not have
    fitted without compaction; they are in `calls` and in no saving.
    """

    currency: str
    calls: float
    summarizers: float | None
    folds: tuple[FoldMoney, ...]
    beyond_window: int

    @property
    def net(self) -> float | None:
        """The savings of the compactions less their costs; None if a part is unknown."""
        if self.summarizers is None:
            return None
        return sum(fold.net for fold in self.folds if not fold.needed) - self.summarizers

    @property
    def losing(self) -> tuple[FoldMoney, ...]:
        return tuple(fold for fold in self.folds if fold.net < 0 and not fold.needed)


def money_of(
    run: Replayed, prices: Prices, model: ModelPrice, *, window: int | None, grown: Mapping[int, int]
) -> Money:
    """Computes the money of a thread. `grown` has the tokens of all its messages up to each seq of a call."""
    beyond = [window is not None and grown[call.seq] > window for call in run.calls]
    return Money(
        prices.currency,
        sum(model.call(call.tokens, call.prefix) for call in run.calls),
        _summarizers(run, prices),
        tuple(_of_fold(run, fold, model, beyond) for fold in run.folds),
        sum(beyond),
    )  # fmt: skip


def _of_fold(run: Replayed, fold: Folded, model: ModelPrice, beyond: list[bool]) -> FoldMoney:
    end = run.ends.get(fold.record, len(run.calls))
    taken_off = fold.tokens_before - fold.tokens_after
    counted = sum(not each for each in beyond[fold.first_call : end])
    saved = counted * (model.call(taken_off, taken_off) if taken_off >= 0 else -model.call(-taken_off, -taken_off))
    billed_anew = 0.0
    if 0 < fold.first_call < len(run.calls) and _is_first_of_its_call(run, fold):
        call, before = run.calls[fold.first_call], run.calls[fold.first_call - 1]
        # Of the call before, this much stands after the fold's place and is still in the view.
        again = max(0, before.tokens - fold.prefix - fold.tokens_before) + fold.tokens_after
        again = min(again, call.tokens - call.prefix)
        billed_anew = model.call(again, 0) - model.call(again, again)
    needed = fold.first_call < len(beyond) and beyond[fold.first_call]
    return FoldMoney(fold.record, end - fold.first_call, saved, billed_anew, needed)


def _is_first_of_its_call(run: Replayed, fold: Folded) -> bool:
    """Of several folds before one call, the one that stands first makes the rest be billed anew."""
    together = [each for each in run.folds if each.first_call == fold.first_call]
    return min(together, key=lambda each: (each.prefix, each.record)).record == fold.record


def _summarizers(run: Replayed, prices: Prices) -> float | None:
    total = 0.0
    for name, use in run.summarizers.items():
        if not use.input_tokens and not use.output_tokens:
            if prices.of(name) is not None and use.without_usage:
                return None
            continue
        price = prices.of(name)
        if price is None:
            return None
        total += price.summary(use.input_tokens, use.output_tokens)
    return total
