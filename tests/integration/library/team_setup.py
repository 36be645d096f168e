"""A user's repository, a home for worktrees, and parts for agents to play."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.support.repositories import git, make_repository

from kapelle import Agent, MockAgent, Orchestrator, Request
from kapelle.library.mock import ScriptLine
from kapelle.runner.shim.files import MARKER

YES = {"quality": True, "consistency": True, "goal_aligned": True, "goal_complete": True}
NO = {**YES, "goal_complete": False, "feedback": "The zebra is missing."}


class TeamSetup:
    """Where a team works; the user's files must be the same before and after."""

    def __init__(self, root: Path) -> None:
        self.repo = make_repository(root / "repo", {"README.md": "# Sample\n", "sub/x.txt": "x\n"})
        self.home = root / "home"
        self.temporary = root / "temporary"
        self.temporary.mkdir()
        self.events: list[dict[str, Any]] = []

    def orchestrator(self, agent: Agent, **options: Any) -> Orchestrator:
        place = {"cwd": self.repo, "home": self.home, "observer": self.events.append}
        return Orchestrator(agent, **{**place, **options})

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    def show(self, branch: str | None, path: str) -> str:
        return git(self.repo, "show", f"{branch}:{path}")

    def files(self, branch: str | None) -> set[str]:
        return set(git(self.repo, "ls-tree", "-r", "--name-only", str(branch)).split())

    def branches(self) -> set[str]:
        return set(
            git(self.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        )

    def worktrees(self) -> list[str]:
        assert len(git(self.repo, "worktree", "list").splitlines()) == 1
        places = (self.home / "worktrees").glob("*/.git")
        return [str(self.repo), *sorted(str(place.parent) for place in places)]

    def processes(self) -> list[str]:
        """The command lines of all living processes that agents and checks started here."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ", "status"]):
            mark = (process.info["environ"] or {}).get(MARKER, "")
            living = process.info["status"] != psutil.STATUS_ZOMBIE
            if mark.startswith(str(self.temporary)) and living:
                found.append(" ".join(process.info["cmdline"] or []))
        return found

    def is_untouched(self) -> bool:
        """Whether the user's checkout is as it was made."""
        files = {
            str(path.relative_to(self.repo))
            for path in self.repo.rglob("*")
            if path.is_file() and ".git" not in path.parts
        }
        clean = git(self.repo, "status", "--porcelain", "--ignored") == ""
        subject = git(self.repo, "log", "-1", "--format=%s %D")
        return clean and files == {"README.md", "sub/x.txt"} and subject == "Start HEAD -> main"


def subgoal(name: str, *depends_on: str) -> dict[str, Any]:
    return {
        "id": name,
        "title": f"part {name}",
        "task": f"WORK-{name}",
        "depends_on": list(depends_on),
    }


def plan(*subgoals: dict[str, Any]) -> dict[str, Any]:
    return {"subgoals": list(subgoals)}


def writes(path: str, text: str, said: str = "Done.") -> Callable[[Request], ScriptLine]:
    """A worker that writes one file."""

    def part(request: Request) -> ScriptLine:
        assert request.cwd is not None
        (request.cwd / path).write_text(text, encoding="utf-8")
        return said

    return part


def prompts(agent: MockAgent, title: str) -> list[str]:
    return [request.prompt for request in agent.requests if request.title == title]


class Together:
    """A part in which several must be at work at the same time to come to its end."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=30)

    def __call__(self, request: Request) -> str:
        self._barrier.wait()
        assert request.cwd is not None
        (request.cwd / f"{request.title.replace(' ', '-')}.txt").touch()
        return "Done, with others."
