"""A specification that was read from a file, so that what the daemon refuses has its line too."""

from collections.abc import Collection, Iterator
from typing import Any

from kapelle.cli.files.tree import Node
from kapelle.domain.errors import KapelleError

# Names that only the daemon can judge.
_JUDGED = ("agent", "fallback_agents", "base")


class FromFile(dict[str, Any]):
    """A specification, the file that it stands in, and the keys that options have overridden."""

    def __init__(
        self, spec: dict[str, Any], file: str, tree: Node, overridden: Collection[str]
    ) -> None:
        super().__init__(spec)
        self._file, self._tree, self._overridden = file, tree, overridden

    def locate(self, error: KapelleError) -> None:
        """Put the lines of what an error is about before its words, if the file names that."""
        said, sentences = error.message, []
        words = said[:1].lower() + said[1:].rstrip(".")
        for line, step, name in self._names():
            if repr(name) in said or f"The agent {name} " in said:
                sentences.append(f"{self._file}:{line}: {step}{words}")
                # What else there is to say is said once.
                words = words.partition(";")[0]
        if sentences:
            error.args = ("\n".join(sentences),)

    def _names(self) -> Iterator[tuple[int, str, str]]:
        """Each with its line and, in a step, with which step it is."""
        for key in _JUDGED:
            if key in self and key not in self._overridden:
                names = self[key] if isinstance(self[key], list) else [self[key]]
                for index, name in enumerate(names):
                    yield self._tree.nearest([key, index]).line, "", name
        for index, step in enumerate(self["steps"]):
            if "agent" in step:
                line = self._tree.nearest(["steps", index, "agent"]).line
                yield line, f"step {index + 1}: ", step["agent"]
