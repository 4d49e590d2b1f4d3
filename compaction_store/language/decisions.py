"""Recognizes sentences that say what was decided, what was done and why, in ten languages.

Such sentences have few names, so a summarizer that ranks sentences by their names would leave them out. The languages
are the same as in `orders`.
"""

from __future__ import annotations

import re

_LATIN = (
    r"\b(?:i|we)(?:'ll| will|'ve| have| decided| chose| agreed| should)\b"
    r"|\b(?:let'?s|let me|decided|agreed|chosen?|settled|going with|instead|because|so that|in order to|turns out"
    r"|root cause|fixed|solved|works now)\b|\bthe (?:cause|reason|issue|problem|bug|fix|plan|decision|solution)\b"
    r"|\b(?:entschieden|beschlossen|stattdessen|weil|damit|deshalb|daher|behoben|gelöst|vereinbart|ursache"
    r"|(?:ich|wir) (?:werden?|haben?|nehmen?))\b"
    r"|\b(?:décid\w+|convenu|plutôt|parce qu\w*|afin|donc|corrigé\w*|résolu\w*|la cause|je vais|nous allons"
    r"|j'ai|nous avons)\b"
    r"|\b(?:decid\w+|acord\w+|en lugar de|en vez de|porque|para que|por eso|corregid\w+|resuelt\w+|la causa|voy a"
    r"|vamos a|he \w+do|hemos)\b"
    r"|\b(?:em vez de|para que|por isso|corrigi\w+|resolvid\w+|a causa|vou|combinad\w+)\b"
    r"|\b(?:deciso|abbiamo|invece|perché|affinché|quindi|corrett\w+|risolt\w+|concordat\w+|farò)\b"
)
_OTHER = (
    r"\b(?:реш\w+|договорил\w+|вместо|потому что|поэтому|чтобы|исправ\w+|причина|мы будем|я буду)"
    r"|决定|決定|改用|因为|因為|所以|以便|原因|已修复|已修正|而不是|商定|同意"
    r"|ことにし|代わりに|ため|ので|原因|修正し|解決し|合意"
    r"|결정|대신|때문|그래서|원인|수정했|해결했|합의|하겠"
)
# These search text in lower case, which is several times as fast as ignoring the case.
_IN_ASCII = re.compile(_LATIN)
_IN_ANY = re.compile(f"{_LATIN}|{_OTHER}")


def decides(sentence: str) -> bool:
    """Returns whether a sentence says what was decided, done or found."""
    lowered = sentence.replace("\u2019", "'").lower()
    return (_IN_ASCII if lowered.isascii() else _IN_ANY).search(lowered) is not None
