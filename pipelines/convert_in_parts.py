"""The conversion by itself, shared by several tasks: for tables that are too large for one machine.

A later run of another pipeline with the same source, options and `storage_root` finds the dataset
by its fingerprint, and does not convert again. So those pipelines keep one conversion task: on a
cluster, every task costs about 20 s before its code runs, and every condition or loop as much.
"""

import os
import sys

# kfp puts only this file's folder on the path.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kfp import dsl  # noqa: E402

from components.make_tfrecords.component import (  # noqa: E402
    convert_share,
    make_tfrecords,
    plan_tfrecords,
)
from pipelines.tasks import prepared  # noqa: E402


@dsl.pipeline(
    name="convert-in-parts",
    description="Data to TFRecord by several tasks at once.",
)
def convert_in_parts(
    data_source: str,
    label_column: str,
    parts: int = 1,
    storage_root: str = "",
    convert_options: dict = {},  # type: ignore[type-arg] # noqa: B006 - kfp wants the value
) -> str:
    """Data to TFRecord by several tasks at once.

    Args:
        data_source: Data to convert: a file, directory or glob, local or in object storage.
        label_column: Column to predict (for folders of images: label).
        parts: Number of tasks that convert side by side; the bytes do not depend on it.
        storage_root: Where the dataset goes (gs://bucket/folder). Empty: beside the pipeline's own
            artifacts.
        convert_options: Further options of make_tfrecords (splits, drop, group, layout, ...).
    """
    common = {
        "source": data_source,
        "label": label_column,
        "options": convert_options,
        "storage_root": storage_root,
    }
    planned = plan_tfrecords(**common, num_shares=parts)
    prepared(planned, "Plan the conversion", cpu="1", memory="2Gi")
    with dsl.ParallelFor(planned.outputs["Output"], name="parts") as share:
        part = convert_share(**common, share=share)
        prepared(part, "Convert a part", cpu="2", memory="4Gi")
    converted = make_tfrecords(
        **common,
        champion_root="",
        planned_uri=planned.outputs["planned_uri"],
        finished=dsl.Collected(part.outputs["Output"]),
    )
    prepared(converted, "Commit the dataset", cpu="1", memory="2Gi")
    return converted.outputs["Output"]  # type: ignore[no-any-return]
