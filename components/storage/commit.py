"""Committed or absent: objects become visible by a manifest that is created last, and once."""

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.storage.base import ObjectStat, Store, crc32c_of_bytes, crc32c_of_file
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    ObjectNotFoundError,
)

UPLOAD_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class CommittedFile:
    """One data object of a committed set; `name` is relative to the store's root."""

    name: str
    size: int
    crc32c: int

    def to_json(self) -> dict[str, Any]:
        """An entry of a manifest's `files`."""
        return {"name": self.name, "size": self.size, "crc32c": f"{self.crc32c:08x}"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CommittedFile":
        """The inverse of `to_json`."""
        return cls(name=data["name"], size=int(data["size"]), crc32c=int(data["crc32c"], 16))


def commit(
    store: Store, manifest_name: str, files: Mapping[str, Path | bytes], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Store `files` by name, then create the manifest that lists them with size and CRC32C.

    Args:
        store: opened at the prefix to commit.
        manifest_name: object name of the manifest, relative to the store's root.
        files: object name to local file or bytes.
        body: what else the manifest says; JSON values. The key `files` is ours.

    Returns:
        The manifest as stored.

    Raises:
        AlreadyExistsError: somebody else committed first; the message says who, if their manifest
            tells.
    """
    with ThreadPoolExecutor(UPLOAD_THREADS) as pool:
        stored = list(pool.map(lambda item: put(store, *item), files.items()))
    return commit_manifest(store, manifest_name, stored, body)


def put(store: Store, name: str, data: Path | bytes, *, move: bool = False) -> CommittedFile:
    """Store one data object of a set that will be committed later; see `Store.upload` on `move`."""
    if isinstance(data, bytes):
        stat, crc = store.write(name, data), crc32c_of_bytes(data)
    else:
        stat = store.upload(name, data, move=move)
        crc = crc32c_of_file(data) if stat.crc32c is None else stat.crc32c
    return CommittedFile(name=name, size=stat.size, crc32c=crc)


def commit_manifest(
    store: Store,
    manifest_name: str,
    files: Iterable[CommittedFile],
    body: Mapping[str, Any],
    *,
    replacing: str = "",
) -> dict[str, Any]:
    """Create the manifest over objects that are stored already.

    Args:
        store: opened at the prefix to commit.
        manifest_name: object name of the manifest.
        files: what it lists.
        body: what else it says.
        replacing: generation of a void manifest to put this one in the place of.

    Raises:
        AlreadyExistsError: somebody else committed first.
    """
    manifest = {
        **body,
        "files": [file.to_json() for file in sorted(files, key=lambda file: file.name)],
    }
    data = json.dumps(manifest, indent=1, allow_nan=False).encode()
    try:
        if replacing:
            store.replace(manifest_name, data, generation=replacing)
        else:
            store.create(manifest_name, data)
    except (AlreadyExistsError, ConflictError) as error:
        winner = read_manifest(store, manifest_name) or {}
        if winner == json.loads(data):  # our own create, whose answer was lost on the way
            return manifest
        raise AlreadyExistsError(
            f"{store.uri_of(manifest_name)} was committed first by "
            f"{winner.get('writer', 'another writer')}"
        ) from error
    return manifest


def read_manifest(store: Store, manifest_name: str) -> dict[str, Any] | None:
    """Return the manifest as a dictionary, or None where nothing is committed.

    Raises:
        CorruptObjectError: there is one, but it is not the JSON that a commit writes.
    """
    try:
        data = store.read(manifest_name)
    except ObjectNotFoundError:
        return None
    try:
        manifest = json.loads(data)
        for file in manifest["files"]:
            CommittedFile.from_json(file)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"{store.uri_of(manifest_name)} is not a manifest: {error}"
        ) from error
    return dict(manifest)


def files_of(manifest: Mapping[str, Any]) -> list[CommittedFile]:
    """The data objects that a manifest lists."""
    return [CommittedFile.from_json(file) for file in manifest["files"]]


def open_committed(store: Store, manifest_name: str) -> dict[str, Any] | None:
    """Return the manifest if all that it lists is present, None where nothing is committed.

    Sizes are verified here, contents against the CRC32C when they are downloaded (`fetch`).

    Raises:
        CorruptObjectError: committed, but an object is missing or has another size since; names all
            of them.
    """
    manifest = read_manifest(store, manifest_name)
    if manifest is None:
        return None
    files = files_of(manifest)
    with ThreadPoolExecutor(UPLOAD_THREADS) as pool:
        stats = list(pool.map(lambda file: store.stat(file.name), files))
    damage = [_difference(store, file, stat) for file, stat in zip(files, stats, strict=True)]
    if any(damage):
        raise CorruptObjectError(
            f"{store.uri_of(manifest_name)} is committed, but "
            + "; ".join(text for text in damage if text)
        )
    return manifest


def fetch(store: Store, file: CommittedFile, destination: Path) -> None:
    """Download one committed object, verified. Raises CorruptObjectError, ObjectNotFoundError."""
    store.download(file.name, destination, size=file.size, crc32c=file.crc32c)


def _difference(store: Store, file: CommittedFile, stat: ObjectStat | None) -> str:
    if stat is None:
        return f"{store.uri_of(file.name)} is missing"
    if stat.size != file.size:
        return f"{store.uri_of(file.name)} has {stat.size} bytes instead of {file.size}"
    return ""


def remove_garbage(store: Store, manifest_name: str, *, older_than_secs: float) -> list[str]:
    """Remove what a dead writer has left under the store's root; returns the names.

    Ownership is the root: nothing outside is looked at. What a manifest lists is never removed, and
    nothing that was written less than `older_than_secs` ago, since its writer may be alive. Other
    manifests under the root (names that end in .json) protect what they list as well.
    """
    stats = list(store.list())
    kept = {manifest_name}
    for stat in stats:
        if stat.name.endswith(".json"):
            kept |= _protected_by(store, stat.name)
    limit = time.time() - older_than_secs
    removed = []
    for stat in stats:
        if stat.name not in kept and stat.updated < limit:
            store.delete(stat.name)
            removed.append(stat.name)
    return removed


def _protected_by(store: Store, name: str) -> set[str]:
    try:
        manifest = read_manifest(store, name)
    except CorruptObjectError:  # an object that merely ends in .json
        return set()
    return {name} | {file.name for file in files_of(manifest)} if manifest else set()
