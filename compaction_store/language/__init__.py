"""Reads human language: names, words, sentences, quotations, orders, decisions and credentials in a text.

Everything is decided by fixed patterns, without a model, so the same text always gives the same answer. The time is
linear in the length of the text.
"""

from __future__ import annotations

from compaction_store.language.names import Name, NameReader, named_at, names
from compaction_store.language.orders import Order, is_order, orders
from compaction_store.language.quotations import quotations
from compaction_store.language.secrets import has_secret, masked
from compaction_store.language.sentences import sentences

__all__ = [
    "Name",
    "NameReader",
    "Order",
    "has_secret",
    "is_order",
    "masked",
    "named_at",
    "names",
    "orders",
    "quotations",
    "sentences",
]
