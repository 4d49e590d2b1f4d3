"""Audit reports. A report is one file that can be read offline, printed, and verified without a database."""

from compaction_store.reporting.document import ReportDocument
from compaction_store.reporting.gathering import gather

__all__ = ["ReportDocument", "gather"]
