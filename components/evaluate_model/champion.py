"""The champion as a second model on the same examples, asked as clients ask it."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.contracts.dataset import Schema
from components.contracts.errors import InputError
from components.contracts.examples import DTYPES
from components.contracts.published_model import (
    RAW_SIGNATURE,
    SCORED_OUTPUTS,
    manifest_name,
    padding_of,
    read_champion,
)
from components.storage.base import Store
from components.storage.commit import fetch, files_of, open_committed
from components.storage.errors import CorruptObjectError, ObjectNotFoundError
from components.storage.open import open_store


@dataclass(frozen=True, kw_only=True)
class ChampionModel:
    """The champion, or why it cannot be compared with.

    Attributes:
        version: its number, 0 for none.
        model_uri: its folder.
        problem: why there is none to compare with; empty where there is one.
        score: from raw columns (images encoded) to the scored output.
    """

    version: int = 0
    model_uri: str = ""
    problem: str = ""
    score: Any = None


@contextmanager
def open_champion(export_root: str, schema: Schema) -> Iterator[ChampionModel]:
    """Fetch and load the champion of an export root for the time of the context.

    A champion that takes other columns, or a damaged one, is a `problem`, not an error: the new
    model may be the remedy.
    """
    if not export_root:
        yield ChampionModel(problem="no champion_root was given")
        return
    root = open_store(export_root)
    champion, _ = read_champion(root)
    if champion is None:
        yield ChampionModel(problem=f"{root.uri} has no champion yet")
        return
    with tempfile.TemporaryDirectory(prefix="relay-champion-") as folder:
        try:
            function = _load(root, champion.version, schema, Path(folder))
        except (CorruptObjectError, ObjectNotFoundError, InputError) as error:
            yield ChampionModel(
                version=champion.version, model_uri=champion.model_uri, problem=str(error)
            )
            return
        yield ChampionModel(
            version=champion.version,
            model_uri=champion.model_uri,
            score=lambda columns: function(columns),
        )


def _load(root: Store, version: int, schema: Schema, folder: Path) -> Any:
    manifest = open_committed(root, manifest_name(version))
    if manifest is None:
        raise InputError(f"version {version} of {root.uri} is not committed")
    _check_labels(manifest, schema, version)
    inputs = manifest.get("inputs", {})
    _check_columns(inputs, schema, version)
    for file in files_of(manifest):
        fetch(root, file, folder / file.name)
    # The graph of a SavedModel runs with this process's rights: export roots are written by our own
    # export step only (README).
    loaded = tf.saved_model.load(str(folder / str(version)))
    signature = loaded.signatures[RAW_SIGNATURE]
    output = SCORED_OUTPUTS[schema.task]

    def score(columns: Mapping[str, Any]) -> Any:
        raw = {
            feature.name: _padded(feature, columns[feature.name])
            for feature in schema.features
            if feature.name in inputs
        }
        return signature(**raw)[output]

    # The signatures live as long as the object they were loaded with.
    score.loaded = loaded  # type: ignore[attr-defined]
    return score


def _check_labels(manifest: Mapping[str, Any], schema: Schema, version: int) -> None:
    theirs = (manifest.get("task"), tuple(manifest.get("classes", ())))
    if theirs != (schema.task, schema.classes):
        raise InputError(
            f"version {version} is a {theirs[0]} model of the classes {list(theirs[1])}, this one "
            f"a {schema.task} model of {list(schema.classes)}"
        )


def _check_columns(wanted: Mapping[str, Any], schema: Schema, version: int) -> None:
    ours = {feature.name: DTYPES[feature.kind] for feature in schema.features}
    for name, taken in wanted.items():
        if name not in ours:
            raise InputError(f"version {version} takes a column {name!r}, which this dataset lacks")
        if ours[name].name != taken["dtype"]:
            raise InputError(
                f"version {version} takes column {name!r} as {taken['dtype']}, here it is "
                f"{ours[name].name}"
            )


def _padded(feature: Any, values: Any) -> Any:
    if feature.shape != (-1,):
        return values
    return values.to_tensor(default_value=tf.constant(padding_of(feature), values.dtype))
