"""Functions that grant the schema's roles to a login, and revoke them."""

from compaction_store.deploy.roles import grant, revoke

__all__ = ["grant", "revoke"]
