"""The pipeline: data to TFRecord, training, evaluation, and export behind a quality gate.

This file is the only definition of the DAG. Compile it from any directory with
`kfp dsl compile --py pipelines/train_and_export.py --output train_and_export.yaml`, or run it on
one machine with `python -m pipelines.run_local`.
"""

import os
import sys

# kfp puts only this file's folder on the path.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kfp import dsl  # noqa: E402

from components import images  # noqa: E402
from components.make_tfrecords.component import make_tfrecords  # noqa: E402
from components.summarize_run.component import summarize_run  # noqa: E402
from pipelines.tasks import prepared, train_and_publish  # noqa: E402


@dsl.pipeline(
    name="train-and-export",
    description="From raw data to a served SavedModel, by training that finishes.",
)
def train_and_export(
    data_source: str,
    label_column: str,
    model_module: str,
    training_image: str = images.TENSORFLOW,
    storage_root: str = "",
    export_root: str = "",
    launcher: str = "kubernetes",
    workers: int = 2,
    batch_size: int = 256,
    epochs: int = 1,
    hyperparameters: dict = {},  # type: ignore[type-arg] # noqa: B006 - kfp wants the value
    thresholds: dict = {},  # type: ignore[type-arg] # noqa: B006
    slices: list = [],  # type: ignore[type-arg] # noqa: B006
    convert_options: dict = {},  # type: ignore[type-arg] # noqa: B006
    train_options: dict = {},  # type: ignore[type-arg] # noqa: B006
    evaluate_options: dict = {},  # type: ignore[type-arg] # noqa: B006
    export_options: dict = {},  # type: ignore[type-arg] # noqa: B006
) -> None:
    """From raw data to a served SavedModel, by training that finishes.

    Args:
        data_source: Data to learn from: a file, directory or glob, local or in object storage.
        label_column: Column to predict (for folders of images: label).
        model_module: Dotted path of the module that defines build_model, importable in the image.
        training_image: Image of the training workers: Relay's, or one made from it that holds your
            model module.
        storage_root: Where dataset, checkpoints and report go (gs://bucket/folder). Empty: beside
            the pipeline's own artifacts.
        export_root: Where model versions are published, one numbered folder each, as TensorFlow
            Serving reads them. Empty: beside the pipeline's own artifacts.
        launcher: kubernetes (a TFJob) or local (inside the training step's own container).
        workers: Number of workers that train synchronously.
        batch_size: Examples of one training step over all workers together.
        epochs: Passes over the training split.
        hyperparameters: Passed to build_model.
        thresholds: What the model must reach to be published, by metric.
        slices: Columns by whose values the metrics are broken down.
        convert_options: Further options of make_tfrecords (splits, drop, group, layout, ...).
        train_options: Further options of train_model (checkpoint_steps, seed, xla, ...).
        evaluate_options: Further options of evaluate_model (checkpoint, split, ...).
        export_options: Further options of export_model (parity_rows, ...).
    """
    summary = summarize_run(storage_root=storage_root)
    prepared(summary, "Write the run's summary", cpu="100m", memory="256Mi")
    with dsl.ExitHandler(summary, name="training that finishes"):
        converted = make_tfrecords(
            source=data_source,
            label=label_column,
            options=convert_options,
            storage_root=storage_root,
            champion_root="",
        )
        prepared(converted, "Data to TFRecord", cpu="2", memory="4Gi")
        train_and_publish(
            converted.outputs["Output"],
            model_module=model_module,
            hyperparameters=hyperparameters,
            training_image=training_image,
            launcher=launcher,
            workers=workers,
            batch_size=batch_size,
            epochs=epochs,
            thresholds=thresholds,
            slices=slices,
            train_options=train_options,
            evaluate_options=evaluate_options,
            export_options=export_options,
            storage_root=storage_root,
            export_root=export_root,
            champion_root="",
        )
