"""Distributes the tables over the nodes of a Citus cluster: `distribute`; moves shards to new nodes: `rebalance`."""

from compaction_store.deploy.citus import Distributed, distribute
from compaction_store.deploy.rebalancing import rebalance

__all__ = ["Distributed", "distribute", "rebalance"]
