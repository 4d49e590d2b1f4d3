"""Finds values that a conversation replaces with newer values: "the deadline is May 3", and later "… is May 10".

This module finds sentences that replace a value ("rename A to B", "B instead of A"), sentences that state one ("the
budget cap is $500"), and the fields of a call's result. `facts` compares them with the earlier values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from compaction_store.language.names import names_in_run
from compaction_store.language.orders import rare_words, stem
from compaction_store.language.sentences import prose, sentences
from compaction_store.language.words import words

_LONGEST_SENTENCE = 400
_V = (
    r"(?:`[^`\n]{1,80}`|\"[^\"\n]{1,80}\"|[$€£¥]?\d{1,3}(?:[,.]\d{3})+(?:[.,]\d{1,2})?(?!\w)"
    r"|[^\s\"'`,;()。、，]{1,80})"  # noqa: RUF001
)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.? \d{1,2}(?:st|nd|rd|th)?\b"
_VALUE = rf"(?:{_MONTH}|{_V})"
_CHANGES = re.compile(
    rf"\b(?:chang|renam|mov|switch|bump|rais|lower|increas|decreas|reduc|updat|migrat|upgrad|downgrad|postpon|push"
    rf"|shift|went|goes|go)"
    rf"\w{{0,3}}\b[^\n]{{0,60}}?\bfrom ({_VALUE}) to ({_VALUE})"
    rf"|\b(?:renam|replac)\w{{0,3}} ({_VALUE}) (?:to|with|by) ({_VALUE})",
    re.IGNORECASE,
)
_CHANGES_BACK = re.compile(rf"(?<![^\s(])({_V}) (?:instead of|rather than|in place of) ({_V})", re.IGNORECASE)
_IS = re.compile(
    rf"\b(?:is now|is|are now|are|was changed to|changed to|will be|should be|must be|becomes|became|moved to"
    r"|(?:ist|sind|beträgt|liegt)(?: jetzt| nun)?(?: bei| am)?"
    r"|est(?: maintenant| désormais)?(?: de| le)?|(?:es|son|é|è|será)(?: ahora| agora| ora| adesso)?(?: de| di)?"
    rf") ({_VALUE})"
)
_TO = re.compile(
    rf"\b(?:chang|mov|rais|lower|increas|decreas|reduc|updat|set|postpon|push|shift|bump)\w{{0,3}} (?:the |our |my "
    rf"|its |your )"
    rf"((?:[\w-]{{1,30}} ){{1,4}}?)to ({_VALUE})",
    re.IGNORECASE,
)
# A sentence that states a value has one of these words. Most sentences have none and need not be searched.
_MAY_STATE = re.compile(r" (?:is|are|be|to|with|by|of|than|became|becomes|ist|sind|beträgt|liegt|est|es|son|é|è|será) ")
_AGE = frozenset(
    stem(word)
    for word in """
    new newer newest current currently updated latest old older actual final revised real neu neue neuer neues alt
    alte aktuell aktuelle nouveau nouvelle ancien ancienne actuel actuelle nuevo nueva actual novo nova nuovo nuova
    vecchio attuale
    """.split()  # noqa: SIM905
)
# Things of which a thread has many. If two of them have different values, neither value replaced the other.
_MANY = frozenset(
    stem(word)
    for word in """
    file files path paths error errors problem issue result results output name names value values id ids line lines
    number numbers function class method test tests command answer message messages page step steps code key type types
    reason example option options item items user field fields argument parameter variable string text list thing
    point question idea case part section table column row index date time price amount flight order count total size
    length status state color colour url link note warning info module package import return true false sum first second
    next last other user's default expected found got usage address input update change
    datei fehler problem ergebnis ausgabe wert zeile nummer funktion klasse nachricht seite schritt beispiel grund
    preis menge summe größe status farbe fichier erreur problème résultat sortie valeur ligne numéro fonction classe
    message page étape exemple raison prix quantité total taille couleur archivo error problema resultado salida valor
    línea función clase mensaje página paso ejemplo razón precio cantidad tamaño color arquivo erro saída linha
    classe mensagem passo exemplo razão preço quantidade tamanho cor errore risultato uscita valore riga funzione
    messaggio pagina passo esempio motivo prezzo quantità totale colore
    """.split()  # noqa: SIM905
)
_MOST_KEY_WORDS = 2
_LONGEST_VALUE = 60
_LONGEST_JSON = 200_000


class Statement(NamedTuple):
    """A thing, its value, and the place of the value. `old` is the value that the same sentence replaces, if any."""

    about: str
    value: str
    start: int
    end: int
    old: str | None = None


def statements(text: str) -> Iterator[Statement]:
    """Yields the values that a text states, sentence by sentence."""
    plain = prose(text)
    for start, end in sentences(plain):
        sentence = plain[start:end]
        if end - start <= _LONGEST_SENTENCE and _MAY_STATE.search(sentence) is not None:
            for said in (*_changes(sentence), *_assignments(sentence)):
                yield said._replace(start=said.start + start, end=said.end + start)


def _changes(sentence: str) -> Iterator[Statement]:
    for pattern, is_back in ((_CHANGES, False), (_CHANGES_BACK, True)):
        for found in pattern.finditer(sentence):
            first = found.lastindex or 2
            old, new = first - 1, first
            if is_back:
                old, new = new, old
            before, after = plain_value(found[old]), plain_value(found[new])
            if before and after and before != after and _is_value(before) and _is_value(after):
                yield Statement("", after, *found.span(new), before)


def _assignments(sentence: str) -> Iterator[Statement]:
    for found in _IS.finditer(sentence):
        if about := _about(sentence[max(0, found.start() - 60) : found.start()]):
            value = plain_value(found[1])
            if value and _is_value(value):
                yield Statement(about, value, *found.span(1))
    for found in _TO.finditer(sentence):
        value = plain_value(found[2])
        if (about := _about(found[1])) and value and _is_value(value):
            yield Statement(about, value, *found.span(2))


def _about(before: str) -> str:
    """Returns the stems of the last rare words before a value, if they name the thing that has it, or else ""."""
    clause = re.split(r"[,;:.!?()\"`*]|\b(?:and|but|because|that|which|if|when|so)\b", before)[-1]
    found = [stem(word) for word in words(clause) if word]
    kept = [word for word in found if word in rare_words(clause) and word not in _AGE][-_MOST_KEY_WORDS:]
    if not kept or kept[-1] in _MANY or any(any(c.isdigit() for c in word) for word in kept):
        return ""
    return " ".join(kept)


def plain_value(text: str) -> str:
    """Returns the words of a value in lower case, so that differently written values can be compared."""
    return " ".join(words(text.strip("`\"'.,:;!?*()")))


def _is_value(value: str) -> bool:
    """Returns whether a text can be a value that a summary repeats: a number, a name, a date, or a few words."""
    if len(value) > _LONGEST_VALUE:
        return False
    return any(c.isdigit() for c in value) or "_" in value or " " in value or bool(names_in_run(value))


def fields(text: str) -> dict[str, str]:
    """Returns the short texts and the numbers of a result by their paths, without those in arrays.

    Returns nothing if the result is not a JSON object, or is too long.
    """
    if len(text) > _LONGEST_JSON or text.lstrip()[:1] != "{":
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend((f"{path}.{name}" if path else str(name), item) for name, item in one.items())
        elif isinstance(one, str | int | float) and not isinstance(one, bool) and 0 < len(str(one)) <= _LONGEST_VALUE:
            found[path] = plain_value(str(one))
    return found
