"""Grants logins the schema's roles, and revokes them."""

from compaction_store.deploy.roles import grant, revoke

__all__ = ["grant", "revoke"]
