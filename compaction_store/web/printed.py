"""The commands that the pages print. A reader pastes them into a shell, so every name in them is quoted exactly."""

from __future__ import annotations

from compaction_store.display.commands import argument, option, word

_CHECKPOINT = " --checkpoints LOG --public-key HEX"


def tenant_option(tenant: str) -> str:
    """Returns the command line option for a tenant, with a space before it, or nothing for the default tenant."""
    return "" if tenant == "default" else f" {option('--tenant', tenant)}"


def records_as_csv(tenant: str, given: dict[str, str | None]) -> str | None:
    """Returns the command that lists the same records as CSV, or None if the command does not have all the filters."""
    if given["login"] or given["trigger"]:
        return None
    options = {"--run" if name == "run_id" else f"--{name}": text for name, text in given.items() if name != "id"}
    words = [word(f"{name}={text}") for name, text in options.items() if text]
    thread = ["--", word(given["id"])] if given["id"] else []
    return f"compaction-store compactions{tenant_option(tenant)} " + " ".join([*words, "--csv", *thread])


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
