"""Web pages for auditors: threads, views, records, replies, erasures and proofs. The pages use no scripts."""

from compaction_store.web.access import BehindProxy, OneTimeToken
from compaction_store.web.app import audit_app
from compaction_store.web.caches import warm_up

__all__ = ["BehindProxy", "OneTimeToken", "audit_app", "warm_up"]
