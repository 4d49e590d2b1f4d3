"""What a model is sent: a view as the arguments of a request, for Anthropic's and OpenAI's APIs.

Pure: the same view and the same options give the same bytes for ever, so that a receipt can name a rendering and its
hash. A change to what a renderer writes needs a new name for it. Nothing of the view is altered, and what has no form
in the format asked for is `NotRenderable`, never left out in silence.
"""

from compaction_store.rendering.view import Rendered, SeenView, View, for_anthropic, for_openai

__all__ = ["Rendered", "SeenView", "View", "for_anthropic", "for_openai"]
