"""Every error a user may meet: a stable code, an HTTP status, an exit code, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from kapelle.domain.text import format_value

if TYPE_CHECKING:
    from pydantic import ValidationError

# More problems than this say nothing more to anybody.
_MOST_PROBLEMS = 10
_MOST_FIELDS = 50


@dataclass(frozen=True)
class FieldProblem:
    """A problem with a specification, and the path of the field that has it.

    The message of a "value" continues its path: `budget_usd` and "must be more than 0". The
    message of a "rule" stands behind its path and a colon, or alone. A "sentence" needs no path.
    Names are the fields that the message has in backticks.
    """

    path: tuple[str | int, ...]
    message: str
    kind: Literal["value", "rule", "sentence"] = "value"
    names: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The path and the message, such as `steps.2.prompt is missing`."""
        return self.at(".".join(map(str, self.path)))

    def at(self, place: str) -> str:
        """Return the message behind a place, which may be spelled as its reader knows it."""
        if self.kind == "value":
            return f"{place or 'it'} {self.message}"
        if place and self.kind == "rule":
            return f"{place}: {self.message}"
        return self.message


class BrokenRule(ValueError):
    """Values that do not go together; names are the fields that the message has in backticks."""

    def __init__(self, message: str, *names: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.names = names
        self.path = path


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

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        fields: Sequence[FieldProblem] = (),
    ) -> None:
        """Fields are the problems of which the message is made, for whoever spells them anew."""
        super().__init__(message or self.__doc__ or self.code)
        self.hint = hint
        self.fields = tuple(fields)

    def about(self, *path: str | int) -> Self:
        """Return this error as one about a field, whose message says all that is to be said."""
        self.fields = (FieldProblem(path, self.message, "sentence"),)
        return self

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

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        fields: Sequence[FieldProblem] = (),
        remedy: str | None = None,
    ) -> None:
        """The remedy is what helps besides a change of Kapelle's configuration, which the hint may
        offer as well; by default it is the hint."""
        super().__init__(message, hint=hint, fields=fields)
        self.remedy = hint if remedy is None else remedy


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


def find_error_class(code: str) -> type[KapelleError]:
    """The class of errors that have a code; the root of them all for an unknown one."""
    known = [KapelleError]
    for kind in known:
        if kind.code == code:
            return kind
        known += kind.__subclasses__()
    return KapelleError


# What a value has to be by what pydantic finds wrong with it; the message adds what it is.
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
# What else pydantic finds wrong.
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_short": "is empty",
    "string_too_long": "may have at most {max_length:,} characters",
    "string_pattern_mismatch": "holds a character that is not allowed there",
    "too_short": "must have at least {min_length} items",
    "too_long": "may have at most {max_length} items",
}


def invalid_field(name: str, message: str, *, hint: str | None = None) -> InvalidInput:
    """Return an error about one field, whose message stands alone behind its name."""
    problem = FieldProblem((name,), message, "rule")
    return InvalidInput(f"{problem.sentence}.", hint=hint, fields=[problem])


def invalid_spec(error: "ValidationError", before: str = "") -> InvalidInput:
    """Return an error with all that pydantic found wrong, and with the fields in question."""
    return InvalidInput(
        before + format_problems(error), fields=list_field_problems(error)[:_MOST_FIELDS]
    )


def format_problems(error: "ValidationError", most: int = _MOST_PROBLEMS) -> str:
    """What pydantic found wrong, each with its place, without a full stop at the end."""
    problems = list_field_problems(error)
    sentences = [one.sentence for one in problems[:most]]
    if len(problems) > most:
        sentences.append(f"and {len(problems) - most} more")
    return "; ".join(sentences)


def list_field_problems(error: "ValidationError") -> list[FieldProblem]:
    """Return what pydantic found wrong, field by field."""
    return [read_field_problem(one) for one in error.errors(include_url=False, include_input=False)]


def format_problem(details: Any, place: str = "", given: str = "") -> str:
    """One of pydantic's findings as a sentence, with its place or another one, and with what was
    given where that is among the details."""
    found = read_field_problem(details, given)
    if place:
        return found.at(place)
    return found.sentence


def read_field_problem(details: Any, given: str = "") -> FieldProblem:
    """Return one of pydantic's findings, with what was given where that is among the details."""
    path = tuple(part for part in details["loc"] if part != "[key]")
    facts = details.get("ctx", {})
    kind = details["type"]
    if kind in _MUST_BE:
        message = f"must be {_MUST_BE[kind].format_map(facts)}"
        if given or "input" in details:
            message += f", not {given or format_value(details['input'])}"
        return FieldProblem(path, message)
    if kind in _WORDS:
        message = _WORDS[kind].format_map(facts)
        if facts.get("actual_length") is not None:
            message += f", not {facts['actual_length']}"
        return FieldProblem(path, message)
    cause = facts.get("error")
    if isinstance(cause, BrokenRule):
        return FieldProblem(path + cause.path, str(cause), "rule", cause.names)
    return FieldProblem(path, str(cause or details["msg"]), "rule")
