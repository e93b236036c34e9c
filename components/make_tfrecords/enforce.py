"""A schema of an earlier run, which this run's data must follow.

Recurring runs fail before training, not after.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from components.contracts.dataset import SCHEMA_NAME, Feature, Schema, Statistics
from components.contracts.errors import InputError
from components.make_tfrecords.infer import INT_SENTINELS, STRING_SENTINELS, TEXT_TYPES, Evidence
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.treatment import kind_of, type_named
from components.storage.errors import ObjectNotFoundError
from components.storage.open import open_store


def read_schema(uri: str) -> Schema:
    """Read the schema of a dataset, or a schema.json by itself. Raises InputError."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    if not name.endswith(".json"):
        folder, name = uri, SCHEMA_NAME
    try:
        return Schema.from_json(json.loads(open_store(folder or ".").read(name)))
    except ObjectNotFoundError as error:
        raise InputError(f"schema_uri {uri}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"schema_uri {uri} holds no schema of a dataset: {error}") from error


def as_plan(previous: Schema) -> Schema:
    """The schema to convert by: what the earlier rows looked like does not matter for these."""

    def renewed(feature: Feature) -> Feature:
        missing = feature.missing_value
        if missing is None and feature.shape != (-1,) and feature.kind != "image":
            missing = {"float": math.nan, "int64": INT_SENTINELS[0]}.get(
                feature.kind, STRING_SENTINELS[1]
            )
        return replace(feature, statistics=Statistics(), nullable=False, missing_value=missing)

    return replace(
        previous,
        features=tuple(map(renewed, previous.features)),
        label=replace(previous.label, statistics=Statistics()),
    )


def check_columns_follow(
    previous: Schema, evidence: Mapping[str, Evidence], options: ConvertOptions
) -> None:
    """Compare columns and types with the schema. Raises InputError with all differences."""
    expected = {feature.name: feature for feature in (*previous.features, previous.label)}
    allowed = {*expected, previous.group, *options.drop}
    differences = [
        f"+ {name}: {column.inferred}, not in the schema"
        for name, column in evidence.items()
        if name not in allowed
    ]
    for name, feature in expected.items():
        if name not in evidence:
            differences.append(f"- {name}: {feature.source_type}, not in the source")
        elif name != previous.label.name or not previous.classes:
            difference = _difference(feature, evidence[name])
            if difference:
                differences.append(f"~ {name}: {feature.source_type} in the schema, {difference}")
    if options.label != previous.label.name:
        differences.append(
            f"~ the label is {previous.label.name} in the schema, {options.label} now"
        )
    if options.group != previous.group:
        differences.append(
            f"~ the group is {previous.group!r} in the schema, {options.group!r} now"
        )
    if differences:
        raise InputError(
            f"the source does not follow the schema {options.schema_uri} "
            f"({len(differences)} differences). Mend the source, drop columns, or convert without "
            "schema_uri to begin a new schema:\n" + "\n".join(f"  {text}" for text in differences)
        )


def check_categories_follow(previous: Schema, current: Schema, options: ConvertOptions) -> None:
    """Compare strings with the vocabularies of the schema.

    Raises InputError with all differences.
    """
    differences = []
    for feature in current.features:
        known = previous[feature.name].statistics
        if (
            feature.kind != "string"
            or known.num_distinct > len(known.vocabulary)
            or not known.count
        ):
            continue
        words = set(previous[feature.name].vocabulary)
        unseen = [
            (word, count) for word, count in feature.statistics.vocabulary if word not in words
        ]
        share = sum(count for _, count in unseen) / max(feature.statistics.count, 1)
        if share > options.max_unseen_share:
            shown = ", ".join(f"{word!r} ({count})" for word, count in unseen[:5])
            differences.append(f"{feature.name}: {share:.1%} of the values, as {shown}")
    if differences:
        raise InputError(
            f"columns hold values that the schema {options.schema_uri} has not seen, more than "
            f"max_unseen_share={options.max_unseen_share:g} allows. Mend the source, raise the "
            "limit, or "
            "convert without schema_uri and train anew:\n"
            + "\n".join(f"  {text}" for text in differences)
        )


def _difference(feature: Feature, column: Evidence) -> str:
    """How the values differ from the feature, empty where they do not."""
    if feature.kind == "image":
        return "" if column.images else f"{column.inferred} now"
    if not column.has_value:
        return ""
    if column.type is None:
        return _text_difference(feature, column)
    found = column.inferred
    kind = kind_of(found, column.name)
    is_widened = feature.kind == "float" and kind == "int64" and pa.types.is_integer(found)
    if kind != feature.kind and not is_widened:
        return f"{found} now"
    if pa.types.is_temporal(found) and str(found) != feature.source_type:
        return f"{found} now, another unit or zone"
    if feature.shape and feature.shape != (-1,) and column.shape != feature.shape:
        return f"lists of {sorted(column.list_lengths)} elements now, not {feature.shape[0]}"
    if bool(feature.shape) != bool(column.shape):
        return f"{found} now"
    return ""


def _text_difference(feature: Feature, column: Evidence) -> str:
    if feature.kind in ("string", "bytes"):
        return ""
    target = type_named(feature.source_type, feature.name)
    # Of a type that is never inferred from text, but was asked for, the rows decide.
    is_possible = target not in TEXT_TYPES or target in column.candidates
    return "" if is_possible else f"{column.inferred} now"
