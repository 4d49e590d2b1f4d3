"""Audit reports: one file that opens offline, prints to paper, and can be verified without a database."""

from compaction_store.reporting.document import ReportDocument
from compaction_store.reporting.gathering import gather

__all__ = ["ReportDocument", "gather"]
