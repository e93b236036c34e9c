"""The training step as a Kubeflow Pipelines component."""

from kfp import dsl
from kfp.dsl import Model, Output

from components import images


@dsl.component(
    base_image=images.LAUNCHER,
    packages_to_install=[],
    install_kfp_package=False,
    # What is set on the task describes the training pods, not the launcher's own.
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        # The launcher reads and writes the same storage as the workers.
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
def train_model(
    dataset_uri: str,
    model_module: str,
    hyperparameters: dict,  # type: ignore[type-arg] # kfp knows no parametrised types here
    launcher: str,
    workers: int,
    batch_size: int,
    epochs: int,
    options: dict,  # type: ignore[type-arg]
    image: str,
    storage_root: str,
    task_config: dsl.TaskConfig,
    run: Output[Model],
) -> str:
    """Train with several synchronous workers, from the newest committed checkpoint to the end.

    Args:
        dataset_uri: committed dataset.
        model_module: dotted path of the user's module.
        hyperparameters: passed to its build_model.
        launcher: local or kubernetes.
        workers: number of workers.
        batch_size: examples of one step over all workers.
        epochs: passes over the training split.
        options: further TrainOptions by name.
        image: of the workers, for launcher=kubernetes.
        storage_root: where checkpoints go; empty: the artifact's own place.
        task_config: resources, tolerations, node selector, affinity, environment and volumes that
            were set on the task; filled in by the platform.
        run: the finished run with its checkpoints.

    Returns:
        Uri of the run.
    """
    from components.runner import run_training

    result = run_training(
        {
            "dataset_uri": dataset_uri,
            "model_module": model_module,
            "hyperparameters": hyperparameters,
            "launcher": launcher,
            "workers": workers,
            "batch_size": batch_size,
            "epochs": epochs,
            "output_uri": "{data_uri}",
        },
        image=image,
        task_config=vars(task_config),
        artifact_uri=run.uri,
        storage_root=storage_root,
        options=options,
    )
    run.metadata.update(result)
    return result["run_uri"]  # type: ignore[no-any-return]
