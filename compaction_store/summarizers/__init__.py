"""Summarizers, which write the summaries of spans, and an exact counter of tokens.

Any callable that takes the elements of a span can be a summarizer. `AnthropicSummarizer` and `AnthropicCounter` import
Anthropic's SDK, which is an extra, when the first object of these classes is made. `OpenAISummarizer` imports no SDK,
because the caller gives it a client.
"""

from __future__ import annotations

from compaction_store.compaction.summary_request import Request, Summarizer
from compaction_store.summarizers.anthropic import AnthropicCounter, AnthropicSummarizer
from compaction_store.summarizers.openai import OpenAISummarizer
from compaction_store.summarizers.prompted import FallbackSummarizer
from compaction_store.summarizers.state import StateSummary
from compaction_store.waiting import is_async as needs_async

__all__ = [
    "AnthropicCounter",
    "AnthropicSummarizer",
    "FallbackSummarizer",
    "OpenAISummarizer",
    "Request",
    "StateSummary",
    "Summarizer",
    "needs_async",
]
