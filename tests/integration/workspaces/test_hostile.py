"""A repository in which everything git could run is planted: our operations run none of it."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, FilterMissing, KapelleError
from kapelle.home import disk_use

from .sandbox import Sandbox

HOOKS = [
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
]

ATTRIBUTES = "* diff=evil merge=evil\n*.f filter=evil\n*.p filter=proc\n*.t diff=conv\n"


class Canaries:
    """Commands that leave a trace when they are run."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.directory = box.root / "canaries"
        self.directory.mkdir()

    def command(self, name: str) -> str:
        script = self.box.write(
            f"planted/{name}", f"#!/bin/sh\ntouch {self.directory}/{name}\ncat\n", self.box.root
        )
        script.chmod(0o755)
        return str(script)

    def sung(self) -> list[str]:
        return sorted(entry.name for entry in self.directory.iterdir())

    def hush(self) -> None:
        for entry in self.directory.iterdir():
            entry.unlink()


def settings(canaries: Canaries, origin: str) -> str:
    """Every setting that names a program, as text of a configuration file."""

    def run(name: str) -> str:
        return canaries.command(f"{origin}-{name}")

    return f"""
[core]
    fsmonitor = {run("fsmonitor")}
    sshCommand = {run("ssh")}
    pager = {run("pager")}
    editor = {run("editor")}
    askPass = {run("askpass")}
    gitProxy = {run("gitproxy")}
    alternateRefsCommand = {run("alternaterefs")}
[filter "evil"]
    clean = {run("clean")}
    smudge = {run("smudge")}
    required = false
[filter "proc"]
    process = {run("process")}
[merge "evil"]
    driver = {run("mergedriver")} %O %A %B
[diff]
    external = {run("external")}
[diff "evil"]
    command = {run("diffcommand")}
[diff "conv"]
    textconv = {run("textconv")}
    cachetextconv = true
[gpg]
    program = {run("gpg")}
[gpg "ssh"]
    defaultKeyCommand = {run("gpgssh")}
[commit]
    gpgSign = true
[tag]
    gpgSign = true
[credential]
    helper = {run("credential")}
[gc]
    auto = 1
    autoDetach = false
    recentObjectsHook = {run("recentobjects")}
[maintenance]
    auto = true
[uploadpack]
    packObjectsHook = {run("packobjects")}
[sequence]
    editor = {run("sequence")}
[interactive]
    diffFilter = {run("difffilter")}
[pager]
    diff = {run("pagerdiff")}
    config = {run("pagerconfig")}
[submodule]
    recurse = true
[submodule "nested"]
    update = !{run("submodule")}
    active = true
[remote "origin"]
    url = ext::{run("ext")}
    uploadpack = {run("uploadpack")}
    promisor = true
[protocol]
    allow = always
[trailer "x"]
    command = {run("trailer")}
[alias]
    {chr(10).join(f"    {name} = !{run('alias')}" for name in ALIASES)}
"""


ALIASES = [
    "status",
    "update-ref",
    "worktree",
    "read-tree",
    "diff-tree",
    "merge-tree",
    "commit-tree",
]


def plant_hooks(canaries: Canaries, directory: Path, origin: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for hook in HOOKS:
        target = directory / hook
        target.unlink(missing_ok=True)
        target.symlink_to(canaries.command(f"{origin}-hook-{hook}"))


def plant(canaries: Canaries) -> None:
    """What an agent could write into the shared .git and into the tree."""
    box = canaries.box
    git = box.repo / ".git"
    plant_hooks(canaries, git / "hooks", "plain")
    plant_hooks(canaries, box.root / "hooks", "path")
    template = box.root / "template"
    plant_hooks(canaries, template / "hooks", "template")
    box.write("included", settings(canaries, "include"), box.root)
    box.write("included-if", settings(canaries, "includeif"), box.root)
    text = (git / "config").read_text() + settings(canaries, "config")
    text += f"""
[core]
    hooksPath = {box.root}/hooks
    attributesFile = {box.root}/attributes
[init]
    templateDir = {template}
[include]
    path = {box.root}/included
[includeIf "gitdir:/"]
    path = {box.root}/included-if
"""
    text = text.replace("repositoryformatversion = 0", "repositoryformatversion = 1")
    (git / "config").write_text(text + "[extensions]\n    worktreeConfig = true\n")
    box.write("attributes", ATTRIBUTES, box.root)
    box.write("info/attributes", ATTRIBUTES, git)
    box.write("config.worktree", settings(canaries, "mainworktree"), git)


def plant_in_worktree(canaries: Canaries, path: Path) -> None:
    """What an agent could add in its own worktree: its configuration, attributes, nested ones."""
    box = canaries.box
    gitdir = path / ".git"
    with (gitdir / "config").open("a") as stream:
        stream.write(settings(canaries, "own") + "[extensions]\n    worktreeConfig = true\n")
    box.write("config.worktree", settings(canaries, "worktree"), gitdir)
    box.write("info/attributes", ATTRIBUTES, gitdir)
    plant_hooks(canaries, gitdir / "hooks", "gitdir")
    box.write(".gitattributes", ATTRIBUTES, path)
    box.write(
        ".gitmodules", '[submodule "nested"]\n path = nested\n url = ./x\n update = !x\n', path
    )
    for name in ("nested", "tracked"):
        nested = path / name
        subprocess.run(["git", "init", "-q", "--template=", str(nested)], check=True)
        box.write("inner.txt", "i", nested)
        box.write(".gitattributes", ATTRIBUTES, nested)
        clean = {**box.environment(), "GIT_CONFIG_NOSYSTEM": "1"}
        for command in (["add", "-A"], ["commit", "-q", "-m", "inner"]):
            subprocess.run(["git", *command], cwd=nested, env=clean, check=True)
        with (nested / ".git/config").open("a") as stream:
            stream.write(settings(canaries, name))
        plant_hooks(canaries, nested / ".git/hooks", name)
        box.write("inner.txt", "dirty", nested)


Operation = Callable[[], Awaitable[object]]


async def _hostile(box: Sandbox) -> tuple[Canaries, Path]:
    for name in ("x.f", "x.p", "x.t", "conflict.txt"):
        box.write(name, "one\ntwo\nthree\n")
    box.write(".gitattributes", ATTRIBUTES)
    box.save("attributes")
    canaries = Canaries(box)
    plant(canaries)
    _, path = await box.create("task_0")
    plant_in_worktree(canaries, path)
    # A gitlink that is tracked, as for a real submodule, so that status would look inside.
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    inner = box.git(*quiet, "rev-parse", "HEAD", cwd=path / "tracked")
    link = f"160000,{inner},tracked"
    box.git(*quiet, "update-index", "--add", "--cacheinfo", link, cwd=path)
    return canaries, path


async def test_nothing_planted_is_run(box: Sandbox) -> None:
    canaries, path = await _hostile(box)
    canaries.hush()
    work = box.workspaces

    async def change(number: int) -> None:
        for name in ("a.txt", "x.t", f"new{number}.t", "conflict.txt"):
            box.write(name, f"{number}\none\ntwo\nthree\n", path)

    async def refused() -> None:
        """What has a filter is not committed, and the filter does not run for that either."""
        for name in ("x.f", "x.p"):
            box.write(name, "changed", path)
            with pytest.raises(FilterMissing):
                await work.commit("task_0", "work")
            box.write(name, "one\ntwo\nthree\n", path)

    async def in_place() -> None:
        tree = await work.snapshot(box.repo)
        box.write("in-place.t", "x")
        await work.diff_since(box.repo, tree)
        (box.repo / "in-place.t").unlink()

    base = await work.tip("task_0")

    async def compare() -> None:
        await work.compare("task_0", base, await work.tip("task_0"))

    operations: list[tuple[str, Operation]] = [
        ("locate", lambda: work.locate(box.repo)),
        ("locate worktree", lambda: work.locate(path)),
        ("create", lambda: work.create("task_1", box.repo, None, ["a.txt"], ["src"])),
        ("create from", lambda: work.create("task_2", path, "kapelle/task_0")),
        ("change", lambda: change(1)),
        ("uncommitted", lambda: work.list_uncommitted("task_0")),
        ("diff", lambda: work.diff("task_0")),
        ("archive", lambda: box.archive("one", "task_0")),
        ("refused", refused),
        ("commit", lambda: work.commit("task_0", "work")),
        ("in place", in_place),
        ("merge", lambda: work.merge("task_0", None, "merge")),
        ("change again", lambda: change(2)),
        ("reset", lambda: work.reset("task_0", "two", "main")),
        ("change last", lambda: change(3)),
        ("commit last", lambda: work.commit("task_0", "more")),
        ("merge last", lambda: work.merge("task_0", "main", "merge")),
        ("log", lambda: work.log("task_0")),
        ("compare", compare),
        ("change more", lambda: change(4)),
        ("take in", lambda: work.take_in("task_0", "main", "take in")),
        ("restore", lambda: work.restore("task_0", base, "three")),
        ("restore again", lambda: work.restore("task_0", base, "three")),
        ("uncommitted", lambda: work.list_uncommitted("task_0")),
        ("merge into a task", lambda: work.merge("task_1", "kapelle/task_0", "merge")),
        ("remove", lambda: work.remove("task_0")),
        ("diff of the branch", lambda: work.diff("task_0")),
        ("create again", lambda: work.create("task_0", box.repo, None)),
        ("orphan", lambda: work.discard("task_2")),
        ("tidy", work.tidy),
    ]
    for name, operation in operations:
        await operation()
        assert canaries.sung() == [], name
    assert "3\n" in (box.repo / "x.t").read_text()


async def test_conflicts_and_refusals_run_nothing_either(box: Sandbox) -> None:
    canaries, path = await _hostile(box)
    box.write("conflict.txt", "theirs\n", path)
    await box.workspaces.commit("task_0", "theirs")
    _, other = await box.create("task_1")
    box.write("conflict.txt", "ours\n", other)
    await box.workspaces.commit("task_1", "ours")
    await box.workspaces.merge("task_1", None, "m")
    canaries.hush()
    with pytest.raises(KapelleError):
        await box.workspaces.merge("task_0", None, "m")
    assert "conflict.txt" in await box.workspaces.take_in("task_0", "main", "m")
    assert await box.workspaces.find_conflicted("task_0", ["conflict.txt"]) == ["conflict.txt"]
    box.write("a.txt", "dirty")
    for base in ("missing", "origin/main", "--x"):
        with suppress(KapelleError):
            await box.workspaces.create("task_9", box.repo, base)
    await asyncio.gather(*(box.workspaces.diff(task) for task in ("task_0", "task_1")))
    assert canaries.sung() == []


async def test_a_plain_git_does_run_them(box: Sandbox) -> None:
    canaries, path = await _hostile(box)
    fired = set()
    for command in (
        ("status",),
        ("diff",),
        ("add", "-A"),
        ("commit", "-q", "-m", "x"),
        ("worktree", "add", "-q", "--detach", str(box.root / "more")),
        ("switch", "-q", "-c", "y"),
        ("merge-tree", "--write-tree", "HEAD", "main"),
    ):
        canaries.hush()
        box.write("a.txt", f"changed for {command}", path)
        box.git(*command, cwd=path, check=False)
        if canaries.sung():
            fired.add(command[0])
    assert {"status", "diff", "add", "commit", "worktree"} <= fired


async def test_a_change_of_the_users_own_configuration_is_told(box: Sandbox) -> None:
    home = Path(os.environ["HOME"])
    home.mkdir(exist_ok=True)
    before = await box.workspaces.state(box.repo, None)
    assert await box.workspaces.changes_of(box.repo, before) == []
    (home / ".gitconfig").write_text("[core]\n\thooksPath = /tmp\n", encoding="utf-8")
    changed = await box.workspaces.changes_of(box.repo, before)
    assert changed == ["your own configuration of git"]


async def test_an_index_of_any_size_is_refused_and_not_copied(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n\n", path)
    await box.workspaces.commit("task_1", "work")
    index = box.repo / ".git/index"
    whole = index.read_bytes()
    index.write_bytes(b"")
    os.truncate(index, 600 << 20)
    with pytest.raises(Conflict, match="larger than 512 MB"):
        await box.workspaces.preview_merge("task_1", None)
    with pytest.raises(Conflict, match="larger than 512 MB"):
        await box.workspaces.merge("task_1", None, "m")
    assert not (box.repo / ".git/index.lock").exists()
    assert disk_use(box.home)[0] < 100 << 20
    index.write_bytes(whole)
    # The index of a worktree is made again.
    index_there = Path(box.git("rev-parse", "--absolute-git-dir", cwd=path)) / "index"
    os.truncate(index_there, 600 << 20)
    with pytest.raises(Conflict, match="larger than 512 MB"):
        await box.workspaces.copy("task_1")
    assert disk_use(box.home)[0] < 100 << 20
    box.write("more.txt", "m\n", path)
    assert await box.workspaces.commit("task_1", "more")
    assert (await box.workspaces.merge("task_1", None, "m")).checkout_updated == box.repo
