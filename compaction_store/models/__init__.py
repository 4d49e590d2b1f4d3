"""The immutable values that the package takes and returns.

No repr shows the content of messages. `as_dict()` returns a value's fields in a form that `json.dumps` accepts.
"""

from compaction_store.public_names import in_stub

__all__, __getattr__, __dir__ = in_stub(__name__, __file__)
