"""Where a run's first weights come from, decided once, before the run is described."""

import dataclasses
import json
import logging

from components.contracts.checkpoint import committed_steps, folder_of
from components.contracts.dataset import SCHEMA_NAME, Schema
from components.contracts.errors import InputError
from components.contracts.published_model import (
    LATEST_NAME,
    champion_schema_uri,
    manifest_name,
    read_champion,
)
from components.contracts.training_run import RUN_NAME, read_run
from components.storage.base import Store
from components.storage.commit import open_committed
from components.storage.errors import ObjectNotFoundError
from components.storage.open import join_uri, open_store
from components.train_model.options import TrainOptions

log = logging.getLogger("relay.launcher")


def with_warm_start(options: TrainOptions, store: Store, schema: Schema) -> TrainOptions:
    """The options with `warm_start_uri` naming one checkpoint, or nothing.

    A run that was begun keeps what was chosen then: the champion may have changed since.

    Args:
        options: as given.
        store: opened at the uri of the run to be.
        schema: of its dataset.

    Raises:
        InputError: there is no checkpoint, or its columns mean something else.
    """
    if not options.warm_start_uri:
        return options
    if store.stat(RUN_NAME) is not None:
        begun = str(read_run(store).options.get("warm_start_uri", ""))
        return dataclasses.replace(options, warm_start_uri=begun)
    checkpoint, schema_uri = _source(options.warm_start_uri)
    if checkpoint:
        _check_columns(schema, schema_uri, options.warm_start_uri)
        log.info("the first weights are those of %s", checkpoint)
    return dataclasses.replace(options, warm_start_uri=checkpoint)


def _source(uri: str) -> tuple[str, str]:
    """Uris of the checkpoint and of the schema that it was trained by."""
    root = open_store(uri)
    if root.stat(RUN_NAME) is not None:
        steps = committed_steps(root)
        if not steps:
            raise InputError(f"warm_start_uri {uri}: this run has no committed checkpoint yet")
        schema_uri = join_uri(read_run(root).dataset_uri, SCHEMA_NAME)
        return join_uri(uri, folder_of(steps[-1])), schema_uri
    if root.stat(LATEST_NAME) is not None:
        champion, _ = read_champion(root)
        assert champion is not None  # noqa: S101 - its record is there
        manifest = open_committed(root, manifest_name(champion.version)) or {}
        folder = folder_of(int(manifest["checkpoint_step"]))
        return join_uri(str(manifest["run_uri"]), folder), champion_schema_uri(root)
    log.info("%s has no champion yet: training begins with new weights", uri)
    return "", ""


def _check_columns(schema: Schema, schema_uri: str, uri: str) -> None:
    """Ids of texts are places in a vocabulary: in another order the weights mean other texts."""
    folder, _, name = schema_uri.rpartition("/")
    try:
        earlier = Schema.from_json(json.loads(open_store(folder).read(name)))
    except ObjectNotFoundError as error:
        raise InputError(
            f"warm_start_uri {uri}: the schema that it was trained by is gone ({error}), so nobody "
            "can say whether its inputs mean the same. Train without it"
        ) from error
    before = {f.name: (f.kind, f.vocabulary) for f in earlier.features}
    now = {f.name: (f.kind, f.vocabulary) for f in schema.features}
    differ = sorted(name for name in before | now if before.get(name) != now.get(name))
    if differ or earlier.classes != schema.classes:
        what = f"column {differ[0]!r}" if differ else "the label"
        raise InputError(
            f"warm_start_uri {uri}: {what} has other values, or another order of them, than the "
            "weights were trained on, so they would stand for something else. Train without it"
        )
