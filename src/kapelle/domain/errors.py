"""Every error a user may meet: a stable code, an HTTP status, an exit code, and what to do next."""

from typing import TYPE_CHECKING, Any

from kapelle.domain.text import shown

if TYPE_CHECKING:
    from pydantic import ValidationError


class KapelleError(Exception):
    """Something went wrong inside Kapelle."""

    code = "internal_error"
    http_status = 500
    exit_code = 2

    def __init_subclass__(
        cls, code: str = "", http_status: int | None = None, exit_code: int | None = None
    ) -> None:
        """Each class has a stable code; what it does not say it has from the class above."""
        cls.code = code or cls.code
        cls.http_status = http_status or cls.http_status
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or self.__doc__ or self.code)
        self.hint = hint

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def with_hint(self) -> str:
        """The message, and what to do about it where that is known."""
        if self.hint:
            return f"{self.message} {self.hint}"
        return self.message


class InvalidInput(KapelleError, code="invalid_input", http_status=422):
    """What was given cannot be used."""


class NotFound(KapelleError, code="not_found", http_status=404):
    """There is no such thing."""


class Conflict(KapelleError, code="conflict", http_status=409):
    """The present state does not allow this."""


class NotTrusted(KapelleError, code="not_trusted", http_status=409):
    """The repository could execute something that nobody has allowed."""


class Unauthorized(KapelleError, code="unauthorized", http_status=401):
    """A token is needed."""


class Forbidden(KapelleError, code="forbidden", http_status=403):
    """This token does not allow that."""


class MergeConflict(KapelleError, code="merge_conflict", http_status=409, exit_code=1):
    """The branches do not merge cleanly."""


class ChecksFailed(KapelleError, code="checks_failed", http_status=409, exit_code=1):
    """The checks fail on what the merge would lead to."""


class AgentNotFound(KapelleError, code="agent_not_found", http_status=422):
    """No agent of this name is known."""


class AgentMisconfigured(KapelleError, code="agent_misconfigured", http_status=422):
    """The agent is known but cannot run as it is set up."""


class LimitReached(KapelleError, code="limit_reached", http_status=409, exit_code=1):
    """Nothing is left of what this was allowed to use."""


class WorkspaceError(KapelleError, code="workspace_error", http_status=409, exit_code=1):
    """The workspace could not be made ready."""


class Tampered(KapelleError, code="tampered", http_status=409, exit_code=1):
    """Somebody else than Kapelle wrote what judges the work."""


class GitError(WorkspaceError, code="git_error"):
    """git refused or failed."""


class ForgeError(WorkspaceError, code="forge_error"):
    """A forge, or the way to it, did not do what was asked."""


class FilterMissing(WorkspaceError, code="unfiltered"):
    """A file would be committed or checked out without the filter that its repository wants."""


class UnreadableFile(WorkspaceError, code="unreadable"):
    """A pipe or a device is in the place of a file that git reads."""


class ConflictMarkersLeft(WorkspaceError, code="unresolved"):
    """Conflict markers are left in files."""


class Unavailable(KapelleError, code="unavailable", http_status=503):
    """The daemon does not answer."""


def class_of(code: str) -> type[KapelleError]:
    """The class of errors that have a code; the root of them all for an unknown one."""
    known = [KapelleError]
    for kind in known:
        if kind.code == code:
            return kind
        known += kind.__subclasses__()
    return KapelleError


# What pydantic finds wrong with a value, in words that say what it has to be.
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be text or a mapping",
    "string_type": "must be text",
    "string_too_short": "is empty",
    "string_too_long": "may have at most {max_length:,} characters",
    "string_pattern_mismatch": "holds a character that is not allowed there",
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "must be a number"),
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    **dict.fromkeys(("enum", "literal_error"), "must be {expected}"),
    "too_short": "must have at least {min_length} items, not {actual_length}",
    "too_long": "may have at most {max_length} items, not {actual_length}",
}


def sentence(error: "ValidationError", most: int = 10) -> str:
    """What pydantic found wrong, each with its place, without a full stop at the end."""
    found = error.errors(include_url=False, include_input=False)
    if len(found) > most:
        more = [f"and {len(found) - most} more"]
    else:
        more = []
    return "; ".join([*map(problem, found[:most]), *more])


def problem(details: Any, place: str = "", given: str = "") -> str:
    """One of pydantic's findings with its place, such as `steps.2.prompt is missing`, and with
    what was given where that is among the details."""
    place = place or ".".join(str(part) for part in details["loc"] if part != "[key]")
    words = _WORDS.get(details["type"])
    if words is None:
        text = str(details["msg"]).removeprefix("Value error, ")
        return f"{place}: {text}" if place else text
    told = words.format_map(details.get("ctx", {})).removesuffix(", not None")
    if words.startswith("must be") and (given or "input" in details):
        told += f", not {given or shown(details['input'])}"
    return f"{place or 'it'} {told}"
