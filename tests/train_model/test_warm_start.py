"""Training that begins with the weights of an earlier run."""

import dataclasses
import json

import pytest

from components.contracts.dataset import open_dataset
from components.contracts.errors import EXIT_BAD_INPUT, InputError
from components.contracts.training_run import read_run
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.warm_start import with_warm_start


def options(dataset_uri, warm_start_uri):
    return TrainOptions(dataset_uri=dataset_uri, model_module="m", warm_start_uri=warm_start_uri)


def test_a_run_begins_where_another_one_ended_and_keeps_to_that(train, dataset_uri, tmp_path):
    first = train("first", workers=1, epochs=4)
    assert first.finish() == 0, first.log
    second = train("second", workers=1, epochs=1, warm_start_uri=first.run_uri)
    assert second.finish() == 0, second.log
    losses = [run.completion.history[0]["loss"] for run in (first, second)]
    assert losses[1] < 0.9 * losses[0]
    chosen = read_run(second.store).options["warm_start_uri"]
    assert chosen == f"{first.run_uri}/checkpoints/step-{first.completion.step:08d}"

    schema = open_dataset(open_store(dataset_uri)).schema
    elsewhere = options(dataset_uri, str(tmp_path / "elsewhere"))
    assert with_warm_start(elsewhere, second.store, schema).warm_start_uri == chosen

    # A model of other shapes cannot take them.
    third = train(
        "third",
        workers=1,
        epochs=1,
        warm_start_uri=first.run_uri,
        module="tests.train_model.odd_models",
        hyperparameters={"how": "narrow"},
    )
    assert third.finish() == EXIT_BAD_INPUT, third.log
    assert "do not fit" in third.message


def test_an_export_root_without_a_champion_gives_new_weights(dataset_uri, tmp_path):
    schema = open_dataset(open_store(dataset_uri)).schema
    given = options(dataset_uri, str(tmp_path / "models"))
    assert with_warm_start(given, open_store(str(tmp_path / "run")), schema).warm_start_uri == ""


def test_weights_whose_inputs_meant_something_else_are_refused(dataset_uri, tmp_path):
    schema = open_dataset(open_store(dataset_uri)).schema
    run = open_store(str(tmp_path / "earlier"))
    run.write(
        "run.json",
        json.dumps(
            {
                "model_module": "m",
                "hyperparameters": {},
                "dataset_uri": dataset_uri,
                "dataset_fingerprint": "d",
                "fingerprint": "f",
            }
        ).encode(),
    )
    begin = (options(dataset_uri, run.uri), open_store(str(tmp_path / "run")))
    with pytest.raises(InputError, match="no committed checkpoint yet"):
        with_warm_start(*begin, schema)
    run.write("checkpoints/step-00000012/manifest.json", b'{"files": []}')
    assert with_warm_start(*begin, schema).warm_start_uri.endswith("step-00000012")
    first, *others = schema.features
    text = dataclasses.replace(
        first,
        kind="string",
        statistics=dataclasses.replace(first.statistics, vocabulary=(("x", 2), ("y", 1))),
    )
    changed = dataclasses.replace(schema, features=(text, *others))
    with pytest.raises(InputError, match=f"column '{first.name}' has other values"):
        with_warm_start(*begin, changed)
