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
