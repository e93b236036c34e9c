"""The conversion as a whole: plan, convert every part, commit."""

import json
import logging
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from components.contracts.dataset import (
    MANIFEST_NAME,
    SCHEMA_NAME,
    Dataset,
    Feature,
    Schema,
    Statistics,
    manifest_body,
    open_dataset,
)
from components.contracts.errors import InputError
from components.make_tfrecords.infer import Evidence, gather
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.part import PartConverter, PartResult
from components.make_tfrecords.plan import Plan, fingerprint_of, plan_parts
from components.make_tfrecords.progress import Progress
from components.make_tfrecords.readers.base import Fault, MismatchError, Reader
from components.make_tfrecords.readers.csv import CsvReader
from components.make_tfrecords.reuse import find_converted, remember_converted
from components.make_tfrecords.schema import build_schema
from components.make_tfrecords.sources import Source, find_sources, materialize
from components.make_tfrecords.statistics import ColumnStatistics
from components.storage.base import Store
from components.storage.commit import commit_manifest, put, read_manifest
from components.storage.errors import AlreadyExistsError
from components.storage.open import open_store

REJECTS_NAME = "rejects.jsonl"
MAX_SHOWN_FAULTS = 10

log = logging.getLogger(__name__)


def make_tfrecords(options: ConvertOptions, output_uri: str, reuse_uri: str = "") -> Dataset:
    """Convert the sources into a dataset committed at `output_uri`.

    Args:
        options: what to convert, and how.
        output_uri: where to commit; nothing is done where the same dataset is committed already.
        reuse_uri: where conversions of other runs are looked up by fingerprint; empty: nowhere.

    Returns:
        The dataset, which lies elsewhere if an earlier run has converted the same.

    Raises:
        InputError: the input cannot be converted; nothing is left at `output_uri`.
        AlreadyExistsError: another dataset is committed there.
    """
    store = open_store(output_uri)
    sources = find_sources(options)
    fingerprint = fingerprint_of(sources, options, None)
    manifest = read_manifest(store, MANIFEST_NAME)
    if manifest is not None:
        return _reused(store, manifest.get("fingerprint"), fingerprint)
    earlier = find_converted(reuse_uri, fingerprint)
    if earlier is not None:
        log.info("already converted by an earlier run: %s", earlier.uri)
        return earlier
    store.delete_prefix("")
    with tempfile.TemporaryDirectory(
        prefix="relay-convert-", dir=options.workspace or None
    ) as folder:
        try:
            dataset = _convert(options, sources, fingerprint, store, Path(folder))
        except BaseException:
            store.delete_prefix("")
            raise
    remember_converted(reuse_uri, dataset)
    return dataset


def _reused(store: Store, found: str | None, wanted: str) -> Dataset:
    if found != wanted:
        raise AlreadyExistsError(
            f"{store.uri} holds a dataset of other input or options (fingerprint {found}, this one "
            f"has {wanted}). Choose another output, or delete that one"
        )
    log.info("already converted: %s", store.uri)
    return open_dataset(store)


def _convert(
    options: ConvertOptions, sources: list[Source], fingerprint: str, store: Store, folder: Path
) -> Dataset:
    readers, sizes = _open_readers(options, sources, folder)
    parts = plan_parts(readers, sizes, options.num_shards)
    for sampled in (True, False):
        evidence: dict[str, Evidence] = {}
        for part in parts:
            for segment in part:
                reader = readers[segment.source]
                rows = (
                    reader.sample(segment.start, segment.stop)
                    if sampled
                    else reader.read(segment.start, segment.stop, None)
                )
                gather(rows, evidence, options)
        if not evidence:
            raise InputError(f"{', '.join(options.sources)}: there is a header but no row")
        schema = build_schema(evidence, options)
        plan = Plan(fingerprint=fingerprint, schema=schema, parts=parts, strict=not sampled)
        try:
            results = _convert_parts(plan, options, readers, store, folder)
            break
        except MismatchError as mismatch:
            log.info("the first rows do not tell all (%s): reading all of them", mismatch)
    return commit(plan, options, readers, results, store)


def _open_readers(
    options: ConvertOptions, sources: Sequence[Source], folder: Path
) -> tuple[list[Reader], list[int]]:
    readers: list[Reader] = []
    sizes = []
    for source in sources:
        for name, path in materialize(source, folder):
            readers.append(CsvReader(name, path, options))
            sizes.append(path.stat().st_size)
    return readers, sizes


def _convert_parts(
    plan: Plan, options: ConvertOptions, readers: Sequence[Reader], store: Store, folder: Path
) -> list[PartResult]:
    progress = Progress()
    results = []
    for index, segments in enumerate(plan.parts):
        converter = PartConverter(
            plan.schema,
            options,
            folder,
            index=index,
            num_parts=len(plan.parts),
            strict=plan.strict,
        )
        results.append(converter.convert(readers, segments, store, progress.add))
    progress.finish()
    return results


def commit(
    plan: Plan,
    options: ConvertOptions,
    readers: Sequence[Reader],
    results: Sequence[PartResult],
    store: Store,
) -> Dataset:
    """Check the whole, write schema, reject file and manifest. Raises InputError."""
    num_rows = sum(sum(result.segment_rows) for result in results)
    num_rejected = sum(result.num_rejected for result in results)
    faults = _placed_faults(plan, results)
    _check_rows(options, num_rows, num_rejected, faults)
    shards = sorted((s for result in results for s in result.shards), key=lambda shard: shard.name)
    files = [file for result in results for file in result.files]
    schema = _with_statistics(plan.schema, results)
    text = "".join(json.dumps(fault.to_json(), ensure_ascii=False) + "\n" for fault in faults)
    files.append(put(store, REJECTS_NAME, text.encode()))
    files.append(put(store, SCHEMA_NAME, json.dumps(schema.to_json(), indent=1).encode()))
    dataset = Dataset(
        uri=store.uri,
        schema=schema,
        layout=options.layout,
        compression=options.compression,
        shards=tuple(shards),
        files={file.name: file for file in sorted(files, key=lambda file: file.name)},
        fingerprint=plan.fingerprint,
        num_rows=num_rows,
        num_rejected=num_rejected,
    )
    _check_splits(options, dataset)
    writer = f"make_tfrecords on {socket.gethostname()}, process {os.getpid()}"
    commit_manifest(store, MANIFEST_NAME, files, manifest_body(dataset, writer=writer))
    return dataset


def _placed_faults(plan: Plan, results: Sequence[PartResult]) -> list[Fault]:
    """Faults with the row's number in its source, counted from 1."""
    seen: dict[int, int] = {}
    placed = []
    for part, result in zip(plan.parts, results, strict=True):
        firsts = []
        for segment, num_rows in zip(part, result.segment_rows, strict=True):
            firsts.append(seen.get(segment.source, 0))
            seen[segment.source] = firsts[-1] + num_rows
        for segment_number, fault in result.faults:
            placed.append(replace(fault, row=firsts[segment_number] + fault.row + 1))
    return placed


def _check_rows(
    options: ConvertOptions, num_rows: int, num_rejected: int, faults: Sequence[Fault]
) -> None:
    if not num_rows:
        raise InputError(f"{', '.join(options.sources)}: there is a header but no row")
    if num_rejected > options.max_rejected_share * num_rows:
        shown = "\n".join(
            f"  {f.source} row {f.row}: {f.column + '=' if f.column else ''}{f.value!r} {f.reason}"
            for f in faults[:MAX_SHOWN_FAULTS]
        )
        raise InputError(
            f"{num_rejected} of {num_rows} rows cannot be converted, max_rejected_share="
            f"{options.max_rejected_share:g} allows {int(options.max_rejected_share * num_rows)}. "
            f"Correct them in the source, or raise it to leave them out:\n{shown}"
        )


def _check_splits(options: ConvertOptions, dataset: Dataset) -> None:
    empty = [name for name in options.splits if not dataset.splits.get(name)]
    if empty:
        raise InputError(
            f"split {', '.join(empty)} would be empty: {dataset.num_rows - dataset.num_rejected} rows, "
            f"splits {dict(options.splits)}{', grouped by ' + options.group if options.group else ''}. "
            "Give more rows, other fractions or another seed"
        )


def _with_statistics(schema: Schema, results: Sequence[PartResult]) -> Schema:
    def described(feature: Feature) -> Feature:
        total = ColumnStatistics.of(feature)
        for result in results:
            total.merge(result.statistics[feature.name])
        statistics: Statistics = total.result()
        nullable = any(r.statistics[feature.name].missing for r in results)
        missing = feature.missing_value if nullable else None
        return replace(feature, statistics=statistics, nullable=nullable, missing_value=missing)

    return replace(
        schema,
        features=tuple(described(feature) for feature in schema.features),
        label=described(schema.label),
    )
