"""The exit handler as a Kubeflow Pipelines component."""

from kfp import dsl
from kfp.dsl import Artifact, Output, PipelineTaskFinalStatus

from components import images


@dsl.component(base_image=images.LAUNCHER, packages_to_install=[], install_kfp_package=False)
def summarize_run(
    storage_root: str, status: PipelineTaskFinalStatus, summary: Output[Artifact]
) -> None:
    """Write what the run has produced, or where and why it failed; delete its unfinished jobs.

    Args:
        storage_root: as given to the steps.
        status: final state of the run, from the platform.
        summary: JSON object.
    """
    from components.placement import place
    from components.summarize_run.summarize import write_summary
    from components.summarize_run.training_jobs import clean_up

    cleaned = clean_up(place(summary.uri, storage_root).run)
    if cleaned:
        print(cleaned)
    written = write_summary(
        summary.uri, storage_root, summary.path, state=status.state, error=status.error_message
    )
    summary.metadata.update({"verdict": written["verdict"], "state": written["state"]})
