"""The Protocol behind which every object store lies, and the names it accepts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import google_crc32c

from components.contracts.errors import InputError

CRC_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class ObjectStat:
    """What a store knows of one object.

    Attributes:
        name: relative to the store's root, `/`-separated.
        size: bytes.
        generation: opaque; changes whenever the object is written.
        updated: seconds since the epoch.
        crc32c: of the whole object, where the store keeps one.
    """

    name: str
    size: int
    generation: str
    updated: float
    crc32c: int | None = None


class Store(Protocol):
    """Objects under one uri.

    Every operation ends: with its result, or with an error that names the object's uri.

    Transient trouble is retried inside with jittered back-off until the operation's deadline, then
    raised as `StoreUnavailableError`. All methods may be called from several threads and processes
    at once.
    """

    @property
    def uri(self) -> str:
        """Root uri, without a trailing slash."""

    def uri_of(self, name: str) -> str:
        """Uri of one object or prefix under the root."""

    def stat(self, name: str) -> ObjectStat | None:
        """Describe an object, or None if it does not exist."""

    def read(self, name: str) -> bytes:
        """Read a small object whole. Raises ObjectNotFoundError."""

    def read_versioned(self, name: str) -> tuple[bytes, str]:
        """Read a small object and the generation of these bytes. Raises ObjectNotFoundError."""

    def write(self, name: str, data: bytes) -> ObjectStat:
        """Write a small object, replacing what is there; readers see the old or the new bytes."""

    def create(self, name: str, data: bytes) -> ObjectStat:
        """Write a small object if there is none of that name. Raises AlreadyExistsError."""

    def replace(self, name: str, data: bytes, *, generation: str) -> ObjectStat:
        """Write a small object if its generation is still `generation`. Raises ConflictError."""

    def upload(self, name: str, source: Path, *, move: bool = False) -> ObjectStat:
        """Store a local file, replacing what is there.

        Args:
            name: of the object.
            source: a regular file.
            move: whether the store may take the file itself, which is gone then.

        Returns:
            Its description; the CRC32C is the file's own, and the store has been seen to agree.
        """

    def download(
        self, name: str, destination: Path, *, size: int | None = None, crc32c: int | None = None
    ) -> None:
        """Fetch an object to a local path: to a temporary name, verified, then renamed.

        Raises:
            ObjectNotFoundError: there is no such object.
            CorruptObjectError: the bytes do not have the given `size` or `crc32c`.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Describe the objects whose name begins with `prefix`, ordered by name (UTF-8 bytes)."""

    def delete(self, name: str) -> None:
        """Delete an object; no error if there is none."""

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose name begins with `prefix`; return how many there were."""


def checked_name(name: str) -> str:
    """Return `name` if it can stand for an object in every store.

    Raises:
        InputError: empty, absolute, longer than 1024 bytes, with an empty, `.` or `..` part, or a
            control character.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(
        ord(character) < 32 for character in name
    ):
        raise InputError(
            f"object name {name!r} is not usable: expected parts separated by single slashes, "
            "none of them "
            "empty, '.' or '..', and no control characters"
        )
    if len(name.encode()) > 1024:
        raise InputError(
            f"object name of {len(name.encode())} bytes is longer than the 1024 that stores "
            f"accept: {name!r}"
        )
    return name


def crc32c_of_file(path: Path) -> int:
    """CRC32C (Castagnoli, RFC 3720) of a file, read in constant memory."""
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while chunk := file.read(CRC_CHUNK_BYTES):
            checksum.update(chunk)
    return int.from_bytes(checksum.digest(), "big")


def crc32c_of_bytes(data: bytes) -> int:
    """CRC32C (Castagnoli, RFC 3720) of `data`."""
    return int(google_crc32c.value(data))
