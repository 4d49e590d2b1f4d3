"""Judges whether an answer is a summary. Only clear cases are refused, because a false alarm costs a compaction.

A refusal is recognized by the first words of a short text. An answer with only markup, a heading or a placeholder is an
empty shell. docs/summarizers.md describes the lists of words and their limits.
"""

from __future__ import annotations

import re
import unicodedata

from compaction_store.compaction.summary_request import Request
from compaction_store.errors import SummaryRefused, SummaryTooLong, SummaryUseless
from compaction_store.models import Payload

# A longer text that begins like a refusal probably contains a summary too.
_LONGEST_REFUSAL = 600
_APOLOGY = (
    r"(?:(?:i'?m|i am|i|we'?re|we are|we|my) )?(?:so |very |really |truly )?(?:sorry|apologi[sz]e|apologies|afraid)"
)
_CANNOT = r"(?:can'?t|cannot|can not|am unable to|'?m unable to|won'?t|will not|'?m not able to|am not able to)"
_DO = (
    r"(?:assist|help|comply|summari[sz]e|fulfil|fulfill|do|provide|process|continue|engage|complete|create|generate|"
    r"support|discuss|share|produce|respond|write|offer|participate)"
)
_REFUSALS = re.compile(
    rf"(?:{_APOLOGY}[,.;:!]? *(?:but |that )?)?(?:unfortunately,? )?"
    rf"(?:i|we) ?{_CANNOT} (?:be able to )?(?:\w+ )?{_DO}\b"
    rf"|{_APOLOGY}[,.;:!]? *(?:but )?(?:i|we) (?:do not|don'?t) (?:have|see)\b"
    r"|as an ai(?: language)?(?: model| assistant)?,? i\b"
    r"|i (?:must|have to|need to) (?:respectfully |politely )?(?:decline|refuse)\b"
    r"|(?:es )?tut mir leid,? (?:aber )?(?:ich|das) kann\b"
    r"|ich kann (?:dabei|dir|ihnen|das|diese[rnms]?) (?:\w+ ){0,4}nicht\b"
    r"|(?:je suis )?désolée?,? (?:mais )?je ne (?:peux|suis)\b|je ne peux pas (?:vous |t')?(?:aider|résumer|répondre)\b"
    r"|lo siento,? (?:pero )?no puedo\b|no puedo (?:ayudar|resumir|cumplir)\b"
    r"|(?:me )?desculpe?,? (?:mas )?não posso\b|mi dispiace,? (?:ma )?non posso\b"
    r"|(?:к сожалению|извините|простите),? (?:но )?я не могу\b"
    r"|(?:很)?(?:抱歉|对不起)[,，]?(?:但)?(?:我|作为).{0,12}(?:无法|不能)|我(?:无法|不能)(?:协助|帮助|总结|提供)"  # noqa: RUF001
    r"|申し訳(?:ありません|ございません)が、?.{0,20}(?:できません|いたしかねます)"
    r"|죄송합니다.{0,20}(?:수 없습니다|없습니다)",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<[^<>]{0,100}>|```\w*")
# The texts of answers without a summary, in lower case and without markup and spaces.
_SHELL_WORDS = """
summary summaryofconversation summaryoftheconversation conversationsummary hereisasummary heresasummary
hereisthesummary hereisasummaryoftheconversation heresasummaryoftheconversation nosummary nosummaryavailable
nosummaryneeded nothingtosummarize nothingtosummarise thereisnothingtosummarize thereisnothingtosummarise
nomessages nomessagestosummarize noconversation noconversationtosummarize noconversationprovided
theconversationisempty emptyconversation emptysummary empty none null nil na undefined nan true false todo tbd ok
okay done sure certainly understood insertsummaryhere yoursummaryhere summaryhere summarytext contents content text
zusammenfassung résumé resumé resumen resumo riassunto samenvatting podsumowanie резюме сводка 摘要 总结 總結 要約 요약
keinezusammenfassung aucunrésumé sinresumen
"""
_SHELLS = frozenset(_SHELL_WORDS.split())
_HIDDEN = {
    "bidi": frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"),
    "zero_width": frozenset("\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e"),
}


def judge(text: str, request: Request) -> None:
    """Raises a SummarizerError if an answer is not a summary of the request."""
    if not text.strip():
        raise SummaryUseless("the answer is empty")
    if is_shell(text):
        raise SummaryUseless("the answer has only markup or a heading and no summary")
    if is_refusal(text):
        raise SummaryRefused("the answer is a refusal")
    if len(text) >= request.size:
        raise SummaryTooLong(f"the answer must have fewer than {request.size:,} characters, not {len(text):,}")


def is_refusal(text: str) -> bool:
    """Returns whether a text begins like a model's refusal."""
    start = text.strip().lstrip("*_#>\"' ").replace("\u2019", "'")
    return len(start) <= _LONGEST_REFUSAL and _REFUSALS.match(start) is not None


def is_shell(text: str) -> bool:
    """Returns whether a text has only markup, a heading or a placeholder, and no summary."""
    words = "".join(c for c in _MARKUP.sub("", text) if c.isalnum()).lower()
    return not words or words in _SHELLS


def hidden(text: str) -> Payload:
    """Counts the invisible characters of a text by kind."""
    counts = {
        "control": sum(unicodedata.category(c) == "Cc" and c not in "\t\n\r" for c in text),
        "tags": sum("\U000e0000" <= c <= "\U000e007f" for c in text),
        **{kind: sum(c in which for c in text) for kind, which in _HIDDEN.items()},
    }
    return {kind: count for kind, count in counts.items() if count}
