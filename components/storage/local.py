"""A directory as an object store: a bucket's promises, kept by rename and a directory lock."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

import google_crc32c

from components.contracts.errors import InputError
from components.storage.base import (
    CRC_CHUNK_BYTES,
    ObjectStat,
    checked_name,
    crc32c_of_bytes,
    crc32c_of_file,
)
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    ObjectNotFoundError,
)

TEMPORARY_PREFIX = ".relay-tmp-"


class LocalStore:
    """Objects are files under `root`.

    An object becomes visible by rename of a complete, flushed temporary file, so a killed
    writer leaves at most a temporary file that no reader sees. Writers of one directory take its
    flock, which ends with the process; the modification time, made strictly increasing under that
    lock, is the generation.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root))

    @property
    def uri(self) -> str:
        return str(self._root)

    def uri_of(self, name: str) -> str:
        return str(self._root / name)

    def stat(self, name: str) -> ObjectStat | None:
        path = self._path(name)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _describe(name, found) if S_ISREG(found.st_mode) else None

    def read(self, name: str) -> bytes:
        return self.read_versioned(name)[0]

    def read_versioned(self, name: str) -> tuple[bytes, str]:
        path = self._path(name)
        try:
            with open(path, "rb", opener=_open_no_follow) as file:
                return file.read(), _generation(os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectNotFoundError(f"no object at {path}") from error

    def write(self, name: str, data: bytes) -> ObjectStat:
        return self._put(name, data)

    def create(self, name: str, data: bytes) -> ObjectStat:
        return self._put(name, data, expected="")

    def replace(self, name: str, data: bytes, *, generation: str) -> ObjectStat:
        return self._put(name, data, expected=generation)

    def upload(self, name: str, source: Path, *, move: bool = False) -> ObjectStat:
        return self._put(name, source, move=move)

    def download(
        self, name: str, destination: Path, *, size: int | None = None, crc32c: int | None = None
    ) -> None:
        path = self._path(name)
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = destination.parent / (TEMPORARY_PREFIX + secrets.token_hex(8))
        try:
            try:
                with (
                    open(path, "rb", opener=_open_no_follow) as source,
                    temporary.open("wb") as target,
                ):
                    shutil.copyfileobj(source, target, 1 << 20)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise ObjectNotFoundError(f"no object at {path}") from error
            found = temporary.stat().st_size
            if size is not None and found != size:
                raise CorruptObjectError(
                    f"{path} has {found} bytes, expected {size}: truncated or replaced"
                )
            if crc32c is not None and (actual := crc32c_of_file(temporary)) != crc32c:
                raise CorruptObjectError(
                    f"{path} has CRC32C {actual:08x}, expected {crc32c:08x}: its bytes are damaged"
                )
            temporary.replace(destination)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._root
        names = [name for name in _walk(start, folder) if name.startswith(prefix)]
        for name in sorted(names, key=str.encode):
            found = self.stat(name)
            if found is not None:  # deleted since it was listed
                yield found

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._path(name).unlink()

    def delete_prefix(self, prefix: str) -> int:
        names = [found.name for found in self.list(prefix)]
        for name in names:
            self.delete(name)
        folders = {parent for name in names for parent in list(Path(name).parents)[:-1]}
        for folder in sorted(folders, key=lambda path: -len(path.parts)):
            if f"{folder.as_posix()}/".startswith(prefix):
                with contextlib.suppress(OSError):  # not empty: somebody writes there again
                    (self._root / folder).rmdir()
        return len(names)

    def _path(self, name: str) -> Path:
        path = self._root / checked_name(name)
        if any(part.startswith(TEMPORARY_PREFIX) for part in name.split("/")):
            raise InputError(
                f"object name {name!r}: parts that begin with {TEMPORARY_PREFIX} are reserved"
            )
        if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(self._root)):
            raise InputError(f"{path} leads through a symbolic link out of {self._root}: refused")
        return path

    def _put(
        self, name: str, data: bytes | Path, expected: str | None = None, *, move: bool = False
    ) -> ObjectStat:
        """Make `data` the object `name`; `expected` is "" for absent, None for anything."""
        path = self._path(name)
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # an emptied directory was removed in between
                continue
            try:
                return self._put_in_folder(folder, path, name, data, expected, move)
            except FileNotFoundError:
                if path.parent.exists() and isinstance(data, Path) and not data.exists():
                    raise
            except OSError as error:
                error.filename = error.filename or str(path)
                raise
            finally:
                os.close(folder)

    def _put_in_folder(
        self,
        folder: int,
        path: Path,
        name: str,
        data: bytes | Path,
        expected: str | None,
        move: bool,
    ) -> ObjectStat:
        temporary = TEMPORARY_PREFIX + secrets.token_hex(8)
        try:
            moved = move and isinstance(data, Path) and _move(data, folder, temporary)
            crc = _flush(folder, temporary) if moved else _write_flushed(folder, temporary, data)
            fcntl.flock(folder, fcntl.LOCK_EX)
            current = _stat_at(folder, path.name)
            self._check_expected(path, current, expected)
            now = max(time.time_ns(), current.st_mtime_ns + 1 if current else 0)
            os.utime(temporary, ns=(now, now), dir_fd=folder)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
            written = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            return _describe(name, written, crc)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)

    @staticmethod
    def _check_expected(path: Path, current: os.stat_result | None, expected: str | None) -> None:
        if expected == "" and current is not None:
            raise AlreadyExistsError(f"{path} exists already")
        if expected and (current is None or _generation(current) != expected):
            found = "none" if current is None else _generation(current)
            raise ConflictError(
                f"{path} was changed by somebody else: expected generation {expected}, found "
                f"{found}"
            )


def _open_no_follow(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link is no object
            raise FileNotFoundError(errno.ENOENT, "is a symbolic link", path) from error
        raise


def _move(source: Path, folder: int, temporary: str) -> bool:
    """Take a file into `folder`; False if it lies on another file system."""
    try:
        os.rename(source, temporary, dst_dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise
    return True


def _flush(folder: int, name: str) -> int:
    """Flush a file in `folder` to the disk and return its CRC32C."""
    checksum = google_crc32c.Checksum()
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        while chunk := file.read(CRC_CHUNK_BYTES):
            checksum.update(chunk)
        os.fsync(file.fileno())
    return int.from_bytes(checksum.digest(), "big")


def _write_flushed(folder: int, temporary: str, data: bytes | Path) -> int:
    """Write `data` to a new file in `folder`, flush it to the disk and return its CRC32C."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
    with open(descriptor, "wb") as target:
        if isinstance(data, Path):
            checksum = google_crc32c.Checksum()
            with data.open("rb") as source:
                while chunk := source.read(CRC_CHUNK_BYTES):
                    checksum.update(chunk)
                    target.write(chunk)
            crc = int.from_bytes(checksum.digest(), "big")
        else:
            target.write(data)
            crc = crc32c_of_bytes(data)
        target.flush()
        os.fsync(target.fileno())
    return crc


def _stat_at(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _generation(stat: os.stat_result) -> str:
    return str(stat.st_mtime_ns)


def _describe(name: str, stat: os.stat_result, crc32c: int | None = None) -> ObjectStat:
    return ObjectStat(
        name=name,
        size=stat.st_size,
        generation=_generation(stat),
        updated=stat.st_mtime,
        crc32c=crc32c,
    )


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    """Names of the objects under `folder`; temporary files and links are not objects."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.name.startswith(TEMPORARY_PREFIX) or entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), name)
        else:
            yield name
