"""Variables of a file: ${name} in its texts is replaced, $${ is how ${ itself is written."""

import difflib
import re
from typing import Any

from kapelle.cli.files.tree import Node, Problem, kind

SECTION = "variables"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USE = re.compile(r"\$\$\{|\$\{([^}\n]*)\}|\$\{")


class Filling:
    """Replaces the variables of one file, and notes what is wrong with them."""

    def __init__(self, tree: Node, text: str, given: dict[str, str]) -> None:
        self.problems: list[Problem] = []
        self._lines = text.split("\n")
        self._given = given
        self._used: set[str] = set()
        self._declared = self._declarations(tree.below(SECTION))
        self._values = {
            **{name: value for name, value in self._declared.items() if value is not None},
            **given,
        }

    def filled(self, node: Node) -> Any:
        """The values of a node as plain lists, mappings and texts, which are the caller's own."""
        if isinstance(node.value, dict):
            return {key: self.filled(part) for key, part in node.value.items()}
        if isinstance(node.value, list):
            return [self.filled(part) for part in node.value]
        if node.value is None:
            return None
        # What is put in is not looked at again, so no value can ask for another.
        return _USE.sub(lambda use: self._replacement(use, node), node.value)

    def check_all_used(self, line: int) -> None:
        """Note each variable of the command line that the file neither declares nor uses."""
        known = sorted({*self._declared, *self._used})
        for name in sorted(set(self._given) - set(known)):
            near = difflib.get_close_matches(name, known, 1, 0.6)
            words = f"--var {name}: there is no such variable in the file"
            hint = f"It has {', '.join(known)}." if known else "It has no variables at all."
            meant = f"; did you mean {near[0]}?" if near else ""
            self.problems.append(Problem(line, words + meant, hint))

    def _declarations(self, section: Node | None) -> dict[str, str | None]:
        declared: dict[str, str | None] = {}
        if section is None or section.value is None:
            return declared
        if not isinstance(section.value, dict):
            words = f"{SECTION} must be a mapping of names to texts, not {kind(section.value)}"
            self._note(section.line, words, "Write `variables: {version: 1.0}`.")
            return declared
        for name, node in section.value.items():
            if not _NAME.fullmatch(name):
                words = f"{name!r} cannot be the name of a variable"
                self._note(node.line, words, "Use letters, digits and _, no digit first.")
            elif isinstance(node.value, list | dict):
                self._note(node.line, f"the variable {name} must be text, not {kind(node.value)}")
            else:
                declared[name] = node.value
                if node.value is None and name not in self._given:
                    words = f"the variable {name} has no value"
                    self._note(node.line, words, f"Add --var {name}=VALUE.")
        return declared

    def _replacement(self, use: re.Match[str], node: Node) -> str:
        written, name = use.group(), use.group(1)
        if written == "$${":
            return "${"
        if name is None or not _NAME.fullmatch(name):
            words = f"{written} is no variable"
            self._note(self._line_of(written, node), words, "For ${ itself write $${.")
            return written
        self._used.add(name)
        if name in self._values:
            return self._values[name]
        if name not in self._declared:
            near = difflib.get_close_matches(name, self._values, 1, 0.6)
            words = f"the variable {name} is not defined"
            words += f"; did you mean {near[0]}?" if near else ""
            hint = f"Add --var {name}=VALUE, or write $${{{name}}} if it is none."
            self._note(self._line_of(written, node), words, hint)
        return written

    def _line_of(self, written: str, node: Node) -> int:
        """Where in the lines of a value something stands first."""
        use = re.compile(r"(?<!\$)" + re.escape(written))
        lines = range(node.line, min(node.last, len(self._lines)) + 1)
        return next((line for line in lines if use.search(self._lines[line - 1])), node.line)

    def _note(self, line: int, words: str, hint: str = "") -> None:
        self.problems.append(Problem(line, words, hint))
