"""Every error a user may meet: a stable code, an HTTP status, an exit code, and what to do next.

KapelleError
├── InvalidInput
├── NotFound
├── Conflict
├── Unauthorized
├── Forbidden
├── MergeConflict
├── AgentNotFound
├── AgentMisconfigured
├── LimitReached
├── WorkspaceError
├── GitError
└── Unavailable
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class KapelleError(Exception):
    """Something went wrong inside Kapelle."""

    code = "internal_error"
    http_status = 500
    exit_code = 2

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or self.__doc__ or self.code)
        self.hint = hint

    @property
    def message(self) -> str:
        return str(self.args[0])


class InvalidInput(KapelleError):
    """What was given cannot be used."""

    code = "invalid_input"
    http_status = 422


class NotFound(KapelleError):
    """There is no such thing."""

    code = "not_found"
    http_status = 404


class Conflict(KapelleError):
    """The present state does not allow this."""

    code = "conflict"
    http_status = 409


class Unauthorized(KapelleError):
    """A token is needed."""

    code = "unauthorized"
    http_status = 401


class Forbidden(KapelleError):
    """This token does not allow that."""

    code = "forbidden"
    http_status = 403


class MergeConflict(KapelleError):
    """The branches do not merge cleanly."""

    code = "merge_conflict"
    http_status = 409
    exit_code = 1


class AgentNotFound(KapelleError):
    """No agent of this name is known."""

    code = "agent_not_found"
    http_status = 422


class AgentMisconfigured(KapelleError):
    """The agent is known but cannot run as it is set up."""

    code = "agent_misconfigured"
    http_status = 422


class LimitReached(KapelleError):
    """Nothing is left of what this was allowed to use."""

    code = "limit_reached"
    http_status = 409
    exit_code = 1


class WorkspaceError(KapelleError):
    """The workspace could not be made ready."""

    code = "workspace_error"
    http_status = 409
    exit_code = 1


class GitError(WorkspaceError):
    """git refused or failed."""

    code = "git_error"


class Unavailable(KapelleError):
    """The daemon does not answer."""

    code = "unavailable"
    http_status = 503


def class_of(code: str) -> type[KapelleError]:
    """The class of errors that have a code; the root of them all for an unknown one."""
    known = [KapelleError]
    for kind in known:
        if kind.code == code:
            return kind
        known += kind.__subclasses__()
    return KapelleError


def sentence(error: "ValidationError", most: int = 10) -> str:
    """What pydantic found wrong, each with its place, without a full stop at the end."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return "; ".join([*map(problem, found[:most]), *more])


def problem(details: Any) -> str:
    """One of pydantic's findings with its place, such as `steps.2.prompt: Field required`."""
    place = ".".join(str(part) for part in details["loc"] if part != "[key]")
    text = str(details["msg"]).removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
