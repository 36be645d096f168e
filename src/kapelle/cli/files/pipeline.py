"""A pipeline from a YAML or TOML file: the body of the request, or every mistake with its line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kapelle.cli.files.from_file import FromFile
from kapelle.cli.files.problems import ALIASES, problem, shown
from kapelle.cli.files.source import is_stdin, text_of
from kapelle.cli.files.toml_tree import toml_tree
from kapelle.cli.files.tree import Node, Problem, Unusable, kind
from kapelle.cli.files.variables import SECTION, Filling
from kapelle.cli.files.yaml_tree import yaml_tree
from kapelle.cli.task_spec import absolute_directory
from kapelle.cli.values import duration_s
from kapelle.domain.errors import InvalidInput

_FORMATS = {".yaml": yaml_tree, ".yml": yaml_tree, ".toml": toml_tree}
_EXAMPLE = "Write `steps:` and below it at least two prompts, each after a dash."
# Keys whose values may be written as 20m or 2h.
_OF_ALL = ("task_timeout_s", "max_seconds")
_OF_ONE = ("timeout_s",)


def read_pipeline(path: Path, variables: dict[str, str], overrides: dict[str, Any]) -> FromFile:
    """The body of a request for a pipeline, from a file or from standard input (-).

    Variables are those of the command line, which count more than the file's own; overrides are
    keys of the specification that replace those of the file. Raises InvalidInput, whose message
    begins with FILE:LINE and names every mistake, one a line.
    """
    file = "<stdin>" if is_stdin(path) else str(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        text = text_of(path)
        tree = _tree(path, text)
        reading = _Reading(tree, Filling(tree, text, variables), _beside(path))
        return FromFile(reading.body(given), file, tree, given)
    except Unusable as unusable:
        raise _refusal(file, unusable.problems) from None


def _tree(path: Path, text: str) -> Node:
    suffix = ".yaml" if is_stdin(path) else path.suffix.lower()
    if suffix not in _FORMATS:
        hint = "Name it .yaml, .yml or .toml, or give YAML on standard input with -."
        raise Unusable(Problem(1, "its name does not tell what kind of file it is", hint))
    tree = _FORMATS[suffix](text)
    if not isinstance(tree.value, dict):
        words = f"a pipeline is a mapping with steps, not {kind(tree.value)}"
        raise Unusable(Problem(tree.line, words, _EXAMPLE))
    return tree


def _beside(path: Path) -> Path:
    return Path() if is_stdin(path) else path.parent


def _refusal(file: str, problems: tuple[Problem, ...]) -> InvalidInput:
    ordered = sorted(dict.fromkeys(problems), key=lambda each: each.line)
    sentences = [f"{file}:{each.line}: {each.words.rstrip('.')}" for each in ordered]
    return InvalidInput("\n".join(sentences), hint=ordered[0].hint or "Correct it and try again.")


class _Reading:
    """One reading of one file, which collects what is wrong before it gives up."""

    def __init__(self, tree: Node, filling: Filling, beside: Path) -> None:
        self._tree, self._filling, self._beside = tree, filling, beside
        self._problems = filling.problems

    def body(self, overrides: dict[str, Any]) -> dict[str, Any]:
        members = self._tree.value if isinstance(self._tree.value, dict) else {}
        values = {
            key: self._filling.filled(node) for key, node in members.items() if key != SECTION
        }
        self._filling.check_all_used(self._tree.nearest([SECTION]).line)
        self._durations(self._tree, values, _OF_ALL)
        for step, given in _mappings(self._tree.below("steps"), values.get("steps")):
            self._durations(step, given, _OF_ONE)
            self._directory(step, given)
            for check, limits in _mappings(step.below("checks"), given.get("checks")):
                self._durations(check, limits, _OF_ONE)
        chosen = overrides.get("directory")
        if chosen is None:
            self._directory(self._tree, values)
        if chosen is not None or values.get("directory") is None:
            # On the command line a directory is meant from where one stands.
            chosen = absolute_directory(None if chosen is None else Path(chosen))
            overrides = {**overrides, "directory": chosen}
        return self._validated({**values, **overrides}, overrides)

    def _durations(self, node: Node, values: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            for written in (*ALIASES.get(name, ()), name):
                if written not in values:
                    continue
                given, line = values.pop(written), node.nearest([written]).line
                if name in values:
                    words = f"{written} and {name} mean the same"
                    self._note(line, words, "Leave one of them out.")
                    continue
                try:
                    values[name] = duration_s(given, written) if isinstance(given, str) else given
                except InvalidInput as error:
                    self._note(line, error.message, error.hint or "Write it like 90s, 10m or 2h.")

    def _directory(self, node: Node, values: dict[str, Any]) -> None:
        """Make a directory of the file absolute; a relative one is meant from where the file is."""
        given = values.get("directory")
        if not isinstance(given, str):
            return
        line = node.nearest(["directory"]).line
        del values["directory"]
        if not given.strip():
            self._note(line, "directory is empty", "Leave it out for the current directory.")
            return
        try:
            values["directory"] = absolute_directory(self._beside / given)
        except InvalidInput:
            hint = "A relative path begins at the directory of the file."
            self._note(line, f"{shown(given)} is not a directory", hint)

    def _validated(self, values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError

        from kapelle.patterns.pipeline import PipelineSpec

        try:
            spec = PipelineSpec.model_validate(values)
        except ValidationError as invalid:
            wrong = [
                problem(error, self._tree, overrides)
                for error in invalid.errors(include_url=False)
                # A variable without a value was complained of already.
                if not self._problems or "${" not in str(error["input"])
            ]
            self._problems.extend(wrong)
        if self._problems:
            raise Unusable(*self._problems)
        return spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def _note(self, line: int, words: str, hint: str) -> None:
        self._problems.append(Problem(line, words, hint))


def _mappings(node: Node | None, values: Any) -> Iterator[tuple[Node, dict[str, Any]]]:
    """The items of a list that are mappings, each with where it stands."""
    for index, value in enumerate(values if node and isinstance(values, list) else ()):
        item = node.below(index) if node else None
        if item and isinstance(value, dict):
            yield item, value
