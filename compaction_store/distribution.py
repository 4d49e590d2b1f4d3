"""Functions for a Citus cluster: `distribute` distributes the tables, and `rebalance` moves shards to new nodes."""

from compaction_store.deploy.citus import Distributed, distribute, rebalance

__all__ = ["Distributed", "distribute", "rebalance"]
