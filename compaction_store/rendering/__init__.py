"""Renders a view as the arguments of a request, for Anthropic's and OpenAI's APIs. Pure.

The same view and options give the same bytes in every version, so that a receipt can name a rendering by its hash. A
renderer whose output changes gets a new name. Rendering does not change the view, and content that has no form in the
requested format raises `NotRenderable` instead of being dropped.
"""

from compaction_store.rendering.view import Rendered, SeenView, View, for_anthropic, for_openai

__all__ = ["Rendered", "SeenView", "View", "for_anthropic", "for_openai"]
