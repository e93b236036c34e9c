"""The champion: which version `latest.json` names, moved only by compare-and-set.

`latest.json` is the one place of truth. `serving/` holds TensorFlow Serving's configuration made
from it, so that servers follow promotions and roll-backs, and not just the highest number.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from components.contracts.errors import InputError
from components.contracts.published_model import LATEST_NAME, Champion, manifest_name, read_champion
from components.export_model.publish import is_complete, published_versions, remove_version
from components.export_model.serving_config import config_files
from components.storage.base import Store
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
)

# How many versions back a roll-back can go.
MOST_PREVIOUS = 5
GRACE_SECS = 3600.0

log = logging.getLogger("relay.export")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A published version that asks to become the champion.

    Attributes:
        version: its number.
        model_uri: its folder.
        metric: with a leading `-` where smaller is better.
        score: its value.
        report_uri: of its evaluation.
        champion_scores: the metric of other versions, measured on the candidate's own examples.
    """

    version: int
    model_uri: str
    metric: str
    score: float
    report_uri: str
    champion_scores: Mapping[int, float] = field(default_factory=dict)


def promote(root: Store, candidate: Candidate) -> tuple[bool, Champion]:
    """Make the candidate the champion if it is better; returns whether it is, and the champion.

    Of candidates that are promoted at the same time, in any order, the best stays.

    Raises:
        InputError: the champion was chosen by another metric.
    """

    def decide(champion: Champion | None) -> Champion | None:
        if champion is None:
            return _crowned(candidate, None)
        if champion.version == candidate.version or candidate.version in champion.rolled_back:
            return None
        check_metric(root, champion, candidate.metric)
        score = candidate.champion_scores.get(champion.version, champion.score)
        return _crowned(candidate, champion) if _is_better(candidate, score) else None

    champion = _move(root, decide)
    return champion.version == candidate.version, champion


def check_metric(root: Store, champion: Champion | None, metric: str) -> None:
    """Raise InputError if the champion was chosen by another metric than `metric`."""
    if champion is not None and champion.metric != metric:
        raise InputError(
            f"the champion of {root.uri}, version {champion.version}, was chosen by "
            f"{champion.metric!r}, this export by {metric!r}: set promote_metric to the same, or "
            "publish to another export root"
        )


def roll_back(root: Store, version: int = 0) -> Champion:
    """Make an earlier version the champion again.

    Args:
        root: opened at the export root.
        version: to go back to; 0: the champion before the present one.

    Raises:
        InputError: there is none, or it is not completely there.
    """

    def decide(champion: Champion | None) -> Champion:
        if champion is None:
            raise InputError(f"{root.uri} has no champion: {root.uri_of(LATEST_NAME)} is missing")
        target = version or next((int(entry["version"]) for entry in champion.previous), 0)
        if not target:
            raise InputError(
                f"version {champion.version} of {root.uri} has no predecessor. Name one with "
                f"--version; published are {published_versions(root)}"
            )
        if target == champion.version:
            raise InputError(f"version {target} is the champion of {root.uri} already")
        if not is_complete(root, target):
            raise InputError(
                f"version {target} is not completely at {root.uri}; published are "
                f"{published_versions(root)}"
            )
        return _rolled_back(root, champion, target)

    return _move(root, decide)


def apply_retention(root: Store, keep: int, *, grace_secs: float = GRACE_SECS) -> list[int]:
    """Remove versions beyond the newest `keep` (0: none), never a champion of now or before.

    Versions younger than `grace_secs` stay: their exporter may be about to promote them.
    """
    champion, _ = read_champion(root)
    if not keep or champion is None:
        return []
    kept = {champion.version, *(int(entry["version"]) for entry in champion.previous)}
    old = [
        version
        for version in published_versions(root)[:-keep]
        if version not in kept and _age_secs(root, version) >= grace_secs
    ]
    for version in old:
        remove_version(root, version)
        log.info("removed version %d of %s", version, root.uri)
    return old


def write_serving_config(root: Store) -> None:
    """Make `serving/` say what `latest.json` says.

    Of several writers the last one looks again after writing, so they end in agreement.
    """
    written: int | None = None
    while True:
        champion, _ = read_champion(root)
        if champion is None or champion.version == written:
            return
        for name, text in config_files(root.uri, champion.version).items():
            root.write(name, text.encode())
        written = champion.version


def _move(root: Store, decide: Callable[[Champion | None], Champion | None]) -> Champion:
    while True:
        champion, generation = read_champion(root)
        chosen = decide(champion)
        if chosen is None:
            assert champion is not None  # noqa: S101 - a first candidate is always chosen
            return champion
        data = json.dumps(chosen.to_json(), indent=1, allow_nan=False).encode()
        try:
            if champion is None:
                root.create(LATEST_NAME, data)
            else:
                root.replace(LATEST_NAME, data, generation=generation)
            return chosen
        except (AlreadyExistsError, ConflictError):
            continue  # somebody else moved it: decide again


def _age_secs(root: Store, version: int) -> float:
    manifest = root.stat(manifest_name(version))
    return time.time() - manifest.updated if manifest else 0.0


def _is_better(candidate: Candidate, score: float) -> bool:
    sign = -1.0 if candidate.metric.startswith("-") else 1.0
    return sign * candidate.score > sign * score


def _crowned(candidate: Candidate, before: Champion | None) -> Champion:
    return Champion(
        version=candidate.version,
        model_uri=candidate.model_uri,
        metric=candidate.metric,
        score=candidate.score,
        report_uri=candidate.report_uri,
        promoted=time.time(),
        previous=() if before is None else (_entry(before), *before.previous)[:MOST_PREVIOUS],
        rolled_back=() if before is None else before.rolled_back,
    )


def _rolled_back(root: Store, champion: Champion, target: int) -> Champion:
    entries = {int(entry["version"]): entry for entry in champion.previous}
    known = entries.get(target, {})
    return replace(
        champion,
        version=target,
        model_uri=root.uri_of(str(target)),
        metric=str(known.get("metric", champion.metric)),
        score=float(known.get("score", champion.score)),
        report_uri=str(known.get("report_uri", "")),
        promoted=time.time(),
        previous=tuple(entry for entry in champion.previous if int(entry["version"]) != target),
        rolled_back=tuple(
            version for version in (champion.version, *champion.rolled_back) if version != target
        ),
    )


def _entry(champion: Champion) -> dict[str, Any]:
    return {
        "version": champion.version,
        "metric": champion.metric,
        "score": champion.score,
        "report_uri": champion.report_uri,
    }
