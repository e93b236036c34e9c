"""Putting a version under the export root so that no server ever sees half of one.

Under the root: `<version>/`, a SavedModel as TensorFlow Serving reads it, with `saved_model.pb`
uploaded last of what a server reads, and `manifest.json` after it; `claims/<version>.json`, by
which exporters take numbers; `latest.json` and `serving/`, see champion.py.

A claim is created only if absent, so two exporters never share a number. It names the model it is
for; an exporter that finds a claim for its own model finishes that version instead of taking
another. It holds a token of the attempt that works on it: an older attempt that finds another
token there stops.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.contracts.errors import FencedError
from components.contracts.published_model import GRAPH_NAME, MANIFEST_NAME, manifest_name
from components.storage.base import Store, crc32c_of_file
from components.storage.commit import (
    CommittedFile,
    commit_manifest,
    files_of,
    open_committed,
    put,
    read_manifest,
)
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    ObjectNotFoundError,
)

FORMAT_VERSION = 1
CLAIMS = "claims"

log = logging.getLogger("relay.export")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A version number that is ours to fill.

    Attributes:
        version: the number.
        token: of this attempt.
        generation: of the claim as we wrote it.
    """

    version: int
    token: str
    generation: str


def find_published(root: Store, identity: str) -> int | None:
    """Version of the model with this identity that is completely there, or None."""
    for version, claim in _claims(root):
        if claim.get("identity") == identity and is_complete(root, version):
            return version
    return None


def is_complete(root: Store, version: int) -> bool:
    """Whether a version is committed and all its objects are there."""
    try:
        return open_committed(root, manifest_name(version)) is not None
    except CorruptObjectError as error:
        log.warning("version %d is damaged: %s", version, error)
        return False


def published_versions(root: Store) -> list[int]:
    """Committed versions in rising order; their objects are not verified."""
    suffix = "/" + MANIFEST_NAME
    names = (found.name for found in root.list() if found.name.endswith(suffix))
    return sorted(
        int(name.removesuffix(suffix)) for name in names if name.removesuffix(suffix).isdigit()
    )


def take_version(root: Store, identity: str, token: str) -> Claim:
    """Take the unfinished version of this identity, or the next free number."""
    for version, claim in _claims(root):
        if claim.get("identity") == identity and not is_complete(root, version):
            taken = _take_over(root, version, claim, token)
            if taken is not None:
                return taken
    while True:
        version = 1 + max(_numbers(root), default=0)
        body = {"identity": identity, "token": token, "created": time.time(), "files": []}
        try:
            stat = root.create(claim_name(version), json.dumps(body).encode())
            return Claim(version=version, token=token, generation=stat.generation)
        except AlreadyExistsError:
            owner = json.loads(root.read(claim_name(version)))
            if owner == body:  # our own create, whose answer was lost on the way
                _, generation = root.read_versioned(claim_name(version))
                return Claim(version=version, token=token, generation=generation)


def publish(root: Store, claim: Claim, folder: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """Upload `folder` as the claimed version and commit it.

    Objects go up in such an order that a version with a graph has everything the graph refers to.

    Args:
        root: opened at the export root.
        claim: of this version.
        folder: with `saved_model.pb` at its top.
        body: what the manifest says beside its files.

    Raises:
        FencedError: another attempt works on this version.
    """
    version = claim.version
    finished = _finish_interrupted(root, claim, body)
    if finished is not None:
        return finished
    # A graph of an attempt before ours goes first, whatever else it had uploaded then.
    root.delete(f"{version}/{GRAPH_NAME}")
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    graph = paths.pop(GRAPH_NAME)
    root.delete_prefix(f"{version}/")
    files = [put(root, f"{version}/{name}", path) for name, path in paths.items()]
    graph_file = _described(f"{version}/{GRAPH_NAME}", graph)
    files.append(graph_file)
    _announce(root, claim, files)
    root.upload(graph_file.name, graph)
    return _commit(root, version, files, body)


def remove_version(root: Store, version: int) -> None:
    """Remove a version in the reverse order: manifest, graph, then the rest."""
    root.delete(manifest_name(version))
    root.delete(f"{version}/{GRAPH_NAME}")
    root.delete_prefix(f"{version}/")


def claim_name(version: int) -> str:
    """Object name of a version's claim."""
    return f"{CLAIMS}/{version}.json"


def _claims(root: Store) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for stat in root.list(f"{CLAIMS}/"):
        number = stat.name.removeprefix(f"{CLAIMS}/").removesuffix(".json")
        if not number.isdigit():
            continue
        try:
            found.append((int(number), json.loads(root.read(stat.name))))
        except ObjectNotFoundError:  # removed since it was listed
            continue
    return sorted(found, key=lambda item: item[0])


def _numbers(root: Store) -> list[int]:
    """Every number that was ever taken here, by us or by other tools."""
    claimed = [version for version, _ in _claims(root)]
    folders = {found.name.partition("/")[0] for found in root.list() if "/" in found.name}
    return claimed + [int(name) for name in folders if name.isdigit()]


def _take_over(root: Store, version: int, claim: Mapping[str, Any], token: str) -> Claim | None:
    data, generation = root.read_versioned(claim_name(version))
    if json.loads(data).get("identity") != claim["identity"]:
        return None
    body = json.dumps({**json.loads(data), "token": token}).encode()
    try:
        stat = root.replace(claim_name(version), body, generation=generation)
    except ConflictError as error:
        raise FencedError(
            f"another attempt at the same export took version {version} just now: {error}"
        ) from error
    log.info("finishing version %d, which an earlier attempt began", version)
    return Claim(version=version, token=token, generation=stat.generation)


def _announce(root: Store, claim: Claim, files: list[CommittedFile]) -> None:
    """Write the list of files into the claim, if it is still ours: the last look before the end."""
    data, _ = root.read_versioned(claim_name(claim.version))
    body = {**json.loads(data), "files": [file.to_json() for file in files]}
    try:
        root.replace(
            claim_name(claim.version), json.dumps(body).encode(), generation=claim.generation
        )
    except ConflictError as error:
        raise FencedError(
            f"version {claim.version} was taken over by a newer attempt at the same export"
        ) from error


def _finish_interrupted(
    root: Store, claim: Claim, body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Commit a version whose attempt ended between graph and manifest, if all of it is there."""
    previous = json.loads(root.read(claim_name(claim.version)))
    files = files_of({"files": previous.get("files", [])})
    if not files or read_manifest(root, manifest_name(claim.version)) is not None:
        return None
    for file in files:
        stat = root.stat(file.name)
        if stat is None or stat.size != file.size:
            return None
    return _commit(root, claim.version, files, body)


def _commit(
    root: Store, version: int, files: list[CommittedFile], body: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return commit_manifest(root, manifest_name(version), files, body)
    except AlreadyExistsError as error:
        raise FencedError(f"version {version} was committed by another attempt") from error


def _described(name: str, path: Path) -> CommittedFile:
    return CommittedFile(name=name, size=path.stat().st_size, crc32c=crc32c_of_file(path))
