"""What an API would refuse in a list of messages, found without asking it.

Told is only what an API is known to refuse; whatever depends on the model, on a beta or on other parts of the request
is let pass. So an empty answer is no promise, but every problem told is one. No content is ever repeated.

Shapes, types of blocks and required fields are those of the SDKs' types (anthropic 2.12, openai 3.54), and a test
compares the two. The other rules are the providers' documentation's or the wording of the APIs' own errors; each
function says which.
"""

from __future__ import annotations

from compaction_store.api_rules.chat import refused_by_openai
from compaction_store.api_rules.messages import refused_by_anthropic
from compaction_store.api_rules.problems import Problem
from compaction_store.api_rules.responses import refused_by_openai_responses

__all__ = ["Problem", "refused_by_anthropic", "refused_by_openai", "refused_by_openai_responses"]
