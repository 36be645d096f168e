"""Steps that fail: which error is sent, and with which headers."""

from tests.agents.model.dialects.answer import Dialect, Failure
from tests.agents.model.scripts import Step

# What providers say, for agents that hand on nothing but the words.
_SAID = {
    401: "Incorrect API key provided",
    404: "The model `m9` does not exist",
    429: "Rate limit reached for requests",
    500: "The server had an error while processing your request",
    529: "Overloaded",
}


def fault(step: Step, dialect: Dialect) -> Failure | None:
    """The error that a step asks for, or None when it asks for none."""
    if "overflow" in step:
        return dialect.overflow()
    if "billing" in step:
        return dialect.billing()
    if "error" not in step:
        return None
    status = int(step["error"])
    found = dialect.failure(status, step.get("message", _SAID.get(status, f"scripted {status}")))
    headers: dict[str, str] = {}
    if "reset_in" in step:
        headers |= dialect.limit_headers(step["reset_in"])
    if "retry_after" in step:
        headers["retry-after"] = str(step["retry_after"])
    return Failure(status, found.body, headers | step.get("headers", {}), found.events)
