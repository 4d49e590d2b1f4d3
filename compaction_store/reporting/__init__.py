"""Audit reports. A report is one file that can be read offline, printed, and verified without a database."""

from compaction_store.reporting.collection import gather
from compaction_store.reporting.document import ReportDocument

__all__ = ["ReportDocument", "gather"]
