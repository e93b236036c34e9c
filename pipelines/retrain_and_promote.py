"""The recurring pipeline: retrain on what has come in, and promote what beats the champion.

Run on a schedule. The champion under `export_root` is what one run hands to the next: its schema is
enforced on the new data, its answers on the new held-out rows are what the new model is compared
with, and `latest.json` moves to the new version only by compare-and-set and only if it is better.
A run whose data is that of a model judged before ends after the conversion.
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
    name="retrain-and-promote",
    description="Retrain on new data, on a schedule, and promote what beats the champion.",
)
def retrain_and_promote(
    data_source: str,
    label_column: str,
    model_module: str,
    export_root: str,
    training_image: str = images.TENSORFLOW,
    storage_root: str = "",
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
    """Retrain on new data, on a schedule, and promote the model that beats the champion.

    Args:
        data_source: Data to learn from: a directory or glob that new files are added to.
        label_column: Column to predict (for folders of images: label).
        model_module: Dotted path of the module that defines build_model, importable in the image.
        export_root: Where model versions are published and the champion is kept, the same in every
            run (gs://bucket/models/name).
        training_image: Image of the training workers: Relay's, or one made from it that holds your
            model module.
        storage_root: Where dataset, checkpoints and report go (gs://bucket/folder). Empty: beside
            the pipeline's own artifacts.
        launcher: kubernetes (a TFJob) or local (inside the training step's own container).
        workers: Number of workers that train synchronously.
        batch_size: Examples of one training step over all workers together.
        epochs: Passes over the training split.
        hyperparameters: Passed to build_model.
        thresholds: What the model must reach to be published, by metric; min_change compares with
            the champion ({"auc": {"min": 0.7, "min_change": -0.01}}).
        slices: Columns by whose values the metrics are broken down.
        convert_options: Further options of make_tfrecords (splits, drop, group, layout, ...).
        train_options: Further options of train_model (checkpoint_steps, seed, ...); warm_start_uri
            is the export root to begin with its champion's weights.
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
            champion_root=export_root,
        )
        prepared(converted, "Data to TFRecord", cpu="2", memory="4Gi")
        with dsl.If(converted.outputs["Output"] != "", name="new data"):
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
                champion_root=export_root,
            )
