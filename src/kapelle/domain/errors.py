"""Errors that users see: each has a stable code, an HTTP status, an exit code and a hint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from kapelle.domain.text import format_value

if TYPE_CHECKING:
    from pydantic import ValidationError

# A longer list of problems helps nobody.
_MOST_PROBLEMS = 10
_MOST_FIELDS = 50


@dataclass(frozen=True)
class FieldProblem:
    """A problem with a specification, and the path of the field that has it.

    The message of a "value" continues its path: `budget_usd` and "must be more than 0". The
    message of a "rule" follows its path and a colon, or stands alone. A "sentence" needs no path.
    Names are the fields that the message mentions in backticks.
    """

    path: tuple[str | int, ...]
    message: str
    kind: Literal["value", "rule", "sentence"] = "value"
    names: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the path and the message, for example `steps.2.prompt is missing`."""
        return self.at(".".join(map(str, self.path)))

    def at(self, place: str) -> str:
        """Return the message after a place, for example the option that a reader typed."""
        if self.kind == "value":
            return f"{place or 'it'} {self.message}"
        if place and self.kind == "rule":
            return f"{place}: {self.message}"
        return self.message


class BrokenRule(ValueError):
    """Contradictory values; names are the fields that the message mentions in backticks."""

    def __init__(self, message: str, *names: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.names = names
        self.path = path


class KapelleError(Exception):
    """An internal error occurred."""

    code = "internal_error"
    http_status = 500
    exit_code = 2

    def __init_subclass__(
        cls, code: str = "", http_status: int | None = None, exit_code: int | None = None
    ) -> None:
        """Set the stable code, HTTP status and exit code of a class; each may be inherited."""
        cls.code = code or cls.code
        cls.http_status = http_status or cls.http_status
        cls.exit_code = exit_code or cls.exit_code

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        fields: Sequence[FieldProblem] = (),
    ) -> None:
        """Fields are the problems behind the message, so that a front end can rename the fields."""
        super().__init__(message or self.__doc__ or self.code)
        self.hint = hint
        self.fields = tuple(fields)

    def about(self, *path: str | int) -> Self:
        """Attach this error to a field, whose path the message need not repeat; return it."""
        self.fields = (FieldProblem(path, self.message, "sentence"),)
        return self

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def with_hint(self) -> str:
        """Return the message, followed by the hint if there is one."""
        if self.hint:
            return f"{self.message} {self.hint}"
        return self.message


class InvalidInput(KapelleError, code="invalid_input", http_status=422):
    """The input is invalid."""


class NotFound(KapelleError, code="not_found", http_status=404):
    """Not found."""


class Conflict(KapelleError, code="conflict", http_status=409):
    """The current state does not allow this."""


class NotTrusted(KapelleError, code="not_trusted", http_status=409):
    """The repository is not trusted to execute its configuration."""


class Unauthorized(KapelleError, code="unauthorized", http_status=401):
    """A token is required."""


class Forbidden(KapelleError, code="forbidden", http_status=403):
    """This token does not allow that."""


class MergeConflict(KapelleError, code="merge_conflict", http_status=409, exit_code=1):
    """The branches have a merge conflict."""


class ChecksFailed(KapelleError, code="checks_failed", http_status=409, exit_code=1):
    """The checks failed on the result of the merge."""


class AgentNotFound(KapelleError, code="agent_not_found", http_status=422):
    """There is no agent of this name."""


class AgentMisconfigured(KapelleError, code="agent_misconfigured", http_status=422):
    """The agent cannot run with its present configuration."""

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        fields: Sequence[FieldProblem] = (),
        remedy: str | None = None,
    ) -> None:
        """The remedy is advice that does not change Kapelle's configuration; default: the hint."""
        super().__init__(message, hint=hint, fields=fields)
        if remedy is None:
            remedy = hint
        self.remedy = remedy


class LimitReached(KapelleError, code="limit_reached", http_status=409, exit_code=1):
    """A limit was reached."""


class WorkspaceError(KapelleError, code="workspace_error", http_status=409, exit_code=1):
    """The workspace could not be prepared."""


class Tampered(KapelleError, code="tampered", http_status=409, exit_code=1):
    """Files that prove the result of the work were changed by another process."""


class GitError(WorkspaceError, code="git_error"):
    """A git command failed."""


class ForgeError(WorkspaceError, code="forge_error"):
    """A request to the forge failed."""


class FilterMissing(WorkspaceError, code="unfiltered"):
    """A file needs a git filter that cannot be run."""


class UnreadableFile(WorkspaceError, code="unreadable"):
    """A file that git reads is a pipe or a device."""


class ConflictMarkersLeft(WorkspaceError, code="unresolved"):
    """Files contain conflict markers."""


class Unavailable(KapelleError, code="unavailable", http_status=503):
    """The daemon is unavailable."""


def find_error_class(code: str) -> type[KapelleError]:
    """Return the error class of a code; KapelleError for an unknown code."""
    classes = [KapelleError]
    # The list grows while it is read: it ends when every subclass was seen.
    for error_class in classes:
        if error_class.code == code:
            return error_class
        classes += error_class.__subclasses__()
    return KapelleError


# The expected value by pydantic's error type; the message adds the actual value.
_MUST_BE = {
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "text or a mapping",
    "string_type": "text",
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a number"),
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    **dict.fromkeys(("enum", "literal_error"), "{expected}"),
}
# The messages of other error types of pydantic.
_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string_too_short": "is empty",
    "string_too_long": "must have at most {max_length:,} characters",
    "string_pattern_mismatch": "contains a character that is not allowed",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
}


def invalid_field(name: str, message: str, *, hint: str | None = None) -> InvalidInput:
    """Return an error about one field; the message follows its name."""
    problem = FieldProblem((name,), message, "rule")
    return InvalidInput(f"{problem.sentence}.", hint=hint, fields=[problem])


def invalid_spec(error: "ValidationError", before: str = "") -> InvalidInput:
    """Return an error with all problems that pydantic found, and with their fields."""
    return InvalidInput(
        before + format_problems(error), fields=list_field_problems(error)[:_MOST_FIELDS]
    )


def format_problems(error: "ValidationError", most: int = _MOST_PROBLEMS) -> str:
    """Return the problems that pydantic found, each with its path, without a final full stop."""
    problems = list_field_problems(error)
    sentences = [one.sentence for one in problems[:most]]
    if len(problems) > most:
        sentences.append(f"and {len(problems) - most} more")
    return "; ".join(sentences)


def list_field_problems(error: "ValidationError") -> list[FieldProblem]:
    """Return the problems that pydantic found, one by one."""
    return [read_field_problem(one) for one in error.errors(include_url=False, include_input=False)]


def format_problem(details: Any, place: str = "", actual: str = "") -> str:
    """Return one problem that pydantic found as a sentence.

    place replaces the path of the field, and actual the text of the invalid value.
    """
    problem = read_field_problem(details, actual)
    if place:
        return problem.at(place)
    return problem.sentence


def read_field_problem(details: Any, actual: str = "") -> FieldProblem:
    """Return one problem that pydantic found; actual replaces the text of the invalid value."""
    path = tuple(part for part in details["loc"] if part != "[key]")
    facts = details.get("ctx", {})
    kind = details["type"]
    if kind in _MUST_BE:
        message = f"must be {_MUST_BE[kind].format_map(facts)}"
        if not actual and "input" in details:
            actual = format_value(details["input"])
        if actual:
            message += f", not {actual}"
        return FieldProblem(path, message)
    if kind in _MESSAGES:
        message = _MESSAGES[kind].format_map(facts)
        if facts.get("actual_length") is not None:
            message += f", not {facts['actual_length']}"
        return FieldProblem(path, message)
    cause = facts.get("error")
    if isinstance(cause, BrokenRule):
        return FieldProblem(path + cause.path, str(cause), "rule", cause.names)
    return FieldProblem(path, str(cause or details["msg"]), "rule")
