"""The commands that pages print. A reader pastes them into a shell, so every name in them is quoted exactly."""

from __future__ import annotations

import shlex

from compaction_store.audit.safe_text import is_plain, shown
from compaction_store.models.record_filters import FILTERS

_SPELLED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def word(text: str) -> str:
    """Returns a text as one word of a shell, in which every character is visible.

    If the text has characters that a page must not show, uses the quotes `$'...'`, which bash, zsh and ksh read. The
    bytes of these characters are written as octal numbers, which do not depend on the locale.
    """
    if is_plain(text):
        # zsh replaces a word such as =ls by the path of the program.
        return f"'{text}'" if text.startswith("=") and shlex.quote(text) == text else shlex.quote(text)
    return "$'" + "".join(map(_spelled, text)) + "'"


def option(name: str, text: str) -> str:
    """Returns an option with its value. The value may begin with `-`."""
    return f"{name}={word(text)}" if text.startswith("-") else f"{name} {word(text)}"


def argument(text: str) -> str:
    """Returns an argument, after `--` if it begins with `-`. It must come last."""
    return f"-- {word(text)}" if text.startswith("-") else word(text)


def _spelled(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    if shown(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogatepass"))


_CHECKPOINT = " --checkpoints LOG --public-key HEX"


def tenant_option(tenant: str) -> str:
    """Returns the command line option for a tenant, with a space before it, or nothing for the default tenant."""
    return "" if tenant == "default" else f" {option('--tenant', tenant)}"


def records_as_csv(tenant: str, given: dict[str, str | None]) -> str:
    """Returns the command that lists the same records as CSV."""
    words = [word(f"{FILTERS[name].flag}={text}") for name, text in given.items() if text and name != "id"]
    thread = ["--", word(given["id"])] if given["id"] else []
    return f"compaction-store compactions{tenant_option(tenant)} " + " ".join([*words, "--csv", *thread])


def threads_as_csv(tenant: str) -> str:
    """Returns the command that lists the threads as CSV."""
    return f"compaction-store threads{tenant_option(tenant)} --hidden --csv"


def events_as_csv(tenant: str, thread_id: str | None = None, kind: str | None = None) -> str:
    """Returns the command that lists events as CSV. Without a kind, it lists all kinds."""
    words = [word(f"--kind={kind}")] if kind else []
    thread = ["--", word(thread_id)] if thread_id else []
    return " ".join([f"compaction-store events{tenant_option(tenant)}", *words, "--csv", *thread])


def found_as_csv(tenant: str, text: str, thread_id: str | None) -> str:
    """Returns the command that lists as CSV where a text is."""
    thread = f" {option('--thread', thread_id)}" if thread_id else ""
    return f"compaction-store search{tenant_option(tenant)}{thread} --text --csv {argument(text)}"


def all_costs(tenant: str) -> str:
    """Returns the command that sums the costs of all records of the tenant by week, summarizer, model and actor."""
    return f"compaction-store stats{tenant_option(tenant)} --csv"


def check_one(tenant: str, thread_id: str, *, has_checkpoint: bool) -> str:
    """Returns the commands that export a thread and check it elsewhere."""
    signed = _CHECKPOINT if has_checkpoint else ""
    key = " --public-key HEX" if has_checkpoint else ""
    return (
        f"compaction-store export{tenant_option(tenant)}{signed} {argument(thread_id)} > thread.jsonl\n"
        f"python -m compaction_store.offline thread.jsonl{key}"
    )


def check_all(tenant: str, *, has_checkpoint: bool) -> str:
    """Returns the commands that verify every thread in the database, and from files elsewhere."""
    signed, level, key = (_CHECKPOINT, " --level checkpoint", " --public-key HEX") if has_checkpoint else ("", "", "")
    return (
        f"compaction-store verify{tenant_option(tenant)} --all{level}{signed}\n"
        f"compaction-store export{tenant_option(tenant)} --all{signed} --to FOLDER\n"
        f"python -m compaction_store.offline FOLDER/*.jsonl{key}"
    )
