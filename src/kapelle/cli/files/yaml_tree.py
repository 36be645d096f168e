"""YAML as a tree with lines: built from events, so that neither depth nor aliases can hurt."""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kapelle.cli.files.tree import DEEPEST, MOST_NODES, Node, Problem, Unusable, kind

if TYPE_CHECKING:
    import yaml

_STANDARD = "tag:yaml.org,2002:"
_TYPES = ("str", "int", "float", "bool", "null", "map", "seq")
_TAGS = {None, "!", *(_STANDARD + name for name in _TYPES)}
_NOTHING = {"", "~", "null", "Null", "NULL"}


def yaml_tree(text: str) -> Node:
    """The one document of a text; raises Unusable."""
    import yaml

    builder = _Builder(text)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        line = builder.line(error.problem_mark or error.context_mark)
        words = error.problem or error.context or "it cannot be read"
        raise Unusable(Problem(line, f"this is not valid YAML: {words}", _hint(words))) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unusable(Problem(line, f"a character is not allowed: {error.character!r}")) from None
    return builder.root or Node(1, 1, None)


def _hint(problem: str) -> str:
    if "'\\t'" in problem:
        return "Indent with spaces; YAML allows no tabs there."
    if "mapping values are not allowed" in problem:
        return "Put a text that holds a colon into quotation marks."
    return "Check indentation, colons and quotation marks here and in the line before."


@dataclass(frozen=True)
class _Key:
    text: str
    line: int
    merges: bool


@dataclass
class _Open:
    """A list or mapping that has not ended; the key is one that still waits for its value."""

    line: int
    anchor: str | None
    value: Any
    size: int = 1
    depth: int = 1
    key: _Key | None = None
    merged: list[Node] = field(default_factory=list)


class _Builder:
    """Puts together what the parser reports, one event at a time."""

    def __init__(self, text: str) -> None:
        self.root: Node | None = None
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}

    def line(self, mark: Any) -> int:
        """The line of a mark as editors count; YAML also counts letters that end a line."""
        return bisect_left(self._newlines, mark.index) + 1 if mark else 1

    def take(self, event: "yaml.Event") -> None:
        import yaml

        line, last = self.line(event.start_mark), self.line(event.end_mark)
        match event:
            case yaml.DocumentStartEvent() if self.root:
                hint = "Use one file for each pipeline."
                raise Unusable(Problem(line, "a second document begins here", hint))
            case yaml.AliasEvent():
                self._alias(str(event.anchor), line)
            case yaml.ScalarEvent():
                self._scalar(event, line, last)
            case yaml.CollectionStartEvent():
                self._begin(event, line, {} if isinstance(event, yaml.MappingStartEvent) else [])
            case yaml.CollectionEndEvent():
                self._close(last)

    def _alias(self, anchor: str, line: int) -> None:
        if any(place.anchor == anchor for place in self._open):
            raise Unusable(Problem(line, f"the alias *{anchor} stands inside itself"))
        if anchor not in self._anchors:
            raise Unusable(Problem(line, f"there is no anchor &{anchor} before this alias"))
        self._put(self._anchors[anchor].at(line), None)

    def _scalar(self, event: "yaml.ScalarEvent", line: int, last: int) -> None:
        _check_tag(event.tag, line)
        plain = event.style is None and event.tag in {None, _STANDARD + "null"}
        value = None if plain and event.value in _NOTHING else event.value
        self._put(Node(line, last, value), event.anchor, merges=plain and value == "<<")

    def _begin(self, event: "yaml.CollectionStartEvent", line: int, value: Any) -> None:
        _check_tag(event.tag, line)
        _check_depth(len(self._open) + 1, line)
        self._open.append(_Open(line, event.anchor, value))

    def _close(self, last: int) -> None:
        done = self._open.pop()
        for other in done.merged:
            for key, node in other.value.items() if isinstance(other.value, dict) else ():
                done.value.setdefault(key, node)
        self._put(Node(done.line, last, done.value, done.size, done.depth), done.anchor)

    def _put(self, node: Node, anchor: str | None, *, merges: bool = False) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        here = self._open[-1]
        # An alias may reach deeper than what stands around it.
        _check_depth(len(self._open) + node.depth, node.line)
        here.depth = max(here.depth, node.depth + 1)
        here.size += node.size
        if here.size > MOST_NODES:
            words = f"the file grows to more than {MOST_NODES:,} values"
            raise Unusable(Problem(node.line, words, "Repeat less by aliases, or write less."))
        if isinstance(here.value, list):
            here.value.append(node)
        elif here.key is None:
            here.key = _key(here.value, node, merges)
        else:
            key, here.key = here.key, None
            if key.merges:
                here.merged.extend(_mappings(node))
            else:
                here.value[key.text] = node.at(key.line)


def _check_tag(tag: str | None, line: int) -> None:
    if tag not in _TAGS:
        name = str(tag).replace(_STANDARD, "!!")
        raise Unusable(
            Problem(line, f"the tag {name} is not allowed", "Leave it out; plain values do.")
        )


def _check_depth(depth: int, line: int) -> None:
    if depth > DEEPEST:
        hint = "Write it flatter; a pipeline needs no more than four levels."
        raise Unusable(Problem(line, f"this is nested more than {DEEPEST} deep", hint))


def _key(mapping: dict[str, Node], node: Node, merges: bool) -> _Key:
    if not isinstance(node.value, str):
        raise Unusable(Problem(node.line, f"a key must be text, not {kind(node.value)}"))
    if node.value in mapping:
        before = mapping[node.value].line
        words = f"the key {node.value!r} stands on line {before} already"
        raise Unusable(Problem(node.line, words, "Leave one of them out."))
    return _Key(node.value, node.line, merges)


def _mappings(node: Node) -> list[Node]:
    """What a merge key brings in: a mapping, or several, of which the first counts most."""
    parts = node.value if isinstance(node.value, list) else [node]
    for part in parts:
        if not isinstance(part.value, dict):
            raise Unusable(Problem(part.line, f"<< takes a mapping, not {kind(part.value)}"))
    return parts
