#!/usr/bin/env python3
"""Check commit messages: `commit_message.py FILE` for git's hook, `--range A..B` for CI.

CONTRIBUTING.md has the rules. Only the standard library is used, so that the hook needs no set-up.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST_SUBJECT = 72
# Made by git itself, or to be joined with another commit.
GENERATED = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
SCISSORS = "# ------------------------ >8 ------------------------"
# First words that tell what was done, or what there is, instead of what the commit does.
ENDINGS = re.compile(r"[A-Za-z]+(ed|ing)")
NOT_VERBS = {"a", "an", "the", "no", "new", "some", "fixes", "adds", "removes", "makes", "updates"}
VERBS = {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "speed", "spring", "string"}


def find_problems(message: str) -> Iterator[str]:
    """Yield a sentence for each rule that a message breaks."""
    subject, *rest = _own_lines(message)
    if GENERATED.match(subject):
        return
    if not subject:
        yield "The subject is empty."
        return
    if len(subject) > LONGEST_SUBJECT:
        yield f"The subject has {len(subject)} characters; {LONGEST_SUBJECT} is the limit."
    if subject.endswith("."):
        yield "The subject ends with a period."
    first = subject.split()[0]
    if not first[:1].isupper():
        yield f"The subject begins with {first!r}; begin with a capital letter."
    word = first.lower()
    if word in NOT_VERBS or (ENDINGS.fullmatch(word) and word not in VERBS):
        yield f"The subject begins with {first!r}; begin with what the commit does: Add, Fix, Move."
    if rest and rest[0]:
        yield "An empty line belongs between the subject and the body."
    if not any(rest):
        yield "The body is missing: say why."


def _own_lines(message: str) -> list[str]:
    """Return the lines without git's comments and the diff behind its scissors."""
    text = message.partition(SCISSORS)[0]
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    while lines and not lines[-1]:
        lines.pop()
    return lines or [""]


def read_messages(arguments: list[str]) -> dict[str, str]:
    """Return messages by the name of their commit or file."""
    if arguments[0] != "--range":
        return {arguments[0]: Path(arguments[0]).read_text(encoding="utf-8")}
    command = ["git", "log", "--no-merges", "--format=%h%x00%B%x01", arguments[1]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    entries = (entry.strip("\n") for entry in done.stdout.split("\x01"))
    return dict(entry.split("\x00", 1) for entry in entries if entry)


def main(arguments: list[str]) -> int:
    """Print every problem; return 1 if there is one."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    code = 0
    for name, message in read_messages(arguments).items():
        for problem in find_problems(message):
            print(f"{name}: {problem}", file=sys.stderr)
            code = 1
    if code:
        print("CONTRIBUTING.md, Commits, has the rules.", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
