"""Checks messages against the rules of a provider's API, without calling the API.

The API is known to refuse messages with any of the reported problems. Rules that depend on the model, on a beta or on
other parts of the request are not checked. So an empty result does not mean that the API accepts the request. Problems
never quote content.

Shapes, types of blocks and required fields are those of the SDKs' types (anthropic 2.12, openai 3.54), and a test
compares them with these types. Other rules come from the providers' documentation or from the APIs' errors; each
function says which.
"""

from __future__ import annotations

from compaction_store.api_rules.anthropic import refused_by_anthropic
from compaction_store.api_rules.openai import refused_by_openai, refused_by_openai_responses
from compaction_store.api_rules.problems import Problem

__all__ = ["Problem", "refused_by_anthropic", "refused_by_openai", "refused_by_openai_responses"]
