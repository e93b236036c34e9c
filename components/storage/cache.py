"""A bounded cache of remote objects on this machine's disk, shared by threads and processes.

An entry is a file named by uri, size and CRC32C, with a lock file beside it. Whoever downloads
holds the lock exclusively, whoever reads holds it shared; locks end with their process, so a killed
reader or downloader blocks nobody. Entries are evicted by time of last use, never while held.
"""

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.commit import CommittedFile, fetch
from components.storage.local import TEMPORARY_PREFIX

_LOCK_SUFFIX = ".lock"


class ShardCache:
    """Committed objects as local files, at most `max_bytes` of them."""

    def __init__(self, folder: Path, max_bytes: int = 0) -> None:
        """`max_bytes` 0: no limit but the disk's."""
        self._folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def open(self, store: Store, file: CommittedFile) -> Iterator[Path]:
        """Have an object's file, downloaded and verified if need be, for as long as the context.

        Raises:
            InputError: the object alone is larger than the cache.
            CorruptObjectError, ObjectNotFoundError: as `fetch` does.
        """
        if self._max_bytes and file.size > self._max_bytes:
            raise InputError(
                f"{store.uri_of(file.name)} has {file.size} bytes, the cache at {self._folder} is "
                f"limited to {self._max_bytes}: raise the limit, or convert to more shards"
            )
        path = self._folder / self._entry(store, file)
        with self._locked(path, fcntl.LOCK_SH) as lock:
            while not self._is_whole(path, file):
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._is_whole(path, file):  # nobody else was faster
                    self._make_room(file.size)
                    fetch(store, file, path)
                fcntl.flock(lock, fcntl.LOCK_SH)  # not atomic: look again
            now = time.time_ns()  # finer than what the kernel would put
            os.utime(path, ns=(now, now))
            yield path

    def prefetch(self, store: Store, files: Sequence[CommittedFile]) -> threading.Thread:
        """Start downloading in the background, in order; trouble shows when files are opened."""

        def run() -> None:
            for file in files:
                try:
                    with self.open(store, file):
                        pass
                except Exception:  # the reader will meet it, and can say it to a person
                    return

        thread = threading.Thread(target=run, name="prefetch", daemon=True)
        thread.start()
        return thread

    def size(self) -> int:
        """Bytes in the cache."""
        return sum(stat.st_size for _, stat in self._entries())

    def _entry(self, store: Store, file: CommittedFile) -> str:
        key = f"{store.uri_of(file.name)}\n{file.size}\n{file.crc32c}"
        return hashlib.sha256(key.encode()).hexdigest()

    @staticmethod
    def _is_whole(path: Path, file: CommittedFile) -> bool:
        """Entries appear by rename of a verified download; the size guards against a full disk."""
        try:
            return path.stat().st_size == file.size
        except FileNotFoundError:
            return False

    def _make_room(self, size: int) -> None:
        """Evict what was not used for longest until `size` bytes fit; one process at a time."""
        if not self._max_bytes:
            return
        with self._locked(self._folder / "room", fcntl.LOCK_EX):
            entries = sorted(self._entries(), key=lambda entry: entry[1].st_mtime_ns)
            total = sum(stat.st_size for _, stat in entries)
            for path, stat in entries:
                if total + size <= self._max_bytes:
                    return
                if self._evict(path):
                    total -= stat.st_size

    def _evict(self, path: Path) -> bool:
        with open(f"{path}{_LOCK_SUFFIX}", "a", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody reads it
                return False
            path.unlink(missing_ok=True)
            return True

    def _entries(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.iterdir():
            if path.suffix == _LOCK_SUFFIX or path.name.startswith(TEMPORARY_PREFIX):
                continue
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return found

    @contextlib.contextmanager
    def _locked(self, path: Path, kind: int) -> Iterator[int]:
        with open(f"{path}{_LOCK_SUFFIX}", "a", encoding="ascii") as lock:
            fcntl.flock(lock, kind)
            yield lock.fileno()
