"""What the stores behind a network have in common: names under a prefix, whole-file transfers."""

import functools
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from components.contracts.errors import InputError
from components.storage.base import ObjectStat, checked_name, crc32c_of_file
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    ObjectNotFoundError,
)
from components.storage.local import TEMPORARY_PREFIX
from components.storage.retry import Deadlines, Result, TransientError, retried

# Above this size a download is split into ranges that are fetched in parallel.
RANGE_BYTES = 32 << 20
_THREADS = 4
_DELETE_THREADS = 16


class RemoteStore(ABC):
    """Base of the stores that are reached over a network.

    A subclass implements the private operations on full keys; each is one attempt, which raises
    TransientError for what another attempt may not meet.
    """

    scheme: str
    # What `_write_if` raises when its condition does not hold.
    refusals = (AlreadyExistsError, ConflictError)

    def __init__(self, bucket: str, prefix: str, deadlines: Deadlines) -> None:
        """`prefix`: of every object, without slashes at its ends."""
        if not bucket:
            raise InputError(f"{self.scheme}://{prefix}: the uri names no bucket")
        self._bucket_name = bucket
        self._prefix = prefix
        self._deadlines = deadlines

    @property
    def uri(self) -> str:
        """Root uri, without a trailing slash."""
        return f"{self.scheme}://{self._bucket_name}" + (f"/{self._prefix}" if self._prefix else "")

    def uri_of(self, name: str) -> str:
        """Uri of one object or prefix under the root."""
        return f"{self.uri}/{name}"

    def stat(self, name: str) -> ObjectStat | None:
        """Describe an object, or None if it does not exist."""
        key = self._key(name)
        return self._retried("look-up", name, lambda _: self._stat(key, name))

    def read(self, name: str) -> bytes:
        """Read a small object whole. Raises ObjectNotFoundError."""
        return self.read_versioned(name)[0]

    def read_versioned(self, name: str) -> tuple[bytes, str]:
        """Read a small object and the generation of these bytes. Raises ObjectNotFoundError."""
        key = self._key(name)
        return self._retried("read", name, lambda _: self._read(key, name))

    def write(self, name: str, data: bytes) -> ObjectStat:
        """Write a small object, replacing what is there; readers see the old or the new bytes."""
        key = self._key(name)
        return self._retried("write", name, lambda _: self._write(key, name, data), len(data))

    def create(self, name: str, data: bytes) -> ObjectStat:
        """Write a small object if there is none of that name. Raises AlreadyExistsError."""
        return self._conditional(name, data, "")

    def replace(self, name: str, data: bytes, *, generation: str) -> ObjectStat:
        """Write a small object if its generation is still `generation`. Raises ConflictError."""
        return self._conditional(name, data, generation)

    def upload(self, name: str, source: Path, *, move: bool = False) -> ObjectStat:
        """Store a local file, replacing what is there; the stored CRC32C is checked."""
        key, crc, size = self._key(name), crc32c_of_file(source), source.stat().st_size
        what = f"upload of {size / 1e6:.1f} MB"
        return self._retried(what, name, lambda _: self._upload(key, name, source, crc), size)

    def download(
        self,
        name: str,
        destination: Path,
        *,
        size: int | None = None,
        crc32c: int | None = None,
    ) -> None:
        """Fetch an object to a temporary name, verify it, rename it."""
        key = self._key(name)
        found = self.stat(name)
        if found is None:
            raise ObjectNotFoundError(f"no object at {self.uri_of(name)}")
        if size is not None and found.size != size:
            raise CorruptObjectError(
                f"{self.uri_of(name)} has {found.size} bytes, expected {size}: "
                "truncated or replaced"
            )
        expected = crc32c if crc32c is not None else found.crc32c
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = destination.parent / (TEMPORARY_PREFIX + secrets.token_hex(8))
        try:
            self._fetch_verified(key, name, found, temporary, expected)
            temporary.replace(destination)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Describe the objects whose name begins with `prefix`, ordered by name (UTF-8 bytes)."""
        root = f"{self._prefix}/" if self._prefix else ""
        token = ""
        while True:
            attempt = functools.partial(self._page_attempt, root + prefix, root, token)
            page, token = self._retried("listing", prefix, attempt)
            yield from page
            if not token:
                return

    def delete(self, name: str) -> None:
        """Delete an object; no error if there is none."""
        key = self._key(name)
        self._retried("deletion", name, lambda _: self._delete(key, name))

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose name begins with `prefix`; return how many there were."""
        names = [found.name for found in self.list(prefix)]
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            for _ in pool.map(self.delete, names):
                pass
        return len(names)

    def _fetch_verified(
        self, key: str, name: str, found: ObjectStat, path: Path, crc32c: int | None
    ) -> None:
        """Download until the bytes are right: damage on the way is transient, at rest it is not."""
        damage = ""
        for _ in range(3):
            self._fetch(key, name, found, path)
            actual = crc32c_of_file(path)
            if crc32c is None or actual == crc32c:
                return
            damage = f"has CRC32C {actual:08x}, expected {crc32c:08x}: its bytes are damaged"
        raise CorruptObjectError(f"{self.uri_of(name)} {damage}")

    def _fetch(self, key: str, name: str, found: ObjectStat, path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(found.size)
        ranges = [
            (start, min(start + RANGE_BYTES, found.size))
            for start in range(0, found.size, RANGE_BYTES)
        ]

        def fetch_range(bounds: tuple[int, int]) -> None:
            start, end = bounds
            what = f"download of bytes {start}-{end}"
            self._retried(
                what,
                name,
                lambda _: self._fetch_range(key, name, found, bounds, path),
                end - start,
            )

        if len(ranges) <= 1:
            for bounds in ranges:
                fetch_range(bounds)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(fetch_range, ranges):
                pass

    def _conditional(self, name: str, data: bytes, expected: str) -> ObjectStat:
        """Create (expected "") or replace.

        A refusal after an attempt whose answer was lost may be the echo of that attempt's success:
        then what is stored is compared with what was sent.
        """
        key = self._key(name)

        def attempt(number: int) -> ObjectStat:
            try:
                return self._write_if(key, name, data, expected)
            except self.refusals:
                if number > 0 and self._read(key, name)[0] == data:
                    found = self._stat(key, name)
                    if found is not None:
                        return found
                raise

        return self._retried("conditional write", name, attempt, len(data))

    def _retried(
        self, what: str, name: str, attempt: Callable[[int], Result], size: int = 0
    ) -> Result:
        return retried(
            attempt, what=what, uri=self.uri_of(name), deadlines=self._deadlines.for_bytes(size)
        )

    def _page_attempt(
        self, prefix: str, root: str, token: str, number: int
    ) -> tuple[Sequence[ObjectStat], str]:
        return self._page(prefix, root, token)

    @abstractmethod
    def _stat(self, key: str, name: str) -> ObjectStat | None: ...

    @abstractmethod
    def _read(self, key: str, name: str) -> tuple[bytes, str]: ...

    @abstractmethod
    def _write(self, key: str, name: str, data: bytes) -> ObjectStat: ...

    @abstractmethod
    def _write_if(self, key: str, name: str, data: bytes, expected: str) -> ObjectStat: ...

    @abstractmethod
    def _upload(self, key: str, name: str, source: Path, crc32c: int) -> ObjectStat: ...

    @abstractmethod
    def _fetch_range(
        self, key: str, name: str, found: ObjectStat, bounds: tuple[int, int], path: Path
    ) -> None: ...

    @abstractmethod
    def _page(self, prefix: str, root: str, token: str) -> tuple[Sequence[ObjectStat], str]: ...

    @abstractmethod
    def _delete(self, key: str, name: str) -> None: ...

    def _key(self, name: str) -> str:
        checked_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name


class RangeFile:
    """Writes into its place of a file that several threads fill; refuses more than its length."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY)
        self._position, self._end = start, end

    def write(self, data: bytes) -> int:
        """Write the next bytes of the range."""
        if self._position + len(data) > self._end:
            raise TransientError("the server sent more bytes than were asked for")
        os.pwrite(self._descriptor, data, self._position)
        self._position += len(data)
        return len(data)

    def finish(self) -> None:
        """Raise TransientError if bytes are missing."""
        if self._position != self._end:
            missing = self._end - self._position
            raise TransientError(f"the body ended {missing} bytes too early")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
