"""The evaluation step as a Kubeflow Pipelines component."""

from kfp import dsl
from kfp.dsl import HTML, Artifact, ClassificationMetrics, Metrics, Output

from components import images


@dsl.component(base_image=images.TENSORFLOW, packages_to_install=[], install_kfp_package=False)
def evaluate_model(
    dataset_uri: str,
    run_uri: str,
    thresholds: dict,  # type: ignore[type-arg] # kfp knows no parametrised types here
    slices: list,  # type: ignore[type-arg]
    options: dict,  # type: ignore[type-arg]
    storage_root: str,
    champion_root: str,
    evaluation: Output[Artifact],
    metrics: Output[Metrics],
    classification: Output[ClassificationMetrics],
    report: Output[HTML],
    report_uri: dsl.OutputPath(str),  # type: ignore[valid-type] # kfp's way to name an output
    checkpoint_step: dsl.OutputPath(int),  # type: ignore[valid-type]
) -> bool:
    """Evaluate a checkpoint on the held-out split and decide whether it may be published.

    Args:
        dataset_uri: committed dataset.
        run_uri: finished training run.
        thresholds: metric name to limits.
        slices: columns by whose values metrics are broken down.
        options: further EvaluateOptions by name.
        storage_root: where the report goes; empty: the artifact's own place.
        champion_root: export root whose champion is scored on the same examples; empty: none.
        evaluation: the committed report, for machines and for people.
        metrics: scalar metrics.
        classification: ROC curve and confusion matrix.
        report: the report as a page.
        report_uri: uri of the committed report.
        checkpoint_step: step of the checkpoint.

    Returns:
        Whether every threshold is met. It is the one unnamed output because kfp.local (2.17) takes
        a condition on any other for false.
    """
    from pathlib import Path

    from components.runner import run_component

    result = run_component(
        "evaluate_model",
        {
            "dataset_uri": dataset_uri,
            "run_uri": run_uri,
            "thresholds": thresholds,
            "slices": slices,
            "output_uri": "{data_uri}",
            "html": report.path,
            **({"champion_root": champion_root} if champion_root else {}),
        },
        artifact_uri=evaluation.uri,
        storage_root=storage_root,
        options=options,
    )
    for name, value in result["metrics"].items():
        metrics.log_metric(name, value)
    metrics.log_metric("passed", float(result["passed"]))
    if result.get("roc"):
        roc = result["roc"]
        classification.log_roc_curve(roc["fpr"], roc["tpr"], roc["thresholds"])
    if result.get("confusion_matrix"):
        matrix = result["confusion_matrix"]
        classification.log_confusion_matrix(matrix["labels"], matrix["matrix"])
    Path(report_uri).write_text(result["report_uri"], encoding="utf-8")
    Path(checkpoint_step).write_text(str(result["checkpoint_step"]), encoding="utf-8")
    return bool(result["passed"])
