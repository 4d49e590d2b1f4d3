"""The answers of the pages and the API to a request that they refuse: the status, the type and the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from compaction_store import errors
from compaction_store.errors import CompactionStoreError, InvalidInput, own_text

# A name of a field, and neither a type of several nor a text that may be content.
_FIELD = re.compile("(?!(int|float|datetime)$)[a-z][a-z_0-9]{0,29}")
_M = TypeVar("_M", bound=BaseModel)
_NOT_FOUND = (errors.CompactionNotFound, errors.MessageNotFound, errors.PositionNotFound, errors.ThreadNotFound)
_AWAY = (errors.DatabaseUnavailable, errors.LoginRefused)
# The status and the title for each class of error. The first class that fits an error is used.
ERRORS: tuple[tuple[Any, tuple[int, str]], ...] = (
    (InvalidInput, (400, "This address is wrong")),
    (_NOT_FOUND, (404, "Not found")),
    (errors.ThreadErased, (410, "Erased")),
    (errors.Conflict, (409, "The thread has changed meanwhile")),
    (errors.PermissionDenied, (403, "Not allowed")),
    ((errors.Rejected, errors.NotRenderable, errors.NotConfigured), (422, "A rule forbids this")),
    (errors.UnknownEntry, (501, "This release cannot show this")),
    (errors.OutcomeUnknown, (503, "It may have been written")),
    ((*_AWAY, errors.NotPrimary, errors.StoreClosed), (503, "This cannot be read now")),
    (CompactionStoreError, (500, "This cannot be shown")),
)
# The refusals that are not the store's, by their types.
STATUS = {
    "InvalidRequest": 400, "Unauthorized": 401, "Forbidden": 403, "NotFound": 404, "MethodNotAllowed": 405,
    "RequestTimeout": 408, "TooLarge": 413, "UnsupportedMediaType": 415, "WrongHost": 421, "Failed": 500,
    "Unavailable": 503, "DeadlineExceeded": 504,
}  # fmt: skip


class Refusal(Exception):
    """Ends a request with an error. `kind` is a key of STATUS."""

    def __init__(self, kind: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.headers = headers


def answer_to(error: CompactionStoreError) -> tuple[int, str, str]:
    """Returns the status, the title and the text for an error of the store.

    A failure to connect names the database's host, which is for the operator and not for the reader.
    """
    status, title = next(answer for kind, answer in ERRORS if isinstance(error, kind))
    if isinstance(error, _AWAY):
        return status, title, "The database does not answer now. Try again soon. The server's log has the reason"
    return status, title, own_text(error) or "The text of this error is not shown, because other code wrote it"


def read(model: type[_M], given: Any, *, texts: bool = False) -> _M:
    """Returns a value as a model; `texts` says that it has only texts.

    Raises InvalidInput, whose text says what must be, and quotes no value. It names the member that is wrong, also one
    that the model does not know, if that looks like the name of a field.
    """
    try:
        return model.model_validate_strings(given) if texts else model.model_validate(given)
    except ValidationError as error:
        all_of_them = error.errors(include_url=False, include_context=False, include_input=False)
        # A value of several types has an error for each. The last one is about the type that takes most.
        found = [each for each in all_of_them if each["loc"][:1] == all_of_them[0]["loc"][:1]][-1]
        steps = (str(step) for step in found["loc"] if isinstance(step, int) or _FIELD.fullmatch(step))
        place = ".".join(steps) or "a name"
        text = found["msg"].removeprefix("Value error, ")
        text = text.rpartition(" should ")[2] if " should " in text else f"be right: {text}"
        if found["type"].startswith("datetime"):
            text = "be a time such as 2026-05-01T12:30:00Z"
        elif found["type"] == "extra_forbidden":
            text = f"be one of {', '.join(model.model_fields)}" if len(found["loc"]) == 1 else "have no other members"
        elif found["type"] == "missing":
            text = "be given"
    raise InvalidInput(f"{place} must {text}")
