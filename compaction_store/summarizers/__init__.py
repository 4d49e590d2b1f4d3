"""What writes summaries: by a model, without one, or by the first of several that can.

A summarizer is any callable that is given the elements of a span; these are, and so is a function of your own. The
Anthropic one imports its SDK, an extra, when the first is made; so does the counter that asks the same API. The one for
OpenAI's API imports none: it is given a client.
"""

from __future__ import annotations

from compaction_store.compaction.summary_request import Request, Summarizer
from compaction_store.drivers import is_async as needs_async
from compaction_store.summarizers.anthropic import AnthropicSummarizer
from compaction_store.summarizers.counter import AnthropicCounter
from compaction_store.summarizers.extractive import ExtractiveSummarizer
from compaction_store.summarizers.fallback import FallbackSummarizer
from compaction_store.summarizers.openai import OpenAISummarizer

__all__ = [
    "AnthropicCounter",
    "AnthropicSummarizer",
    "ExtractiveSummarizer",
    "FallbackSummarizer",
    "OpenAISummarizer",
    "Request",
    "Summarizer",
    "needs_async",
]
