"""Pack an ended process directory into one zip archive beside it, which is read like the directory.

The archive is complete and on the disk before any file of the directory is removed, and files in
the directory have precedence over the archive. So a crash at any moment loses nothing, and packing
again completes the work.
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
# Larger files are stored uncompressed, so that they can be read from any offset.
_COMPRESSED = 8 << 20
_LOCAL_HEADER = 30
# Files that an agent made unreadable are left out; other errors may pass, so they are raised.
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
# One thread must not pack a directory that another one removes: half of it would replace the whole.
# A lock of threads, because a thread goes on when its caller was cancelled.
_lock = threading.Lock()


def pack_path(process_dir: Path) -> Path:
    """Return the path of the archive of a process directory."""
    return Path(f"{process_dir}{SUFFIX}")


def pack(process_dir: Path, beside: Mapping[str, Path]) -> None:
    """Pack the files of a process directory, and of directories beside it, into one archive.

    Nothing may run in the directory any more. `beside` gives a name inside the archive for each
    further directory; the process directory's own files cannot use these names. Links are left out.
    What an earlier call packed stays in the archive.
    """
    with _lock:
        # Otherwise another thread has packed or deleted the directories since.
        if any(directory.exists() for directory in (process_dir, *beside.values())):
            _pack(process_dir, beside)


def _pack(process_dir: Path, beside: Mapping[str, Path]) -> None:
    target = pack_path(process_dir)
    draft = target.with_name(f".{target.name}")
    # Left by a crash, or planted under this name.
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
        descriptor = open_regular(str(target))
        if descriptor is not None:
            with os.fdopen(descriptor, "rb") as previous:
                shutil.copyfileobj(previous, file, 1 << 20)
        with zipfile.ZipFile(file, "a") as archive:
            previous_names = frozenset(archive.namelist())
            for name, directory in beside.items():
                _add_all(archive, directory, name)
            # Otherwise an agent could write files here that pass for results of the checks.
            _add_all(archive, process_dir, "", frozenset(Path(name).parts[0] for name in beside))
        file.flush()
        os.fsync(file.fileno())
        try:
            _read_added(file, previous_names)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"{draft} was not written as it should be: {error}") from error
    draft.rename(target)
    sync_directory(str(target.parent))
    failpoint("pack_before_removal")
    for directory in (*beside.values(), process_dir):
        shutil.rmtree(directory, ignore_errors=True)


def _read_added(file: BinaryIO, before: frozenset[str]) -> None:
    """Read every file that was added to an archive; raises where the archive is damaged."""
    with zipfile.ZipFile(file) as archive:
        for name in {*archive.namelist()} - before:
            with archive.open(name) as content:
                while content.read(1 << 20):
                    pass


def _add_all(
    archive: zipfile.ZipFile,
    directory: Path,
    name: str,
    excluded_names: frozenset[str] = frozenset(),
) -> None:
    names_in_archive = {*archive.namelist()}
    for root, inner, files in os.walk(directory):
        for path in (Path(root, each) for each in inner):
            # Without this, a directory that its agent made inaccessible would never be packed or
            # removed.
            with suppress(PermissionError):
                if not path.is_symlink():
                    path.chmod(0o700)
        for path in sorted(Path(root, file) for file in files):
            relative_path = Path(name, path.relative_to(directory))
            # Names inside a zip archive are UTF-8.
            entry_name = os.fsencode(relative_path).decode("utf-8", "backslashreplace")
            if relative_path.parts[0] not in excluded_names and entry_name not in names_in_archive:
                names_in_archive.add(entry_name)
                _add(archive, path, entry_name)


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
    """Copy a file without its holes, because a sparse file can be larger than any disk."""
    end = 0
    while True:
        try:
            at = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data after this offset
                return
            raise
        while block := os.pread(source, min(end - at, 1 << 20), at):
            at += sink.write(block)


def delete(process_dir: Path) -> None:
    """Delete a process directory, packed or not."""
    with _lock:
        shutil.rmtree(process_dir, ignore_errors=True)
        pack_path(process_dir).unlink(missing_ok=True)


def open_file(path: Path) -> BinaryIO | None:
    """Open a file of a process directory, in the directory or in its archive; None if missing."""
    descriptor = open_regular(str(path))
    if descriptor is not None:
        return os.fdopen(descriptor, "rb")
    descriptor = open_regular(str(pack_path(path.parent)))
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
    """Reads a file that is stored uncompressed inside an archive."""

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
