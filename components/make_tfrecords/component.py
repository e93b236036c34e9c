"""The conversion step as Kubeflow Pipelines components: one task, or several that share it."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Output

from components import images


@dsl.component(base_image=images.TENSORFLOW, packages_to_install=[], install_kfp_package=False)
def make_tfrecords(
    source: str,
    label: str,
    options: dict,  # type: ignore[type-arg] # kfp knows no parametrised types here
    storage_root: str,
    champion_root: str,
    dataset: Output[Dataset],
    statistics: Output[HTML],
    planned_uri: str = "",
    finished: list = [],  # type: ignore[type-arg] # noqa: B006 - kfp wants the value
) -> str:
    """Convert tables or images to TFRecord shards with schema, statistics and splits.

    Args:
        source: file, directory or glob to convert.
        label: column to predict.
        options: further ConvertOptions by name.
        storage_root: where the shards go; empty: the artifact's own place.
        champion_root: export root whose champion's schema the data must follow; empty: none.
        planned_uri: where plan_tfrecords has planned this conversion; empty: nowhere.
        finished: what the tasks convert_share have returned, so that this task waits for them.
        dataset: the committed dataset.
        statistics: page of statistics.

    Returns:
        Uri of the committed dataset; empty if there is nothing new since the last judged model.
    """
    from components.runner import run_component

    result = run_component(
        "make_tfrecords",
        {
            "source": source,
            "label": label,
            "output_uri": planned_uri or "{data_uri}",
            "reuse_uri": "{shared_uri}",
            "html": statistics.path,
            **({"champion_root": champion_root} if champion_root else {}),
        },
        artifact_uri=dataset.uri,
        storage_root=storage_root,
        options=options,
    )
    dataset.metadata.update({name: result[name] for name in ("num_rows", "num_rejected", "splits")})
    dataset.metadata["dataset_uri"] = result["dataset_uri"]
    dataset.metadata["fingerprint"] = result["fingerprint"]
    return result["dataset_uri"]  # type: ignore[no-any-return]


@dsl.component(base_image=images.TENSORFLOW, packages_to_install=[], install_kfp_package=False)
def plan_tfrecords(
    source: str,
    label: str,
    options: dict,  # type: ignore[type-arg]
    storage_root: str,
    num_shares: int,
    dataset: Output[Dataset],
    planned_uri: dsl.OutputPath(str),  # type: ignore[valid-type] # kfp's way to name an output
) -> list:  # type: ignore[type-arg]
    """Plan a conversion for several tasks.

    Args:
        source: as for make_tfrecords.
        label: likewise.
        options: likewise.
        storage_root: likewise.
        num_shares: how many tasks will convert; no more than there are shards.
        dataset: where the dataset will be.
        planned_uri: where the plan lies, and the parts will.

    Returns:
        The shares as convert_share takes them, each with its place: within a loop kfp.local (2.17)
        gives the loop's item for any other output of the task that made the list. One that has
        nothing to do if the same was converted before: kfp.local cannot collect from no task.
    """
    from pathlib import Path

    from components.runner import run_component

    result = run_component(
        "make_tfrecords",
        {
            "source": source,
            "label": label,
            "output_uri": "{data_uri}",
            "reuse_uri": "{shared_uri}",
            "stage": "plan",
            "num_shares": num_shares,
        },
        artifact_uri=dataset.uri,
        storage_root=storage_root,
        options=options,
    )
    Path(planned_uri).write_text(result["output_uri"], encoding="utf-8")
    shares = [f"{result['output_uri']}#{share}/{num_shares}" for share in result["shares"]]
    return shares or [f"{result['output_uri']}#0/0"]


@dsl.component(base_image=images.TENSORFLOW, packages_to_install=[], install_kfp_package=False)
def convert_share(
    source: str,
    label: str,
    options: dict,  # type: ignore[type-arg]
    storage_root: str,
    share: str,
    parts: Output[Dataset],
) -> int:
    """Convert one share of a planned conversion.

    Args:
        source: as for make_tfrecords.
        label: likewise.
        options: likewise.
        storage_root: likewise.
        share: one of those that plan_tfrecords has returned.
        parts: tells which run this is; the parts lie where the plan does.

    Returns:
        Number of parts in the share.
    """
    from components.runner import run_component

    planned_uri, _, position = share.rpartition("#")
    number, _, num_shares = position.partition("/")
    result = run_component(
        "make_tfrecords",
        {
            "source": source,
            "label": label,
            "output_uri": planned_uri,
            "stage": "share",
            "share": number,
            "num_shares": num_shares,
        },
        artifact_uri=parts.uri,
        storage_root=storage_root,
        options=options,
    )
    return result["num_parts"]  # type: ignore[no-any-return]
