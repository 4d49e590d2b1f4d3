"""Imports threads: from session files of Claude Code and Codex, JSON lines, account exports and databases."""

from compaction_store.public_names import in_stub

__all__, __getattr__, __dir__ = in_stub(__name__, __file__)
