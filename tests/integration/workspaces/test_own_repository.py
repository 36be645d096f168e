"""The repository inside of a workspace: all of git works there, and the user sees none of it."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from kapelle.domain.errors import KapelleError, WorkspaceError
from kapelle.workspaces.clone import format_configuration
from kapelle.workspaces.shadow import intake_path

from .sandbox import Sandbox


def state(box: Sandbox) -> tuple[str, str, str, bytes]:
    """What of the user's repository an agent's git must not change."""
    refs = [line for line in box.git("for-each-ref").splitlines() if "refs/kapelle/" not in line]
    listed = box.git("worktree", "list")
    return "\n".join(refs), box.status(), listed, (box.repo / ".git/config").read_bytes()


def with_origin(box: Sandbox) -> Path:
    """A remote repository with a commit that the user has not fetched yet."""
    origin = box.root / "origin"
    box.git("clone", "-q", str(box.repo), str(origin), cwd=box.root)
    box.git("remote", "add", "origin", f"file://{origin}")
    box.git("fetch", "-q", "origin")
    box.git("branch", "-q", "--set-upstream-to=origin/main", "main")
    box.write("theirs.txt", "t\n", origin)
    box.save("theirs", origin)
    return origin


async def test_all_of_git_works_and_the_user_sees_none_of_it(box: Sandbox) -> None:
    origin = with_origin(box)
    box.git("tag", "v1")
    before = state(box)
    _, path = await box.create()
    start = box.commit_of("HEAD", path)
    assert box.git("log", "-1", "--format=%s", "origin/main", cwd=path) == "start"
    assert box.git("describe", "--tags", cwd=path) == "v1"
    assert box.git("branch", "--show-current", cwd=path) == "kapelle/task_1"
    box.write("a.txt", "stashed\n", path)
    box.git("stash", cwd=path)
    assert (path / "a.txt").read_text() == "one\n"
    box.git("stash", "pop", "-q", cwd=path)
    assert (path / "a.txt").read_text() == "stashed\n"
    box.save("own", path)
    box.git("fetch", "-q", "origin", cwd=path)
    box.git("rebase", "-q", "origin/main", cwd=path)
    assert (path / "theirs.txt").exists()
    box.git("branch", "side", cwd=path)
    box.git("tag", "mine", cwd=path)
    box.git("branch", "-D", "main", cwd=path)
    box.git("config", "user.name", "Somebody", cwd=path)
    box.git("gc", "-q", "--prune=now", cwd=path)
    box.git("fsck", "--strict", cwd=path)
    assert state(box) == before
    box.write("new.txt", "n\n", path)
    assert (await box.workspaces.diff("task_1")).files == ["a.txt", "new.txt", "theirs.txt"]
    assert state(box) == before
    commit = await box.workspaces.commit("task_1", "work")
    assert box.commit_of("kapelle/task_1") == commit == box.commit_of("HEAD", path)
    history = box.git("log", "--format=%s", "kapelle/task_1").splitlines()
    assert history == ["work", "own", "theirs", "start"]
    assert box.commit_of("main") == start
    assert not box.refs("refs/heads/side") + box.refs("refs/tags/mine")
    box.git("fsck", "--strict")
    # Without the workspace and the remote, everything is there.
    await box.workspaces.remove("task_1")
    shutil.rmtree(origin)
    await box.workspaces.merge("task_1", None, "m")
    assert box.status() == ""
    box.git("fsck", "--strict")


async def test_the_branch_appears_with_the_first_commit(box: Sandbox) -> None:
    _, path = await box.create()
    assert box.refs("refs/heads/") == ["refs/heads/main"]
    assert await box.workspaces.commit("task_1", "nothing") is None
    assert (await box.workspaces.merge("task_1", None, "m")).already
    assert box.refs("refs/heads/") == ["refs/heads/main"]
    box.write("new.txt", "n", path)
    await box.workspaces.commit("task_1", "work")
    assert "refs/heads/kapelle/task_1" in box.refs("refs/heads/")
    await box.workspaces.discard("task_1")
    assert box.refs("refs/kapelle/base/") == []


async def test_the_base_outlives_its_branch_and_a_collection(box: Sandbox) -> None:
    box.git("switch", "-q", "-c", "dev")
    box.write("dev.txt", "d\n")
    base = box.save("dev")
    _, path = await box.create()
    box.git("switch", "-q", "main")
    box.git("branch", "-D", "dev")
    box.git("reflog", "expire", "--expire=now", "--all")
    box.git("gc", "-q", "--prune=now")
    assert box.git("show", "HEAD:dev.txt", cwd=path) == "d"
    box.write("new.txt", "n\n", path)
    commit = await box.workspaces.commit("task_1", "work")
    assert box.commit_of(f"{commit}^") == base


async def test_identity_hooks_and_ignored_files_are_those_of_the_user(box: Sandbox) -> None:
    box.git("config", "user.name", "Configured")
    box.git("config", "user.email", "configured@localhost")
    box.git("config", "alias.hi", "!echo \"a # b \\\\ c\"; echo 'two'")
    box.git("config", "branch.main.description", 'first\nsecond\t"x"')
    box.write(".git/info/exclude", "*.local\n")
    hook = box.write(".git/hooks/commit-msg", '#!/bin/sh\necho hooked >> "$1"\n')
    hook.chmod(0o755)
    box.write(".git/hooks/applypatch-msg.sample", "x")
    _, path = await box.create()
    names = ("user.name", "user.email", "alias.hi", "branch.main.description", "core.filemode")
    for name in names:
        assert box.git("config", name, cwd=path) == box.git("config", name)
    assert sorted(file.name for file in (path / ".git/hooks").iterdir()) == ["commit-msg"]
    box.write("x.local", "x", path)
    assert box.status(path) == ""
    box.write("new.txt", "n", path)
    box.git("add", "-A", cwd=path)
    person = {name: text for name, text in box.environment().items() if name[:7] != "GIT_AUT"}
    run("commit", "-qm", "m", cwd=path, env=person)
    assert box.git("log", "-1", "--format=%an %ae|%B", cwd=path) == (
        "Configured configured@localhost|m\nhooked"
    )


async def test_a_checkout_with_a_git_directory_elsewhere(box: Sandbox) -> None:
    box.git("config", "core.worktree", str(box.repo))
    box.git("config", "extensions.worktreeConfig", "true")
    _, path = await box.create()
    assert box.git("rev-parse", "--show-toplevel", cwd=path) == str(path)
    assert box.git("rev-parse", "--is-bare-repository", cwd=path) == "false"
    bare = box.root / "bare.git"
    box.git("clone", "-q", "--bare", str(box.repo), str(bare), cwd=box.root)
    box.git("worktree", "add", "-q", str(box.root / "linked"), "main", cwd=bare)
    workspace = await box.workspaces.create("task_2", box.root / "linked", None)
    assert box.status(Path(workspace.path)) == ""
    box.write("new.txt", "n", Path(workspace.path))
    await box.workspaces.commit("task_2", "work")
    merged = await box.workspaces.merge("task_2", None, "m")
    assert merged.checkout_updated == box.root / "linked"
    assert (box.root / "linked/new.txt").exists()


async def test_a_workspace_of_a_sparse_checkout_is_whole(box: Sandbox) -> None:
    box.git("sparse-checkout", "set", "--no-cone", "/a.txt")
    assert not (box.repo / "src").exists()
    _, path = await box.create()
    assert (path / "src/b.txt").exists()
    assert box.status(path) == ""
    box.git("switch", "-q", "-c", "other", cwd=path)
    box.git("switch", "-q", "kapelle/task_1", cwd=path)
    assert (path / "src/b.txt").exists()
    box.write("src/b.txt", "changed\n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.show("kapelle/task_1:src/b.txt") == "changed"


async def test_a_partial_clone(box: Sandbox) -> None:
    box.git("config", "uploadpack.allowFilter", "true")
    box.write("a.txt", "later\n")
    box.save("later")
    clone = box.root / "clone"
    source = f"file://{box.repo}"
    box.git("clone", "-q", "--filter=blob:none", source, str(clone), cwd=box.root)
    workspace = await box.workspaces.create("task_1", clone, None)
    path = Path(workspace.path)
    # An old version of a file comes from the remote.
    assert box.git("show", "HEAD^:a.txt", cwd=path) == "one"
    box.write("new.txt", "n", path)
    box.save("own", path)
    box.write("more.txt", "m", path)
    await box.workspaces.commit("task_1", "work")
    await box.workspaces.merge("task_1", None, "m")
    assert (clone / "new.txt").exists()
    assert (clone / "more.txt").exists()
    await box.workspaces.remove("task_1")


async def test_a_shallow_clone_in_which_the_agent_commits(box: Sandbox) -> None:
    box.write("a.txt", "later\n")
    box.save("later")
    clone = box.root / "clone"
    box.git("clone", "-q", "--depth=1", f"file://{box.repo}", str(clone), cwd=box.root)
    workspace = await box.workspaces.create("task_1", clone, None)
    path = Path(workspace.path)
    assert box.git("rev-list", "--count", "HEAD", cwd=path) == "1"
    box.write("new.txt", "n", path)
    own = box.save("own", path)
    assert await box.workspaces.commit("task_1", "work") == own
    await box.workspaces.merge("task_1", None, "m")
    assert (clone / "new.txt").exists()
    box.git("fsck", cwd=clone)


async def test_other_branches_and_stashes_of_the_agent_are_archived(box: Sandbox) -> None:
    _, path = await box.create()
    kept = []
    for number in range(2):
        box.git("switch", "-q", "-c", f"try{number}", "kapelle/task_1", cwd=path)
        box.write(f"try{number}.txt", "x", path)
        kept.append(box.save(f"try {number}", path))
        box.write("a.txt", f"stashed {number}\n", path)
        box.git("stash", cwd=path)
        kept.append(box.commit_of("refs/stash", path))
    box.git("switch", "-q", "kapelle/task_1", cwd=path)
    box.write("work.txt", "w", path)
    assert await box.workspaces.commit("task_1", "work")
    await box.workspaces.remove("task_1")
    archive = "refs/kapelle/archive/task_1/final"
    assert set(kept) <= set(box.git("log", "--format=%H", archive).split())
    assert box.files_of("kapelle/task_1").count("work.txt") == 1


async def test_what_a_person_commits_on_the_branch_is_checked_out_when_work_goes_on(
    box: Sandbox,
) -> None:
    _, path = await box.create()
    box.write("new.txt", "n\n", path)
    await box.workspaces.commit("task_1", "work")
    box.git("switch", "-q", "kapelle/task_1")
    box.write("fix.txt", "f\n")
    fixed = box.save("fix")
    box.git("switch", "-q", "main")
    box.write("left.txt", "uncommitted\n", path)
    again, _ = await box.create()
    assert again.commit == fixed == box.commit_of("HEAD", path)
    assert (path / "fix.txt").exists()
    assert box.status(path) == ""
    [archive] = box.refs("refs/kapelle/archive/task_1")
    assert "left.txt" in box.files_of(archive)


async def test_a_history_that_the_agent_rewrites_is_followed_and_the_old_one_kept(
    box: Sandbox,
) -> None:
    _, path = await box.create()
    box.write("new.txt", "n\n", path)
    first = await box.workspaces.commit("task_1", "work")
    box.git("commit", "-q", "--amend", "-m", "amended", cwd=path)
    amended = box.commit_of("HEAD", path)
    assert await box.workspaces.tip("task_1") == amended == box.commit_of("kapelle/task_1")
    box.git("reset", "-q", "--hard", "HEAD^", cwd=path)
    assert await box.workspaces.commit("task_1", "nothing") is None
    assert box.commit_of("kapelle/task_1") == box.commit_of("main")
    kept = {box.commit_of(ref) for ref in box.refs("refs/kapelle/archive/task_1")}
    assert kept == {first, amended}


def run(*command: str, cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["git", *command], cwd=cwd, env=env, input=stdin, capture_output=True, check=True
    )
    return done.stdout.decode()


def loose(git: Path, name: str) -> Path:
    return git / "objects" / name[:2] / name[2:]


def plant(git: Path, name: str, content: bytes) -> None:
    """Store an object under the name of another one."""
    path = loose(git, name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(zlib.compress(b"blob %d\0" % len(content) + content))


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


async def test_an_object_under_a_wrong_name_misleads_nobody(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("harmless.txt", "harmless\n", path)
    box.save("own", path)
    plant(path / ".git", blob(b"evil\n"), b"harmless\n")
    box.write("evil.txt", "evil\n", path)
    diff = await box.workspaces.diff("task_1")
    assert b"+evil" in diff.patch
    assert await box.workspaces.commit("task_1", "work")
    assert box.show("kapelle/task_1:evil.txt") == "evil"
    diff = await box.workspaces.diff("task_1")
    assert b"+evil" in diff.patch
    box.git("fsck", "--strict")


async def test_a_pack_with_a_forged_index_misleads_nobody(box: Sandbox) -> None:
    _, path = await box.create()
    forger = box.root / "forger"
    box.git("init", "-q", str(forger))
    # A pack that holds one text, and an index that names it as the other.
    for text in ("harmless\n", "evil\n"):
        box.write("x", text, forger)
        box.git("hash-object", "-w", "x", cwd=forger)
    packs = path / ".git/objects/pack"
    listed = f"{blob(b'harmless' + chr(10).encode())}\n".encode()
    name = run("pack-objects", "-q", str(packs / "pack"), cwd=forger, stdin=listed)
    index = packs / f"pack-{name.strip()}.idx"
    content = bytearray(index.read_bytes())
    old, new = bytes.fromhex(blob(b"harmless\n")), bytes.fromhex(blob(b"evil\n"))
    at = content.index(old)
    content[at : at + 20] = new
    low, high = sorted((old[0], new[0]))
    for first in range(low, high):
        entry = 8 + first * 4
        content[entry : entry + 4] = (1 if new[0] <= first else 0).to_bytes(4, "big")
    content[-20:] = hashlib.sha1(content[:-20]).digest()
    index.chmod(0o644)
    index.write_bytes(content)
    box.write("evil.txt", "evil\n", path)
    assert box.git("cat-file", "blob", blob(b"evil\n"), cwd=path, check=False) == "harmless"
    assert b"+evil" in (await box.workspaces.diff("task_1")).patch
    assert await box.workspaces.commit("task_1", "work")
    assert box.show("kapelle/task_1:evil.txt") == "evil"
    assert b"+evil" in (await box.workspaces.diff("task_1")).patch
    box.git("fsck", "--strict")


async def test_what_only_other_alternates_hold_is_not_taken(box: Sandbox) -> None:
    secret = box.root / "secret"
    box.git("init", "-q", str(secret))
    box.write("key.txt", "top secret\n", secret)
    box.save("secret", secret)
    tree = box.commit_of("HEAD^{tree}", secret)
    _, path = await box.create()
    alternates = path / ".git/objects/info/alternates"
    with alternates.open("a") as stream:
        stream.write(f"{secret}/.git/objects\n")
    stolen = box.git("commit-tree", tree, "-p", "HEAD", "-m", "stolen", cwd=path)
    box.git("update-ref", "refs/heads/kapelle/task_1", stolen, cwd=path)
    box.git("read-tree", stolen, cwd=path)
    box.write("new.txt", "n\n", path)
    commit = await box.workspaces.commit("task_1", "work")
    assert "new.txt" in box.files_of("kapelle/task_1")
    assert commit == box.commit_of("kapelle/task_1")
    held = box.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert blob(b"top secret\n") not in held
    assert Path(alternates.read_text().strip()).resolve() == box.repo / ".git/objects"
    box.git("fsck", "--strict")


@pytest.mark.parametrize("kind", ["pipe", "zero", "large"])
async def test_pipes_and_devices_in_it_stop_nothing(box: Sandbox, kind: str) -> None:
    _, path = await box.create()
    box.write("a.txt", "own\n", path)
    box.save("own", path)
    names = (
        *("HEAD", "config", "packed-refs", "kapelle.kapelle", "info/exclude", "shallow"),
        *("objects/info/alternates", "objects/info/commit-graph", "logs/refs/stash"),
        *("objects/aa/" + "b" * 38, f"objects/pack/pack-{'c' * 40}.pack", "refs/heads/x"),
        *("refs/stash", "refs/replace/" + box.commit_of("main"), "info/grafts", "MERGE_HEAD"),
    )
    for name in names:
        file = path / ".git" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "zero":
            file.symlink_to("/dev/zero")
        else:
            file.touch()
            os.truncate(file, 1 << 32)
    box.write("new.txt", "n\n", path)
    async with asyncio.timeout(60):
        assert "new.txt" in (await box.workspaces.diff("task_1")).files
        await box.workspaces.tip("task_1")
        assert await box.workspaces.commit("task_1", "work")
        assert "new.txt" in box.files_of("kapelle/task_1")
        await box.workspaces.reset("task_1", "one")
        await box.workspaces.remove("task_1")


async def test_replaced_commits_and_grafts_do_not_count(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n\n", path)
    own = box.save("own", path)
    fake = box.git("commit-tree", "main^{tree}", "-m", "fake", cwd=path)
    box.git("replace", own, fake, cwd=path)
    box.write(".git/info/grafts", f"{own}\n", path)
    assert await box.workspaces.commit("task_1", "work") == own
    assert box.files_of(own).count("new.txt") == 1
    assert box.commit_of(f"{own}^") == box.commit_of("main")
    assert box.refs("refs/replace/") == []


def link(box: Sandbox, path: Path) -> None:
    """Make a workspace what it was in earlier versions: a linked worktree of the repository."""
    shutil.rmtree(path)
    box.git("worktree", "add", "-q", "--lock", "-b", "kapelle/task_1", str(path), "main")
    marker = box.home / "worktrees/task_1.json"
    record = json.loads(marker.read_text())
    record["gitdir"] = str(box.repo / ".git/worktrees/task_1")
    record["inode"] = path.lstat().st_ino
    del record["is_empty"]
    marker.write_text(json.dumps(record))
    box.git("update-ref", "-d", "refs/kapelle/base/task_1")


@pytest.mark.parametrize(
    "first", ["commit", "create", "reset", "remove", "merge", "diff", "discard", "take_in"]
)
async def test_a_linked_worktree_of_an_earlier_version(box: Sandbox, first: str) -> None:
    _, path = await box.create()
    link(box, path)
    box.write("a.txt", "by the agent\n", path)
    own = box.save("own", path)
    box.write("new.txt", "staged\n", path)
    box.git("add", "new.txt", cwd=path)
    box.write("more.txt", "m\n", path)
    work = box.workspaces
    assert await work.tip("task_1") == own
    if first == "commit":
        assert await work.commit("task_1", "work") == box.commit_of("kapelle/task_1")
    elif first == "create":
        assert (await box.create())[0].commit == own
    elif first == "reset":
        await work.reset("task_1", "one")
    elif first in ("remove", "discard"):
        await getattr(work, first)("task_1")
    elif first == "merge":
        await work.merge("task_1", None, "m")
    elif first == "take_in":
        await work.take_in("task_1", "main", "m")
    if first not in ("discard", "reset"):
        assert (await work.diff("task_1")).files
    if first in ("remove", "reset", "discard"):
        [archive] = box.refs("refs/kapelle/archive/task_1")
        assert {"new.txt", "more.txt"} <= set(box.files_of(archive))
    if first not in ("merge", "diff"):
        assert len(box.git("worktree", "list").splitlines()) == 1
        assert path.exists() is (first not in ("remove", "discard"))
    if path.exists():
        await work.commit("task_1", "work")
        assert box.status(path) == ""
        assert (path / ".git").is_dir()
        assert box.git("branch", "--show-current", cwd=path) == "kapelle/task_1"
        await work.remove("task_1")
    assert len(box.git("worktree", "list").splitlines()) == 1
    assert not (box.repo / ".git/worktrees").exists() or not os.listdir(box.repo / ".git/worktrees")


async def test_nothing_is_left_beside_a_removed_workspace(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("a.txt", "own\n", path)
    box.save("own", path)
    await box.workspaces.commit("task_1", "work")
    assert intake_path(path).is_dir()
    await box.workspaces.discard("task_1")
    assert list(path.parent.iterdir()) == []


async def test_commits_that_are_incomplete_are_left_and_the_files_are_kept(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("deep/one.txt", "1\n", path)
    box.save("own", path)
    loose(path / ".git", box.git("rev-parse", "HEAD:deep", cwd=path)).unlink()
    box.write("new.txt", "n\n", path)
    commit = await box.workspaces.commit("task_1", "work")
    assert box.files_of(commit or "").count("deep/one.txt") == 1
    assert box.commit_of(f"{commit}^") == box.commit_of("main")
    box.git("fsck", "--strict")


async def test_a_repository_in_its_place_does_not_lend_its_content(box: Sandbox) -> None:
    _, path = await box.create()
    shutil.rmtree(path / ".git")
    box.git("init", "-q", "-b", "kapelle/task_1", str(path))
    box.write("new.txt", "n\n", path)
    box.save("root", path)
    with pytest.raises(WorkspaceError, match="another repository"):
        await box.workspaces.commit("task_1", "work")
    assert box.git("log", "--format=%s", "kapelle/task_1").splitlines() == ["work", "start"]
    with pytest.raises(KapelleError):
        await box.workspaces.reset("task_1", "one")
    assert box.git("log", "--format=%s", cwd=path) == "root"


def test_settings_are_written_so_that_git_reads_the_same(tmp_path: Path) -> None:
    settings: list[tuple[str, str | None]] = [
        ("user.name", ' "quoted" \\ # ; \ttab\nline '),
        ("core.filemode", None),
        ('remote.a.b "c\\d.url', "x"),
        ("url.https://x.org/.insteadof", "gh:"),
        ("extensions.objectformat", "sha1"),
        ("empty.value", ""),
    ]
    file = tmp_path / "config"
    file.write_text(format_configuration(settings), "utf-8")
    listed = subprocess.run(
        ["git", "config", "-z", "--file", str(file), "--list"], capture_output=True, check=True
    ).stdout.decode()
    found = dict(record.partition("\n")[::2] for record in listed.split("\0") if record)
    for key, value in settings:
        assert found[key] == (value or "")
    assert found["core.bare"] == "false"
    assert found["core.repositoryformatversion"] == "1"


async def test_checks_leave_the_repository_alone(box: Sandbox) -> None:
    _, path = await box.create()
    since = await box.workspaces.moment("task_1")
    box.write("new.txt", "n\n", path)
    box.save("own", path)
    # All references are in one file then, and their directories empty.
    box.git("gc", "-q", cwd=path)
    commit = await box.workspaces.commit("task_1", "work")
    box.write("left/over.txt", "x", path)
    await box.workspaces.put_aside("task_1", commit or "", since)
    assert not (path / "left").exists()
    assert box.status(path) == ""
    await box.workspaces.bring_back("task_1")
    assert (path / "left/over.txt").exists()
    assert box.commit_of("HEAD", path) == commit


async def test_a_snapshot_holds_what_was_staged_and_committed_in_a_workspace(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("committed.txt", "c\n", path)
    box.save("own", path)
    box.write("staged.txt", "s\n", path)
    box.git("add", "staged.txt", cwd=path)
    tree = await box.workspaces.snapshot(path)
    box.write("later.txt", "l\n", path)
    assert (await box.workspaces.diff_since(path, tree)).files == ["later.txt"]
    found = await box.workspaces.locate(path)
    assert found is not None
    assert found.common_dir == box.repo / ".git"


async def test_a_task_begins_with_what_the_agent_of_another_committed_so_far(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("own.txt", "o\n", path)
    own = box.save("own", path)
    workspace = await box.workspaces.create("task_2", box.repo, "kapelle/task_1")
    assert (workspace.base, workspace.base_commit) == ("kapelle/task_1", own)
    box.write("more.txt", "m\n", path)
    more = box.save("more", path)
    inside = await box.workspaces.create("task_3", path, None)
    assert (inside.base, inside.base_commit) == ("kapelle/task_1", more)
    other = Path(workspace.path)
    box.write("child.txt", "c\n", other)
    await box.workspaces.commit("task_2", "child")
    box.write("last.txt", "l\n", path)
    box.save("last", path)
    merged = await box.workspaces.merge("task_2", None, "m")
    assert merged.checkout_updated == path
    assert (path / "child.txt").exists()
    assert box.status(path) == ""
    subjects = box.git("log", "--format=%s", "--first-parent", "kapelle/task_1").splitlines()
    assert subjects == ["m", "last", "more", "own", "start"]
