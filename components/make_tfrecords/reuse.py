"""Finding a conversion again: a pointer by fingerprint, shared by all runs of a root.

A pointer is only a hint. What it points to counts if its manifest verifies and has the fingerprint.
"""

import json
import logging

from components.contracts.dataset import Dataset, open_dataset
from components.contracts.errors import InputError
from components.storage.errors import ObjectNotFoundError
from components.storage.open import open_store

log = logging.getLogger(__name__)


def find_converted(reuse_uri: str, fingerprint: str) -> Dataset | None:
    """The dataset that an earlier run committed with this fingerprint, if it is still whole."""
    if not reuse_uri:
        return None
    try:
        pointer = json.loads(open_store(reuse_uri).read(_name(fingerprint)))
        dataset = open_dataset(open_store(pointer["dataset_uri"]))
    except ObjectNotFoundError:
        return None
    except (InputError, ValueError, KeyError) as error:
        log.warning("an earlier conversion cannot be used again: %s", error)
        return None
    return dataset if dataset.fingerprint == fingerprint else None


def remember_converted(reuse_uri: str, dataset: Dataset) -> None:
    """Leave the pointer for later runs."""
    if reuse_uri:
        pointer = json.dumps({"dataset_uri": dataset.uri}).encode()
        open_store(reuse_uri).write(_name(dataset.fingerprint), pointer)


def _name(fingerprint: str) -> str:
    return f"datasets/{fingerprint}.json"
