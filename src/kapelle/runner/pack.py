"""An ended process directory as one file: a zip archive beside it, read like the directory.

The archive is whole before anything of the directory goes, and whatever of the directory is there
is read first; so a crash at any moment loses nothing, and packing again finishes it.
"""

import errno
import io
import os
import shutil
import threading
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from kapelle.runner.shim.failpoints import failpoint
from kapelle.runner.shim.files import open_regular, sync_directory

SUFFIX = ".zip"
# What is larger is not compressed, so that it can be read from any place.
_COMPRESSED = 8 << 20
_LOCAL_HEADER = 30
# What an agent made so that nobody can read it is left out; other troubles may pass.
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
# Whoever packs what somebody else is removing would put half of it in place of all. Held by
# threads: one whose caller has gone works on.
_lock = threading.Lock()


def pack_of(process_dir: Path) -> Path:
    return Path(f"{process_dir}{SUFFIX}")


def pack(process_dir: Path, beside: Mapping[str, Path]) -> None:
    """Put the files of a directory in which nothing runs any more into one, with those of others,
    each below its name, where nothing else goes; links are left out. What was packed before stays
    in it."""
    with _lock:
        # Else somebody has packed it, or forgotten it, since it was found.
        if any(directory.exists() for directory in (process_dir, *beside.values())):
            _pack(process_dir, beside)


def _pack(process_dir: Path, beside: Mapping[str, Path]) -> None:
    target = pack_of(process_dir)
    unfinished = target.with_name(f".{target.name}")
    # What a crash left, or what somebody planted under this name.
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
        before_this = open_regular(str(target))
        if before_this is not None:
            with os.fdopen(before_this, "rb") as packed:
                shutil.copyfileobj(packed, file, 1 << 20)
        with zipfile.ZipFile(file, "a") as archive:
            before = frozenset(archive.namelist())
            for name, directory in beside.items():
                _add_all(archive, directory, name)
            # An agent that wrote files there would speak for the checks of its work.
            _add_all(archive, process_dir, "", frozenset(Path(name).parts[0] for name in beside))
        file.flush()
        os.fsync(file.fileno())
        try:
            _read_added(file, before)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"{unfinished} was not written as it should be: {error}") from error
    unfinished.rename(target)
    sync_directory(str(target.parent))
    failpoint("pack_before_removal")
    for directory in (*beside.values(), process_dir):
        shutil.rmtree(directory, ignore_errors=True)


def _read_added(file: BinaryIO, before: frozenset[str]) -> None:
    """Read all that was added to an archive, which fails where it is damaged."""
    with zipfile.ZipFile(file) as archive:
        for name in {*archive.namelist()} - before:
            with archive.open(name) as content:
                while content.read(1 << 20):
                    pass


def _add_all(
    archive: zipfile.ZipFile, directory: Path, name: str, taken: frozenset[str] = frozenset()
) -> None:
    packed = {*archive.namelist()}
    for root, inner, files in os.walk(directory):
        for path in (Path(root, each) for each in inner):
            # Else one that its agent closed is neither packed nor removed, however often.
            with suppress(PermissionError):
                if not path.is_symlink():
                    path.chmod(0o700)
        for path in sorted(Path(root, file) for file in files):
            inside = Path(name, path.relative_to(directory))
            # In an archive every name is UTF-8.
            shown = os.fsencode(inside).decode("utf-8", "backslashreplace")
            if inside.parts[0] not in taken and shown not in packed:
                packed.add(shown)
                _add(archive, path, shown)


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    try:
        descriptor = open_regular(str(path))
    except OSError as error:
        if error.errno in _UNREADABLE:
            return
        raise
    if descriptor is None:
        return
    with os.fdopen(descriptor, "rb") as source:
        size = os.fstat(descriptor).st_size
        entry = zipfile.ZipInfo(name)
        small = size <= _COMPRESSED
        if small:
            entry.compress_type = zipfile.ZIP_DEFLATED
        else:
            entry.compress_type = zipfile.ZIP_STORED
        entry.external_attr = 0o600 << 16
        with archive.open(entry, "w", force_zip64=not small) as sink:
            if small:
                shutil.copyfileobj(source, sink, 1 << 20)
            else:
                _copy_data(descriptor, sink)


def _copy_data(source: int, sink: IO[bytes]) -> None:
    """Copy a file without its holes, which can be larger than any disk."""
    end = 0
    while True:
        try:
            at = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is nothing more
                return
            raise
        while block := os.pread(source, min(end - at, 1 << 20), at):
            at += sink.write(block)


def delete(process_dir: Path) -> None:
    """Delete a process directory, packed or not."""
    with _lock:
        shutil.rmtree(process_dir, ignore_errors=True)
        pack_of(process_dir).unlink(missing_ok=True)


def open_file(path: Path) -> BinaryIO | None:
    """A file of a process directory, wherever it is now; None if there is none."""
    descriptor = open_regular(str(path))
    if descriptor is not None:
        return os.fdopen(descriptor, "rb")
    descriptor = open_regular(str(pack_of(path.parent)))
    if descriptor is None:
        return None
    return _open_packed(descriptor, path.name)


def _open_packed(descriptor: int, name: str) -> BinaryIO | None:
    file = os.fdopen(descriptor, "rb")
    try:
        with zipfile.ZipFile(file) as archive:
            entry = archive.getinfo(name)
            if entry.compress_type == zipfile.ZIP_DEFLATED:
                return io.BytesIO(archive.read(entry))
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER)
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        begin = entry.header_offset + _LOCAL_HEADER + sum(lengths)
        return io.BufferedReader(_StoredFile(os.dup(descriptor), begin, entry.file_size), 1 << 16)
    except (KeyError, zipfile.BadZipFile):
        return None
    finally:
        file.close()


class _StoredFile(io.FileIO):
    """A file that lies uncompressed inside another one."""

    def __init__(self, descriptor: int, begin: int, size: int) -> None:
        super().__init__(descriptor, "rb")
        self._begin = begin
        self._size = size
        self.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET:
            offset += self.tell() if whence == os.SEEK_CUR else self._size
        return super().seek(self._begin + max(0, offset)) - self._begin

    def tell(self) -> int:
        return super().tell() - self._begin

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        return super().readinto(buffer[: max(0, self._size - self.tell())])

    def readall(self) -> bytes:
        return self.read(max(0, self._size - self.tell()))
