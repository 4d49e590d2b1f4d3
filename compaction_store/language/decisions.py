"""Recognizes sentences that say what was decided, what was done and why, in ten languages.

Such sentences have few names, so a summarizer that ranks sentences by their names would leave them out. The languages
are the same as in `orders`.
"""

from __future__ import annotations

import re

from compaction_store.module_data import ModuleData

_DATA = ModuleData(__file__)
_LATIN = _DATA.pattern("latin")
_OTHER = _DATA.pattern("other")
# These search text in lower case, which is several times as fast as ignoring the case.
_IN_ASCII = re.compile(_LATIN)
_IN_ANY = re.compile(f"{_LATIN}|{_OTHER}")


def decides(sentence: str) -> bool:
    """Returns whether a sentence says what was decided, done or found."""
    lowered = sentence.replace("\u2019", "'").lower()
    return (_IN_ASCII if lowered.isascii() else _IN_ANY).search(lowered) is not None
