"""Gives logins the schema's roles, and takes them away."""

from compaction_store.deploy.roles import grant, revoke

__all__ = ["grant", "revoke"]
