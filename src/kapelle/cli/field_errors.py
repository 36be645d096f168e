"""Errors about fields of a specification, in the words of the command line."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from kapelle.cli.spec_options import SpecOption
from kapelle.domain.errors import FieldProblem, KapelleError

FieldPath = tuple[str | int, ...]


@contextmanager
def name_options(options: Iterable[SpecOption]) -> Iterator[None]:
    """Let errors about fields name the options by which the fields are set."""
    spellings: dict[FieldPath, str] = {option.path: option.spelling for option in options}
    try:
        yield
    except KapelleError as error:
        error.args = (_translate(error, spellings),)
        raise


def _translate(error: KapelleError, spellings: Mapping[FieldPath, str]) -> str:
    """Return the message of an error with its fields spelled as options."""
    message = error.message
    for problem in error.fields:
        message = message.replace(problem.sentence, _spell(problem, spellings))
    return message


def _spell(problem: FieldProblem, spellings: Mapping[FieldPath, str]) -> str:
    sentence = problem.at(_spell_path(problem.path, spellings))
    for name in problem.names:
        spelling = spellings.get(tuple(name.split(".")))
        if spelling is not None:
            sentence = sentence.replace(f"`{name}`", spelling)
    return sentence


def _spell_path(path: FieldPath, spellings: Mapping[FieldPath, str]) -> str:
    """Return the option of a field; behind it the place inside the field, if the path has one."""
    if path in spellings:
        return spellings[path]
    spelling = spellings.get(path[:1])
    if spelling is None:
        return _join(path)
    place = path[1:]
    if isinstance(place[0], int):
        number = f"{spelling} number {place[0] + 1}"
        return ": ".join([number, *filter(None, [_join(place[1:])])])
    return f"{spelling} {_join(place)}"


def _join(path: FieldPath) -> str:
    return ".".join(str(part) for part in path)
