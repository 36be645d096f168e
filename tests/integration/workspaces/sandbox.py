"""A user's repository and a home of Kapelle, with a plain git for the user and the agent."""

import os
import subprocess
from pathlib import Path

from kapelle.domain.task import Workspace
from kapelle.workspaces import Workspaces
from kapelle.workspaces.commit import archive_worktree


class Sandbox:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.repo = root / "repo"
        self.home = root / "home"
        self.workspaces = Workspaces(self.home, "Kapelle", "kapelle@localhost")

    def make_repository(self, *options: str) -> None:
        self.git("init", "-q", "-b", "main", *options, str(self.repo), cwd=self.root)
        self.write("a.txt", "one\n")
        self.write("src/b.txt", "two\n")
        self.write("src/deep/c.txt", "three\n")
        self.save("start")

    def write(self, name: str, text: str | bytes, top: Path | None = None) -> Path:
        path = (top or self.repo) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def git(self, *arguments: str, cwd: Path | None = None, check: bool = True) -> str:
        """What a person or an agent types; reads the repository's configuration as usual."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd or self.repo,
            env=self.environment(),
            capture_output=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"git {arguments}: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def environment(self) -> dict[str, str]:
        person = {"NAME": "User", "EMAIL": "user@localhost"}
        roles = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in person.items()
        }
        return {
            **roles,
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file",
        }

    def save(self, message: str, top: Path | None = None) -> str:
        self.git("add", "-A", cwd=top)
        self.git("commit", "-q", "-m", message, cwd=top)
        return self.commit_of("HEAD", top)

    def commit_of(self, revision: str, top: Path | None = None) -> str:
        return self.git("rev-parse", "--verify", revision, cwd=top)

    def tip(self, owner: str) -> str:
        """What an owner's branch holds; its base commit as long as nothing was committed."""
        ref = f"refs/heads/kapelle/{owner}"
        if not self.refs(ref):
            ref = f"refs/kapelle/base/{owner}"
        return self.commit_of(ref)

    def gitdir(self, owner: str = "task_1") -> Path:
        """The repository inside a workspace."""
        return self.home / "worktrees" / owner / ".git"

    def is_merged(self, owner: str, into: str) -> bool:
        """Whether all that an owner's branch holds is in another branch."""
        lacking = self.git("rev-list", f"kapelle/{owner}", f"^refs/heads/{into}", "--")
        return lacking == ""

    def status(self, top: Path | None = None) -> str:
        return self.git("status", "--porcelain", cwd=top)

    def show(self, spec: str) -> str:
        return self.git("show", spec)

    def files_of(self, revision: str) -> list[str]:
        return [
            name
            for name in self.git("ls-tree", "-r", "-z", "--name-only", revision).split("\0")
            if name
        ]

    def refs(self, prefix: str) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname)", prefix).split()

    async def archive(self, name: str, owner: str = "task_1") -> str | None:
        """Keep what is in a worktree, as is done before it is reset or removed."""
        marker = self.workspaces._markers.require(owner)
        archived = await archive_worktree(marker, name)
        return archived and archived[1]

    async def create(
        self, task_id: str = "task_1", base: str | None = None
    ) -> tuple[Workspace, Path]:
        workspace = await self.workspaces.create(task_id, self.repo, base)
        return workspace, Path(workspace.path)
