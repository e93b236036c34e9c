"""What the pipelines share: what every task states, and the way from a dataset to a version."""

import os

from kfp import dsl

from components.evaluate_model.component import evaluate_model
from components.export_model.component import export_model
from components.train_model.component import train_model

# The platform's ring of retries, behind the step's own. On one machine the step's own is enough.
TASK_RETRIES = int(os.environ.get("RELAY_TASK_RETRIES", "3"))
# Kubeflow Pipelines stops retrying this long after the first attempt began; its default is an hour.
RETRY_WINDOW = "1209600s"


def prepared(task: dsl.PipelineTask, name: str, *, cpu: str, memory: str) -> dsl.PipelineTask:
    """Set what every task states: display name, retries, cache and resources of its own pod.

    No task is cached by the platform: what a directory or glob holds, and which version is the
    champion, are not in its cache's key. Conversions are found again by their content.
    """
    task.set_display_name(name)
    task.set_caching_options(False)
    task.set_cpu_request(cpu).set_memory_request(memory)
    if TASK_RETRIES:
        task.set_retry(
            num_retries=TASK_RETRIES,
            backoff_duration="30s",
            backoff_factor=2.0,
            backoff_max_duration=RETRY_WINDOW,
        )
    return task


def train_and_publish(
    dataset_uri: str,
    *,
    model_module: str,
    hyperparameters: dict,  # type: ignore[type-arg] # kfp knows no parametrised types here
    training_image: str,
    launcher: str,
    workers: int,
    batch_size: int,
    epochs: int,
    thresholds: dict,  # type: ignore[type-arg]
    slices: list,  # type: ignore[type-arg]
    train_options: dict,  # type: ignore[type-arg]
    evaluate_options: dict,  # type: ignore[type-arg]
    export_options: dict,  # type: ignore[type-arg]
    storage_root: str,
    export_root: str,
    champion_root: str,
) -> None:
    """Add the tasks that train, evaluate and, if every threshold is met, export."""
    trained = train_model(
        dataset_uri=dataset_uri,
        model_module=model_module,
        hyperparameters=hyperparameters,
        launcher=launcher,
        workers=workers,
        batch_size=batch_size,
        epochs=epochs,
        options=train_options,
        image=training_image,
        storage_root=storage_root,
    )
    # Resources set on this task are those of a training worker, not of the launcher's pod.
    prepared(trained, "Train", cpu="1", memory="4Gi")
    evaluated = evaluate_model(
        dataset_uri=dataset_uri,
        run_uri=trained.outputs["Output"],
        thresholds=thresholds,
        slices=slices,
        options=evaluate_options,
        storage_root=storage_root,
        champion_root=champion_root,
    )
    prepared(evaluated, "Evaluate", cpu="2", memory="4Gi")
    with dsl.If(evaluated.outputs["Output"] == True, name="passed"):  # noqa: E712 - a placeholder
        exported = export_model(
            dataset_uri=dataset_uri,
            run_uri=trained.outputs["Output"],
            report_uri=evaluated.outputs["report_uri"],
            checkpoint_step=evaluated.outputs["checkpoint_step"],
            export_root=export_root,
            options=export_options,
            storage_root=storage_root,
        )
        prepared(exported, "Export", cpu="1", memory="4Gi")
