"""Renders a view as the arguments of a request to an API of Anthropic or OpenAI. Pure.

The same view and options give the same bytes in every version, so that a receipt can identify a rendering by its hash.
If the output of a renderer changes, the renderer gets a new name. Rendering does not change the view. Blank text is
left out, and so is thinking that the API would refuse. `NotRenderable` is raised for any other part that the requested
format cannot express.
"""

from compaction_store.rendering.view import Rendered, SeenView, View, for_anthropic, for_openai

__all__ = ["Rendered", "SeenView", "View", "for_anthropic", "for_openai"]
