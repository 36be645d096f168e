"""Bring commits of a workspace's own repository into the user's repository.

An agent may have written anything into its repository: objects under a wrong name, packs with a
forged index, pipes, links, other alternates. So no git reads from there. Its objects are first
copied into a directory of Kapelle, each only if its content has the hash that its name says. From
there, git packs what is reachable from one commit, and unpacks that into the user's repository.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import GitError
from kapelle.workspaces.gitdir import open_at, open_directory
from kapelle.workspaces.repository import WorkTree
from kapelle.workspaces.shadow import Shadows, intake_path

_log = logging.getLogger("kapelle.workspaces")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_REST = re.compile(r"[0-9a-f]{38}|[0-9a-f]{62}")
_PACK = re.compile(r"pack-[0-9a-f]{40,64}\.pack")
_CHUNK = 1 << 20
_BLOCK = 512
# A larger pack is installed as it is, not unpacked in memory.
_MOST_UNPACKED = 32 << 20


async def receive(shadows: Shadows, tree: WorkTree) -> Path | None:
    """Copy new objects of a workspace's repository; return where they are, None without any."""
    target = intake_path(tree.toplevel)
    packs = await asyncio.to_thread(_receive_files, tree, target)
    for pack in packs:
        await _receive_pack(shadows, tree, target, pack)
    if target.is_dir():
        return target
    return None


def _receive_files(tree: WorkTree, target: Path) -> list[str]:
    """Copy the loose objects; return the names of new packs. Blocks."""
    try:
        with open_directory(tree.gitdir, ("objects",)) as objects:
            for folder in os.listdir(objects):
                if _FOLDER.fullmatch(folder):
                    _receive_folder(tree, target, folder)
        with open_directory(tree.gitdir, ("objects", "pack")) as packs:
            names = [name for name in os.listdir(packs) if _PACK.fullmatch(name)]
    except OSError:
        return []
    return [name for name in names if not (target / "pack" / name).exists()]


def _receive_folder(tree: WorkTree, target: Path, folder: str) -> None:
    with suppress(OSError), open_directory(tree.gitdir, ("objects", folder)) as directory:
        for name in os.listdir(directory):
            goal = target / folder / name
            is_present = goal.exists() or (tree.object_dir / folder / name).exists()
            if is_present or not _REST.fullmatch(name):
                continue
            stream = open_at(directory, name)
            if stream is not None:
                with stream:
                    _receive_object(stream, goal, tree.object_format)


def _receive_object(stream: BinaryIO, goal: Path, object_format: str) -> None:
    """Copy one loose object if its content has the hash that its name says."""
    goal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = goal.with_name(f".{goal.name}.{os.getpid()}")
    digest = hashlib.new(object_format)
    inflate = zlib.decompressobj()
    try:
        with fresh.open("wb") as copy:
            while chunk := stream.read(_CHUNK):
                copy.write(chunk)
                while chunk:
                    digest.update(inflate.decompress(chunk, _CHUNK))
                    chunk = inflate.unconsumed_tail
            digest.update(inflate.flush())
        is_whole = inflate.eof and not inflate.unused_data
        if is_whole and digest.hexdigest() == goal.parent.name + goal.name:
            fresh.chmod(0o444)
            fresh.replace(goal)
            return
    except zlib.error:
        pass
    finally:
        fresh.unlink(missing_ok=True)
    _log.warning("an object of %s does not have the content of its name", goal)


async def _receive_pack(shadows: Shadows, tree: WorkTree, target: Path, name: str) -> None:
    """Copy one pack, and have git compute the names of its objects from their content."""
    with shadows.scratch() as scratch:
        copy = scratch / name
        if not await asyncio.to_thread(_copy_pack, tree, name, copy):
            return
        place = shadows.objects_in(target, tree)
        try:
            await place.run("index-pack", str(copy))
        except GitError as error:
            _log.warning("the pack %s of %s is damaged: %s", name, tree.toplevel, error.message)
            return
        (target / "pack").mkdir(parents=True, exist_ok=True)
        # git sees a pack once its index is there.
        copy.replace(target / "pack" / name)
        index = copy.with_suffix(".idx")
        index.replace(target / "pack" / index.name)


def _copy_pack(tree: WorkTree, name: str, copy: Path) -> bool:
    with suppress(OSError), open_directory(tree.gitdir, ("objects", "pack")) as packs:
        stream = open_at(packs, name)
        if stream is None:
            return False
        with stream, copy.open("wb") as writer:
            # An agent can make a file of any size without using the disk; no pack has holes.
            status = os.fstat(stream.fileno())
            if status.st_blocks * _BLOCK * 2 < status.st_size:
                return False
            shutil.copyfileobj(stream, writer, _CHUNK)
        return True
    return False


async def publish(shadows: Shadows, tree: WorkTree, commit: str, *bases: str) -> bool:
    """Bring a commit with its history into the user's repository; False if it is incomplete.

    The user's repository has the bases. Repeating it after a crash completes it.
    """
    objects = shadows.objects(tree)
    intake = await receive(shadows, tree)
    if intake is None:
        # The commit is one of the user's, which the agent checked out.
        output = await objects.run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128))
        return output.code == 0
    place = shadows.objects_in(intake, tree)
    revisions = [commit, *(f"^{base}" for base in bases)]
    with shadows.scratch() as scratch:
        try:
            text = "".join(f"{line}\n" for line in revisions).encode()
            options = ("--revs", "--non-empty", "--quiet")
            await place.run("pack-objects", *options, str(scratch / "pack"), stdin=text)
        except GitError as error:
            _log.warning("%s of %s is incomplete: %s", commit, tree.toplevel, error.message)
            return False
        for pack in scratch.glob("pack-*.pack"):
            if pack.stat().st_size <= _MOST_UNPACKED:
                content = await asyncio.to_thread(pack.read_bytes)
                await objects.run("unpack-objects", "-q", stdin=content)
            else:
                await asyncio.to_thread(_install_pack, pack, tree.object_dir / "pack")
    return True


def _install_pack(pack: Path, directory: Path) -> None:
    """Copy a pack and then its index, with which git sees it."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in (pack, pack.with_suffix(".idx")):
        fresh = directory / f"tmp_{file.name}"
        shutil.copyfile(file, fresh)
        fresh.chmod(0o444)
        fresh.replace(directory / file.name)
