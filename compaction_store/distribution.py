"""Distributes the tables over the nodes of a Citus cluster: `distribute`."""

from compaction_store.deploy.citus import Distributed, distribute

__all__ = ["Distributed", "distribute"]
