"""The conversion step as a Kubeflow Pipelines component."""

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
) -> str:
    """Convert tables or images to TFRecord shards with schema, statistics and splits.

    Args:
        source: file, directory or glob to convert.
        label: column to predict.
        options: further ConvertOptions by name.
        storage_root: where the shards go; empty: the artifact's own place.
        champion_root: export root whose champion's schema the data must follow; empty: none.
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
            "output_uri": "{data_uri}",
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
