"""Standing orders are recognized in ten languages; sentences that describe, ask, or hold for once are none."""

from __future__ import annotations

# ruff: noqa: RUF001
import pytest

from compaction_store.language.orders import is_order, orders
from compaction_store.probes.thread_probe import Passages

ORDERS = {
    "en": [
        "Never push to main without my approval.",
        "From now on, answer in French.",
        "Do not touch the migrations folder.",
        "please don't use any emojis in the code",
        "Always run the linter before you commit.",
        "You must not call the production API.",
        "The config folder is off-limits.",
        "HARD CONSTRAINT: Budget cap is $700 total. Never exceed it.",
        "I prefer tabs over spaces.",
        "ok, and never delete a test again",
        "stop adding comments to every line",
        "Under no circumstances may you send an email.",
        "When you quote a paper, give its page.",
        "Before you delete anything, list it.",
        "after you edit some code, run the tests of it",
        "Before you commit, squash.",
        "Answer in German.",
        "Please respond with bullet points.",
        "Begin each reply with the date.",
        "Put a warning in all your answers.",
        "Use Celsius, not Fahrenheit.",
    ],
    "de": [
        "Bitte ändere nie die Datenbank direkt.",
        "Ab sofort schreibst du alles auf Deutsch.",
        "Du darfst auf keinen Fall Kundendaten ausgeben.",
        "Verwende immer UTC.",
        "Antworte mir auf Französisch.",
        "Bevor du etwas löschst, frag mich.",
        "Setze das Datum unter jede Antwort.",
        "Die Tabelle darfst du nicht ändern.",
    ],
    "fr": [
        "Ne modifie pas le fichier de configuration.",
        "Réponds toujours en français.",
        "À partir de maintenant, demande avant de supprimer.",
        "N'utilise jamais l'API de production.",
        "Réponds en allemand.",
        "Mets la date dans chaque réponse.",
        "Il est interdit de toucher aux journaux.",
    ],
    "es": [
        "No toques la carpeta de migraciones.",
        "Responde siempre en español.",
        "De ahora en adelante, pregunta antes de borrar.",
        "Nunca subas cambios a main.",
        "Responde en alemán.",
        "Pon la fecha en cada respuesta.",
    ],
    "pt": [
        "Não altere o esquema do banco.",
        "Nunca envie e-mails sem perguntar.",
        "A partir de agora responda em português.",
        "Use sempre tabs.",
        "Responda em alemão.",
        "Ponha a data em cada resposta.",
    ],
    "it": [
        "Non modificare i file di configurazione.",
        "Usa sempre UTC.",
        "D'ora in poi rispondi in italiano.",
        "Non cancellare mai i dati.",
        "Rispondi in tedesco.",
        "Metti la data in ogni risposta.",
    ],
    "ru": [
        "Никогда не пуш в main.",
        "Всегда отвечай по-русски.",
        "Не трогай папку migrations.",
        "С этого момента спрашивай перед удалением.",
        "Отвечай на немецком.",
        "Ставь дату в каждом ответе.",
    ],
    "zh": [
        "不要修改配置文件。",
        "从现在开始用中文回答。",
        "请勿删除任何测试。",
        "必须先运行测试再提交。",
        "请用英文回答。",
        "在每个回答里写日期。",
    ],
    "ja": [
        "設定ファイルは絶対に変更しないでください。",
        "今後は日本語で答えて。",
        "必ずテストを実行してください。",
        "本番環境での実行は禁止です。",
        "英語で回答してください。",
        "すべての回答に日付を書いて。",
    ],
    "ko": [
        "설정 파일은 절대 수정하지 마세요.",
        "앞으로 한국어로 대답해 줘.",
        "항상 테스트를 먼저 실행하세요.",
        "삭제는 금지입니다.",
        "영어로 답해 주세요.",
        "모든 답변에 날짜를 써 주세요.",
    ],
}
NONE = [
    "It never works on my machine.",
    "I don't know why this fails.",
    "Don't worry about it.",
    "why does it always return None?",
    "can you never do that?",
    "Don't commit yet.",
    "I never said that.",
    "This always happens after the update.",
    "That's not what I meant.",
    "Please look at the file and fix the bug.",
    "No fixes applied.",
    "When you are done, tell me.",
    "Before you start, look at the README.",
    "When you see the error, fix it.",
    "Your reply was cut off.",
    "Give me a list of all messages.",
    "Use the file that I sent, please.",
    "Write the answers to a file.",
    "Every answer was wrong.",
    "i think that's it, thanks",
    "Es funktioniert nie.",
    "Ich habe das noch nie gesehen.",
    "Je ne sais pas.",
    "Eso siempre falla.",
    "Isso nunca funciona.",
    "Questo non funziona mai.",
    "Это никогда не работает.",
    "if (never != always) { return must_not[0x1f]; } // ===",
    "ok",
]


@pytest.mark.parametrize(
    "sentence", [pytest.param(one, id=f"{lang}: {one}") for lang, some in ORDERS.items() for one in some]
)
def test_an_order_is_recognized(sentence: str) -> None:
    assert is_order(sentence)


@pytest.mark.parametrize("sentence", NONE)
def test_a_sentence_without_lasting_force_is_none(sentence: str) -> None:
    assert not is_order(sentence)


def test_orders_have_their_place_in_a_message() -> None:
    text = "Thanks!\n- Never push to main.\n- always squash, please\n```\nnever touch this code\n```\nWhat next?"
    found = list(orders(text))
    assert [text[order.start : order.end] for order in found] == [order.text for order in found]
    assert [order.text for order in found] == ["Never push to main.", "always squash, please"]


def test_pasted_text_has_no_orders_and_the_ends_of_a_message_have() -> None:
    pasted = "This line of a manual says that you must never touch the device.\n" * 200
    found = [order.text for order in orders(f"Never restart it.\n{pasted}\nAlways ask me first.")]
    assert found[0] == "Never restart it."
    assert found[-1] == "Always ask me first."
    assert len(found) < 60


@pytest.mark.parametrize(
    ("order", "text", "kept"),
    [
        (
            "Never push to main without Ben's approval.",
            "- The user forbids pushing to main: Ben's approval must come first, never before.",
            True,
        ),
        ("Never push to main without Ben's approval.", "- They never push without approval.", False),
        ("Never push to main without Ben's approval.", "Ben gave his approval and they pushed to main.", False),
        ("Do not touch the migrations folder.", "Constraint: do not touch\nthe migrations folder", True),
        ("不要修改配置文件。", "用户要求:绝对不要修改配置文件", True),
        ("不要修改配置文件。", "用户修改了别的东西,必须注意", False),
        ("Never deploy on Fridays.", "", False),
        ("Use Celsius, not Fahrenheit, when you give temperatures.", "Temperatures only in Celsius.", True),
        ("Begin every reply with the date.", "The user wants replies to begin with the date.", True),
        ("Begin every reply with the date.", "The reply began with a date.", False),
    ],
)
def test_a_summary_keeps_an_order_by_its_words_and_their_force(order: str, text: str, kept: bool) -> None:
    assert Passages([text]).says(order) is kept
