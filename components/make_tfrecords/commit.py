"""The last step: everything that the parts have written and seen becomes one committed dataset."""

import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from components.contracts.dataset import (
    MANIFEST_NAME,
    SCHEMA_NAME,
    Dataset,
    Feature,
    Schema,
    manifest_body,
)
from components.contracts.errors import InputError
from components.make_tfrecords.enforce import check_categories_follow, read_schema
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.part import PartResult
from components.make_tfrecords.plan import Plan
from components.make_tfrecords.readers.base import Fault, Reader, place_of
from components.make_tfrecords.statistics import ColumnStatistics
from components.make_tfrecords.statistics_page import render
from components.storage.base import Store
from components.storage.commit import commit_manifest, put

REJECTS_NAME = "rejects.jsonl"
PAGE_NAME = "statistics.html"
MAX_SHOWN_FAULTS = 10


def commit_dataset(
    plan: Plan,
    options: ConvertOptions,
    readers: Sequence[Reader],
    results: Sequence[PartResult],
    store: Store,
) -> Dataset:
    """Check the whole, write schema and reject file, create the manifest.

    Raises:
        InputError: too many rows were rejected, a split is empty, or there is no row at all.
    """
    num_rows = sum(sum(result.segment_rows) for result in results)
    num_rejected = sum(result.num_rejected for result in results)
    faults = _placed_faults(plan, readers, results)
    _check_rows(options, num_rows, num_rejected, faults)
    schema = _described(plan.schema, results)
    if options.schema_uri:
        check_categories_follow(read_schema(options.schema_uri), schema, options)
    rejects = "".join(json.dumps(fault.to_json(), ensure_ascii=False) + "\n" for fault in faults)
    files = [file for result in results for file in result.files]
    shards = [shard for result in results for shard in result.shards]
    dataset = Dataset(
        uri=store.uri,
        schema=schema,
        layout=options.layout,
        compression=options.compression,
        shards=tuple(sorted(shards, key=lambda shard: shard.name)),
        files={},
        fingerprint=plan.fingerprint,
        num_rows=num_rows,
        num_rejected=num_rejected,
    )
    _check_splits(options, dataset)
    files.append(put(store, REJECTS_NAME, rejects.encode()))
    files.append(put(store, SCHEMA_NAME, json.dumps(schema.to_json(), indent=1).encode()))
    page = render(dataset, list(options.splits))
    files.append(put(store, PAGE_NAME, page.encode()))
    writer = f"make_tfrecords on {socket.gethostname()}, process {os.getpid()}"
    commit_manifest(store, MANIFEST_NAME, files, manifest_body(dataset, writer=writer))
    return replace(dataset, files={file.name: file for file in sorted(files, key=lambda f: f.name)})


def _placed_faults(
    plan: Plan, readers: Sequence[Reader], results: Sequence[PartResult]
) -> list[Fault]:
    """Faults with their file and the row's number in it, counted from 1."""
    num_seen: Counter[int] = Counter()
    placed = []
    for part, result in zip(plan.parts, results, strict=True):
        firsts = []
        for segment, num_rows in zip(part, result.segment_rows, strict=True):
            firsts.append(num_seen[segment.source])
            num_seen[segment.source] += num_rows
        for number, fault in result.faults:
            row = firsts[number] + fault.row
            source = readers[part[number].source].source_of(row)
            placed.append(replace(fault, source=source, row=row + 1))
    return placed


def _check_rows(
    options: ConvertOptions, num_rows: int, num_rejected: int, faults: Sequence[Fault]
) -> None:
    if not num_rows:
        raise InputError(f"{', '.join(options.sources)} has column names, but no row")
    if num_rejected <= options.max_rejected_share * num_rows:
        return
    reasons = Counter(_reason(fault) for fault in faults)
    shown = [f"  {count} x {reason}" for reason, count in reasons.most_common(MAX_SHOWN_FAULTS)]
    places = [f"  {place_of(fault)}" for fault in faults[:MAX_SHOWN_FAULTS]]
    raise InputError(
        f"{num_rejected} of {num_rows} rows cannot be converted, and max_rejected_share="
        f"{options.max_rejected_share:g} allows {int(options.max_rejected_share * num_rows)}: "
        f"{place_of(faults[0])}. Correct the source, or raise max_rejected_share to leave such "
        "rows out. By reason:\n" + "\n".join(shown) + "\nThe first of them:\n" + "\n".join(places)
    )


def _reason(fault: Fault) -> str:
    value = f"={fault.value!r}" if fault.reason == "is none of the classes" else ""
    return f"{fault.column}{value} {fault.reason}".strip()


def _check_splits(options: ConvertOptions, dataset: Dataset) -> None:
    empty = [name for name in options.splits if not dataset.splits.get(name)]
    if empty:
        grouped = f" grouped by {options.group!r}" if options.group else ""
        raise InputError(
            f"split {', '.join(empty)} would be empty: {dataset.num_rows - dataset.num_rejected} "
            f"rows{grouped} fall into {dataset.splits}, asked were {dict(options.splits)}. Give "
            "more "
            "rows, other fractions or another seed"
        )


def _described(schema: Schema, results: Sequence[PartResult]) -> Schema:
    """The schema with statistics and nullability."""

    def described(feature: Feature) -> Feature:
        total = ColumnStatistics.of(feature)
        for result in results:
            total.merge(result.statistics[feature.name])
        nullable = any(feature.name in result.nullable for result in results)
        return replace(
            feature,
            statistics=total.result(),
            nullable=nullable,
            missing_value=feature.missing_value if nullable else None,
        )

    return replace(
        schema,
        features=tuple(described(feature) for feature in schema.features),
        label=described(schema.label),
    )
