"""Sample git repositories, made without any configuration of the user's."""

import os
import subprocess
from pathlib import Path

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Tester",
    "GIT_AUTHOR_EMAIL": "tester@localhost",
    "GIT_COMMITTER_NAME": "Tester",
    "GIT_COMMITTER_EMAIL": "tester@localhost",
}


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=_ENV, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_repository(path: Path, files: dict[str, str] | None = None) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    for name, content in (files or {"README.md": "# Sample\n"}).items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message=Start")
    return path
