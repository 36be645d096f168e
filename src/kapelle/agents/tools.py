"""Tool calls of agents: which paths a call would write.

Agents report a call before it is executed, and a lock may forbid it. The answer is a guess from the
input of the tool: it covers the tools that edit files, and common shell commands that write.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping

from kapelle.domain.lock import MAX_GLOBS, MAX_PATHS, WHOLE, has_too_many_wildcards, is_glob

_LONGEST_PATH = 4096
_LONGEST_COMMAND = 50_000
# Fields in which the tools of different agents name the file that they edit.
_PATH_FIELDS = ("file_path", "notebook_path", "absolute_path", "filePath", "path")
_PATCH_HEADER = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
# Commands of git that may change any file of the checkout.
_GIT = re.compile(
    r"\bgit\b(?:\s+(?:-[Cc]\s+\S+|-(?![Cc]\s)\S+)){0,9}\s+(?:checkout|reset|clean|stash|restore"
    r"|switch|rebase|merge|pull|rm|mv|apply|am|cherry-pick|revert)\b"
)
# In a shell command: the target of a redirection, the start of the next command, and words that
# may precede the name of a program.
_REDIRECTION = re.compile(r"(?<!>)>+\|?\s*[\"']?([^\s;&|<>()\"']+)")
_SEPARATOR = re.compile(r"[;&|\n()]+")
_PREFIX = re.compile(r"\w+=.*|sudo|env|command|exec|xargs")
_WRITERS = {
    "rm", "mv", "cp", "tee", "touch", "truncate", "dd", "ln", "install", "rsync", "patch", "unlink",
    "shred", "rmdir",
}  # fmt: skip
# Programs that write files only with an option.
_IN_PLACE = {"sed": r"-[a-z]*i|--in-place", "perl": r"-[a-z]*i", "awk": "-i"}


def list_written_paths(tool_input: Mapping[str, object]) -> list[str]:
    """Return the paths that a tool call would evidently write.

    If there are too many of them, or too long ones, return the pattern for the whole checkout.
    """
    paths = _list_paths(tool_input)
    globs = [path for path in paths if is_glob(path)]
    if len(paths) > MAX_PATHS or len(globs) > MAX_GLOBS:
        return [WHOLE]
    if any(len(path) > _LONGEST_PATH for path in paths):
        return [WHOLE]
    if any(has_too_many_wildcards(path) for path in globs):
        return [WHOLE]
    return paths


def _list_paths(tool_input: Mapping[str, object]) -> list[str]:
    command = tool_input.get("command")
    if isinstance(command, list):
        text = "\n".join(map(str, command))
    else:
        text = str(command or "")
    paths = [*_list_field_paths(tool_input), *_PATCH_HEADER.findall(text)]
    if paths or not text:
        return paths
    if len(text) > _LONGEST_COMMAND or _GIT.search(text):
        return [WHOLE]
    paths = _REDIRECTION.findall(text)
    if isinstance(command, list):
        # The list holds the words of one command, so a line break separates nothing.
        text = text.replace("\n", " ")
    for part in _SEPARATOR.split(text):
        paths += _list_arguments_of_writer(part)
    return paths


def _list_field_paths(tool_input: Mapping[str, object]) -> Iterator[str]:
    for name in _PATH_FIELDS:
        value = tool_input.get(name)
        if isinstance(value, str):
            yield value
    for name in ("paths", "changes"):
        value = tool_input.get(name)
        if not isinstance(value, list):
            continue
        for one in value:
            if isinstance(one, Mapping) and "path" in one:
                yield str(one["path"])
            else:
                yield str(one)


def _list_arguments_of_writer(command: str) -> list[str]:
    """Return the arguments of a simple command that writes files; an empty list for others."""
    words = [word.strip("\"'") for word in command.split() if not _PREFIX.fullmatch(word)]
    if not words:
        return []
    program = posixpath.basename(words[0])
    writes = program in _WRITERS
    if program in _IN_PLACE:
        writes = any(re.match(_IN_PLACE[program], word) for word in words)
    if not writes:
        return []
    return [word.removeprefix("of=") for word in words[1:] if not word.startswith("-")]
