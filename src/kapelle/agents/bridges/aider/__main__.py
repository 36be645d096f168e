"""Runs aider, which prints text and exits with 0 whatever happens, and prints Kapelle's events.

    python -I -m kapelle.agents.bridges.aider --session FILE --logs DIR [--from FILE] -- aider …

The session is aider's chat history, a file outside the workspace. --from names the one to go on
with: the session itself, or another of which it becomes a copy. Everything else that aider notes
goes into --logs.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kapelle.agents.bridges.aider.report import Report
from kapelle.agents.bridges.child import Child


def main() -> None:
    options, command = _options(sys.argv[1:])
    session: Path = options.session
    if options.origin and not options.origin.is_file():
        emit("error", f"Its chat history {options.origin} is gone.", "session_lost")
        sys.exit(1)
    if options.origin and options.origin != session:
        shutil.copyfile(options.origin, session)
    session.touch(mode=0o600)
    emit("session", str(session))
    repository = _repository(Path.cwd())
    logs = options.logs
    command += _files(session, logs, resume=options.origin is not None)
    command += [] if repository else ["--no-git"]
    report = Report(emit, logs / "aider.events.jsonl", logs / "aider.model.log")
    with Child(command, os.environ | _identity(os.environ)) as child:
        _follow(child, report, repository or Path.cwd())
        report.end(child.wait())
        if report.wants_login:
            sys.exit(1)
        child.end_likewise()


def _follow(child: Child, report: Report, root: Path) -> None:
    for line in child.lines():
        banner_was_over = report.banner_is_over
        report.hear(line.decode("utf-8", "replace").rstrip("\r"))
        if report.banner_is_over and not banner_was_over:
            _hide_caches(root)
        if report.wants_login:
            child.stop()
    _hide_caches(root)


def emit(kind: str, text: str = "", name: str = "", data: Mapping[str, Any] | None = None) -> None:
    event = {"kind": kind, "text": text, "name": name, "data": data}
    print(json.dumps({key: value for key, value in event.items() if value}), flush=True)


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    own = arguments.index("--")
    parser = argparse.ArgumentParser(prog="kapelle.agents.bridges.aider", allow_abbrev=False)
    parser.add_argument("--session", type=Path, required=True)
    parser.add_argument("--from", dest="origin", type=Path)
    parser.add_argument("--logs", type=Path, required=True)
    return parser.parse_args(arguments[:own]), arguments[own + 1 :]


def _files(session: Path, logs: Path, resume: bool) -> list[str]:
    """Options that keep aider's own files out of the workspace and let us read them."""
    return [
        *("--chat-history-file", str(session)),
        *("--input-history-file", str(logs / "aider.input")),
        *("--llm-history-file", str(logs / "aider.model.log")),
        *("--analytics-log", str(logs / "aider.events.jsonl")),
        *(["--restore-chat-history"] if resume else []),
    ]


def _repository(directory: Path) -> Path | None:
    """The root of the repository around a directory; without one aider would make one."""
    places = (directory, *directory.parents)
    return next((place for place in places if (place / ".git").exists()), None)


def _identity(env: Mapping[str, str]) -> dict[str, str]:
    """A name for git: aider writes "Your Name" into the repository's settings if it finds none."""
    count = int(env.get("GIT_CONFIG_COUNT") or 0)
    added = {"user.name": "Kapelle", "user.email": "kapelle@localhost"}
    variables = {"GIT_CONFIG_COUNT": str(count + len(added))}
    for number, (key, value) in enumerate(added.items(), count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def _hide_caches(root: Path) -> None:
    """Keep its map of the repository, which it insists to store there, out of commits."""
    for cache in root.glob(".aider.tags.cache.v*"):
        mark = cache / ".gitignore"
        if cache.is_dir() and not mark.exists():
            mark.write_text("*\n", encoding="utf-8")


if __name__ == "__main__":
    main()
