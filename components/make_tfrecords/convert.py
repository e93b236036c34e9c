"""The conversion as a whole: plan, convert the parts, commit."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from components.contracts.dataset import MANIFEST_NAME, Dataset, open_dataset
from components.contracts.errors import InputError, RetryableError
from components.contracts.published_model import champion_schema_uri, was_considered
from components.make_tfrecords.commit import commit_dataset
from components.make_tfrecords.enforce import as_plan, check_columns_follow, read_schema
from components.make_tfrecords.infer import merged
from components.make_tfrecords.inputs import Inputs, open_readers, recognize
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.plan import Plan, fingerprint_of, plan_parts
from components.make_tfrecords.readers.base import MismatchError, Reader, UndecidedError, place_of
from components.make_tfrecords.reuse import find_converted, remember_converted
from components.make_tfrecords.run import WORK_FOLDER, Workers, load_result, temporary_folder
from components.make_tfrecords.schema import build_schema
from components.make_tfrecords.sources import find_sources, materialize
from components.storage.base import Store
from components.storage.commit import read_manifest
from components.storage.errors import AlreadyExistsError, ObjectNotFoundError
from components.storage.open import open_store

PLAN_NAME = f"{WORK_FOLDER}/plan.json"
_OWN_NAMES = re.compile(
    r"work/.*|[A-Za-z0-9_]+-\d{5}-of-\d{5}\.(tfrecord|index)|schema\.json|rejects\.jsonl"
    r"|statistics\.html"
)

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
        RetryableError: the next attempt goes on with the parts that are finished.
    """
    store = open_store(output_uri)
    with temporary_folder(options) as folder, _cleared_on_failure(store):
        inputs, fingerprint = inputs_of(options, folder)
        found = converted_before(store, fingerprint, reuse_uri)
        if found is not None:
            return found
        workers = Workers(inputs, options)
        plan = _convert(inputs, fingerprint, options, workers, store)
        dataset = _commit(plan, inputs, options, store)
    remember_converted(reuse_uri, dataset)
    return dataset


def inputs_of(options: ConvertOptions, folder: Path) -> tuple[Inputs, str]:
    """Local files of one format, and the fingerprint of the conversion."""
    sources = find_sources(options, folder)
    previous = read_schema(options.schema_uri) if options.schema_uri else None
    fingerprint = fingerprint_of(sources, options, previous and as_plan(previous))
    files = [file for source in sources for file in materialize(source, folder, options.encoding)]
    return recognize(files, options), fingerprint


def following_champion(options: ConvertOptions) -> ConvertOptions:
    """The options with the schema of the champion under `champion_root`, if there is one."""
    if options.schema_uri or not options.champion_root:
        return options
    uri = champion_schema_uri(open_store(options.champion_root))
    return dataclasses.replace(options, schema_uri=uri)


def brings_nothing_new(options: ConvertOptions) -> bool:
    """Whether a model of the same sources and options was judged under `champion_root` before."""
    if not options.champion_root:
        return False
    root = open_store(options.champion_root)
    with temporary_folder(options) as folder:
        sources = find_sources(options, folder)
    previous = read_schema(options.schema_uri) if options.schema_uri else None
    # The very first run had no schema to follow.
    schemas = (None, previous and as_plan(previous))
    return any(was_considered(root, fingerprint_of(sources, options, each)) for each in schemas)


def converted_before(store: Store, fingerprint: str, reuse_uri: str) -> Dataset | None:
    """The dataset of this fingerprint, committed here or by another run.

    Raises:
        AlreadyExistsError: another dataset is committed here.
    """
    manifest = read_manifest(store, MANIFEST_NAME)
    if manifest is None:
        earlier = find_converted(reuse_uri, fingerprint)
        if earlier is not None:
            log.info("already converted by an earlier run: %s", earlier.uri)
        return earlier
    if manifest.get("fingerprint") != fingerprint:
        raise AlreadyExistsError(
            f"{store.uri} holds a dataset of other input or options (fingerprint "
            f"{manifest.get('fingerprint')}, this one has {fingerprint}). Choose another output, "
            "or "
            "delete that one"
        )
    log.info("already converted: %s", store.uri)
    return open_dataset(store)


def _convert(
    inputs: Inputs, fingerprint: str, options: ConvertOptions, workers: Workers, store: Store
) -> Plan:
    """Convert by a schema that a sample shows.

    By one that all rows show, if the sample misleads.
    """
    plan = stored_plan(store, fingerprint)
    if plan is None:
        clear(store)
        plan = sampled_plan(inputs, fingerprint, options, workers)
        store.write(PLAN_NAME, json.dumps(plan.to_json()).encode())
    try:
        workers.convert(plan, range(len(plan.parts)), store.uri)
    except MismatchError as mismatch:
        log.info("a sample of the rows does not tell all (%s): all of them are read", mismatch)
        clear(store)
        plan = make_plan(inputs, fingerprint, options, workers, sampled=False)
        store.write(PLAN_NAME, json.dumps(plan.to_json()).encode())
        workers.convert(plan, range(len(plan.parts)), store.uri)
    return plan


def sampled_plan(
    inputs: Inputs, fingerprint: str, options: ConvertOptions, workers: Workers
) -> Plan:
    """A plan from a sample of the rows, or from all rows if the sample does not suffice."""
    try:
        return make_plan(inputs, fingerprint, options, workers, sampled=True)
    except UndecidedError:  # the rows of the sample have one class, say
        return make_plan(inputs, fingerprint, options, workers, sampled=False)


def make_plan(
    inputs: Inputs, fingerprint: str, options: ConvertOptions, workers: Workers, *, sampled: bool
) -> Plan:
    """Decide parts and schema, from a sample of the rows or from all.

    Raises:
        InputError: there is no row, or build_schema or check_columns_follow refuses the columns.
    """
    readers = open_readers(inputs, options)
    parts = plan_parts(readers, inputs.sizes, options.num_shards)
    evidence = merged(workers.gather(parts, sampled=sampled), optional=inputs.format == "jsonl")
    if not evidence:
        first = (
            _first_fault(readers) or f"{', '.join(options.sources)} has column names, but no row"
        )
        raise InputError(first)
    if options.schema_uri:
        previous = read_schema(options.schema_uri)
        check_columns_follow(previous, evidence, options)
        return Plan(fingerprint=fingerprint, schema=as_plan(previous), parts=parts, strict=True)
    try:
        schema = build_schema(evidence, options)
    except UndecidedError as error:
        first = "" if sampled else _first_fault(readers)
        raise UndecidedError(f"{error}. {first}" if first else str(error)) from error
    return Plan(fingerprint=fingerprint, schema=schema, parts=parts, strict=not sampled)


def _first_fault(readers: Sequence[Reader]) -> str:
    """The first row at the beginning of a source that could not be read; empty if all could."""
    for reader in readers:
        for start, stop in reader.split(1):
            for fault in (fault for rows in reader.sample(start, stop) for fault in rows.faults):
                return place_of(replace(fault, source=reader.name, row=fault.row + 1))
    return ""


def stored_plan(store: Store, fingerprint: str) -> Plan | None:
    """The plan of an attempt that did not come to its end."""
    try:
        plan = Plan.from_json(json.loads(store.read(PLAN_NAME)))
    except (ObjectNotFoundError, ValueError, KeyError):
        return None
    return plan if plan.fingerprint == fingerprint else None


def _commit(plan: Plan, inputs: Inputs, options: ConvertOptions, store: Store) -> Dataset:
    results = [load_result(store, plan, index) for index in range(len(plan.parts))]
    missing = [str(index) for index, result in enumerate(results) if result is None]
    if missing:
        raise RetryableError(
            f"{store.uri}: parts {', '.join(missing)} of {len(results)} are not converted"
        )
    dataset = commit_dataset(
        plan, options, open_readers(inputs, options), [r for r in results if r], store
    )
    store.delete_prefix(f"{WORK_FOLDER}/")
    return dataset


def clear(store: Store) -> None:
    """Delete what an unfinished conversion left; files of others stay."""
    for found in store.list():
        if _OWN_NAMES.fullmatch(found.name):
            store.delete(found.name)
    store.delete_prefix(f"{WORK_FOLDER}/")


@contextmanager
def _cleared_on_failure(store: Store) -> Iterator[None]:
    """Leave nothing after a failure that repeating will not mend."""
    try:
        yield
    except RetryableError:
        raise
    except AlreadyExistsError:
        raise
    except Exception:
        clear(store)
        raise
