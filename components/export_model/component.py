"""The export step as a Kubeflow Pipelines component."""

from kfp import dsl
from kfp.dsl import Model, Output

from components import images


@dsl.component(base_image=images.TENSORFLOW, packages_to_install=[], install_kfp_package=False)
def export_model(
    dataset_uri: str,
    run_uri: str,
    report_uri: str,
    checkpoint_step: int,
    export_root: str,
    options: dict,  # type: ignore[type-arg] # kfp knows no parametrised types here
    storage_root: str,
    model: Output[Model],
) -> str:
    """Publish a SavedModel that takes raw rows, after proving that it answers as training did.

    Args:
        dataset_uri: committed dataset.
        run_uri: finished training run.
        report_uri: its evaluation.
        checkpoint_step: the checkpoint that was evaluated.
        export_root: where versions are published; empty: the artifact's own place.
        options: further ExportOptions by name.
        storage_root: base of an empty export_root.
        model: the published version.

    Returns:
        Uri of the published version.
    """
    from components.runner import run_component

    result = run_component(
        "export_model",
        {
            "dataset_uri": dataset_uri,
            "run_uri": run_uri,
            "report_uri": report_uri,
            "checkpoint": str(checkpoint_step),
            "export_root": export_root or "{data_uri}",
        },
        artifact_uri=model.uri,
        storage_root=storage_root,
        options=options,
    )
    model.metadata.update(result)
    return result["model_uri"]  # type: ignore[no-any-return]
