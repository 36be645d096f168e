"""One module per noun; each route is a few lines around one use case."""

from typing import Annotated, Any

from fastapi import Header, Query, Response

# What routes of several nouns take and give.
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]
WaitSeconds = Annotated[float, Query(ge=0, le=55, allow_inf_nan=False)]
PATCH: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"text/x-diff": {}}, "description": "A patch for git apply"}},
}
