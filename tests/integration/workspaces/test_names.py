"""Names are data: no branch, base or file name becomes an option or a command."""

import asyncio
import shutil
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kapelle.domain.errors import KapelleError
from kapelle.workspaces import Workspaces
from kapelle.workspaces.refs import make_branch_ref

from .sandbox import Sandbox

NASTY = [
    "--upload-pack=touch canary",
    "-x",
    "--output=canary",
    "$(touch canary)",
    "`touch canary`",
    "; touch canary",
    "|touch canary",
    "a\nb",
    "a\0b",
    "über/näme",
    "'quote\"s'",
    "--help",
    "-c core.pager=touch",
    "--",
    "--end-of-options",
    "@{-1}",
    ":/start",
    "\udcff",
    "\ud800",
    "ext::sh -c touch% canary",
    "refs/heads/../../canary",
    "x" * 5000,
]

LEGAL = [
    "--upload-pack=x",
    "-x",
    "$(touch${IFS}canary)",
    "über",
    "'quote\"s'",
    "--output=canary",
    "-",
]


@pytest.mark.parametrize("name", NASTY)
async def test_nasty_names_are_only_names(box: Sandbox, name: str) -> None:
    await box.create("task_0")
    for call in (
        box.workspaces.create("task_1", box.repo, name),
        box.workspaces.merge("task_0", name, "m"),
        box.workspaces.reset("task_0", "one", name),
    ):
        with suppress(KapelleError):
            await call
    assert not list(box.root.rglob("canary"))


@pytest.mark.parametrize("name", LEGAL)
async def test_odd_but_legal_branches_work(box: Sandbox, name: str) -> None:
    box.git("update-ref", f"refs/heads/{name}", "HEAD")
    workspace, path = await box.create("task_1", name)
    assert workspace.base == name
    for file in (*LEGAL, "new\nline"):
        box.write(file, "x", path)
    await box.workspaces.commit("task_1", name)
    merge = await box.workspaces.merge("task_1", None, name)
    assert merge.base == name
    assert box.commit_of(f"refs/heads/{name}") == merge.commit
    assert set(LEGAL) <= set(box.files_of(merge.commit))
    await box.workspaces.remove("task_1")
    assert not list(box.root.rglob("canary"))


names = st.one_of(
    st.text(max_size=40),
    st.text("-=/.:@{}~^$`'\" abcx\n\t*?[\\", max_size=20),
    st.sampled_from(NASTY),
    st.text(max_size=10).map(lambda text: f"--{text}"),
    st.text("abc/-.", min_size=1, max_size=12),
)


class Recorder:
    """A git that writes down its arguments and then is the real one."""

    def __init__(self, box: Sandbox) -> None:
        self._log = box.root / "calls"
        self.executable = box.write(
            "recorder",
            "#!/bin/sh\n{ printf '%s\\0' \"$@\"; printf '\\1\\0'; } >> "
            f"'{self._log}'\nexec {shutil.which('git')} \"$@\"\n",
            box.root,
        )
        self.executable.chmod(0o755)

    def take(self) -> list[list[str]]:
        if not self._log.exists():
            return []
        text = self._log.read_bytes().decode("utf-8", "surrogateescape")
        self._log.unlink()
        calls = text.split("\1\0")
        return [call.split("\0")[:-1] for call in calls if call]


def options_of(call: list[str]) -> set[str]:
    """The arguments that git takes for options: those before the end of options."""
    found, skip = set(), False
    for argument in call:
        if skip:
            skip = False
            continue
        skip = argument == "-c"
        if argument.startswith("-"):
            found.add(argument)
        if argument in {"--", "--end-of-options"}:
            break
    return found


async def try_everything(workspaces: Workspaces, box: Sandbox, name: str) -> None:
    for call in (
        workspaces.create("task_1", box.repo, name),
        workspaces.merge("task_0", name, "m"),
        workspaces.reset("task_0", "one", name),
    ):
        with suppress(KapelleError):
            await call
    if (box.home / "worktrees/task_1").exists():
        await workspaces.discard("task_1")


def test_no_name_becomes_an_option(box: Sandbox) -> None:
    recorder = Recorder(box)
    workspaces = Workspaces(box.home, "K", "k@localhost", executable=str(recorder.executable))
    _, path = asyncio.run(box.create("task_0"))
    box.write("new.txt", "n", path)
    asyncio.run(try_everything(workspaces, box, "main"))
    usual = set().union(*map(options_of, recorder.take()))
    assert {"--verify", "--end-of-options", "--reset", "--stdin"} <= usual
    seen = 0

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(names)
    def probe(name: str) -> None:
        nonlocal seen
        asyncio.run(try_everything(workspaces, box, name))
        for call in recorder.take():
            seen += 1
            assert options_of(call) <= usual, call

    probe()
    assert seen > 200
    assert not list(box.root.rglob("canary"))


@settings(max_examples=300, deadline=None)
@given(names)
def test_our_idea_of_a_branch_name_is_at_least_as_strict_as_git_s(name: str) -> None:
    ref = make_branch_ref(name)
    if ref is None:
        return
    assert ref.startswith("refs/heads/")
    assert not set(ref) & set("\0\n ~^:?*[\\")
    assert ".." not in ref
    assert "@{" not in ref
