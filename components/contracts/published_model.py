"""A published model: where its versions lie, how they are asked, and which one is the champion.

Agreed between export_model, which publishes and promotes, evaluate_model, which scores the champion
on the same examples as a new model, and servers.

Under the export root: `<version>/` is a SavedModel with `manifest.json` beside it; `latest.json`
names the champion and is moved by compare-and-set only; `considered/` names the datasets whose
models have been judged, so that a recurring run without new data has nothing to do.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.errors import ObjectNotFoundError

LATEST_NAME = "latest.json"
MANIFEST_NAME = "manifest.json"
GRAPH_NAME = "saved_model.pb"
# Within a version: the schema of the data that it was trained on.
SCHEMA_NAME = "assets.extra/schema.json"

# Signatures, and the inputs and outputs whose names do not come from the columns.
RAW_SIGNATURE = "serving_default"
EXAMPLES_SIGNATURE = "serving_examples"
EXAMPLES_INPUT = "examples"
SCORED_OUTPUTS = {"binary": "probability", "multiclass": "probabilities", "regression": "value"}
CLASS_OUTPUT = "class"


@dataclass(frozen=True, kw_only=True)
class Champion:
    """What `latest.json` says.

    Attributes:
        version: that serves.
        model_uri: its folder.
        metric: that decided, with a leading `-` where smaller is better.
        score: the metric's value.
        report_uri: of its evaluation.
        promoted: seconds since the epoch.
        previous: champions before it, newest first: {version, metric, score, report_uri}.
        rolled_back: versions that a person took back; they are not promoted again.
    """

    version: int
    model_uri: str
    metric: str
    score: float
    report_uri: str = ""
    promoted: float = 0.0
    previous: tuple[Mapping[str, Any], ...] = ()
    rolled_back: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `latest.json` and results."""
        return asdict(self)


def manifest_name(version: int) -> str:
    """Object name of a version's manifest."""
    return f"{version}/{MANIFEST_NAME}"


def read_champion(root: Store) -> tuple[Champion | None, str]:
    """The champion, or None, and the generation of `latest.json`.

    Raises:
        InputError: `latest.json` is not a champion's record.
    """
    try:
        data, generation = root.read_versioned(LATEST_NAME)
    except ObjectNotFoundError:
        return None, ""
    try:
        fields = json.loads(data)
        champion = Champion(
            **{
                **fields,
                "previous": tuple(fields["previous"]),
                "rolled_back": tuple(fields["rolled_back"]),
            }
        )
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{root.uri_of(LATEST_NAME)} is not a champion's record: {error}. Restore it, or "
            "remove it to let the next export that passes become the champion"
        ) from error
    return champion, generation


def champion_schema_uri(root: Store) -> str:
    """Uri of the schema that the champion was trained by; empty without one."""
    champion, _ = read_champion(root)
    if champion is None:
        return ""
    name = f"{champion.version}/{SCHEMA_NAME}"
    return root.uri_of(name) if root.stat(name) else ""


def note_considered(root: Store, fingerprint: str, report_uri: str) -> None:
    """Leave a mark that the dataset with this fingerprint has led to a judged model."""
    root.write(_considered(fingerprint), json.dumps({"report_uri": report_uri}).encode())


def was_considered(root: Store, fingerprint: str) -> bool:
    """Whether a dataset with this fingerprint has led to a judged model."""
    return root.stat(_considered(fingerprint)) is not None


def _considered(fingerprint: str) -> str:
    return f"considered/{fingerprint}.json"


def padding_of(feature: Feature) -> float | int | str:
    """What fills up the lists of a variable-length column in a raw request."""
    if feature.missing_value is not None:
        return feature.missing_value
    return {"float": float("nan"), "int64": -(2**63)}.get(feature.kind, "")
