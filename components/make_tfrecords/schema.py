"""The schema of a dataset.

From evidence, options and the label's values to features and classes.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from components.contracts.dataset import Feature, Schema, Task
from components.contracts.errors import InputError
from components.make_tfrecords.images import ImageEvidence
from components.make_tfrecords.infer import (
    INT_SENTINELS,
    MAX_CLASSES,
    STRING_SENTINELS,
    Evidence,
)
from components.make_tfrecords.options import ConvertOptions, unknown_column
from components.make_tfrecords.readers.base import UndecidedError
from components.make_tfrecords.treatment import is_text, kind_of, note_of, type_named

# An integer label with more distinct values is a quantity, not a class, unless the task says so.
MAX_INTEGER_CLASSES = 32

log = logging.getLogger(__name__)


def build_schema(evidence: Mapping[str, Evidence], options: ConvertOptions) -> Schema:
    """Decide every column's treatment.

    Raises:
        InputError: a named column does not exist, or a type has no treatment.
        UndecidedError: the label's values, or a column's, allow none.
    """
    check_columns(evidence, options)
    features = tuple(
        _feature(column, options)
        for name, column in evidence.items()
        if name != options.label and name not in options.drop
    )
    if not features:
        raise InputError(f"no column is left beside the label {options.label!r}: shorten drop")
    task, classes = _task_and_classes(evidence[options.label], options)
    label = _feature(evidence[options.label], options)
    kind = "float" if task == "regression" else "int64"
    note = "class index" if classes else label.note
    label = Feature(
        name=label.name,
        kind=kind,  # type: ignore[arg-type]
        source_type=label.source_type,
        missing_tokens=label.missing_tokens,
        note=note,
    )
    return Schema(features=features, label=label, task=task, classes=classes, group=options.group)


def check_columns(names: Iterable[str], options: ConvertOptions) -> None:
    """Check that every column the options name is there. Raises InputError."""
    known = list(names)
    wanted = {
        "label": [options.label],
        "group": [options.group] if options.group else [],
        "drop": options.drop,
        "kinds": options.kinds,
        "column_missing_tokens": options.column_missing_tokens,
        "image_column": [options.image_column] if options.image_column else [],
    }
    for option, columns in wanted.items():
        for column in columns:
            if column not in known:
                raise InputError(unknown_column(option, column, known))
    if options.label in options.drop:
        raise InputError(f"drop names the label {options.label!r}: it cannot be left out")


def reading_features(schema: Schema) -> dict[str, Feature]:
    """What to read from a source by column: features, label and group.

    The label is asked for as text if it names classes; so is the group, of whatever type it is.
    """
    wanted = {feature.name: feature for feature in schema.features}
    label = schema.label
    wanted[label.name] = replace(label, kind="string") if schema.classes else label
    if schema.group and schema.group not in wanted:
        wanted[schema.group] = Feature(name=schema.group, kind="string")
    return wanted


def _feature(column: Evidence, options: ConvertOptions) -> Feature:
    name = column.name
    if column.images is not None:
        return _image_feature(column, column.images, options)
    source_type = _source_type(column, options)
    kind = kind_of(source_type, name)
    return Feature(
        name=name,
        kind=kind,
        shape=column.shape,
        source_type=str(source_type),
        missing_value=_missing_value(kind, column),
        missing_tokens=_tokens(column, source_type, options),
        note="; ".join(filter(None, (note_of(source_type), column.note))),
    )


def _image_feature(column: Evidence, images: ImageEvidence, options: ConvertOptions) -> Feature:
    depth = "uint16" if options.image_depth == 16 else "uint8"
    return Feature(
        name=column.name,
        kind="image",
        shape=images.shape(column.name, options),
        source_type=f"image of {depth}",
        note="PNG or JPEG; kept as found where it has this shape and depth, else stored as PNG",
    )


def _source_type(column: Evidence, options: ConvertOptions) -> pa.DataType:
    if column.name in options.kinds:
        return type_named(options.kinds[column.name], column.name)
    return column.inferred


def _tokens(column: Evidence, source_type: pa.DataType, options: ConvertOptions) -> tuple[str, ...]:
    """Only text has tokens; typed sources have a null of their own."""
    if column.type is not None:
        return ()
    return options.tokens_of(column.name, is_text=is_text(source_type))


def _missing_value(kind: str, column: Evidence) -> float | int | str | None:
    if column.shape == (-1,):
        return None
    if kind == "float":
        return math.nan
    candidates = INT_SENTINELS if kind == "int64" else STRING_SENTINELS
    for candidate in candidates:
        if candidate not in column.sentinels:
            return candidate
    raise UndecidedError(
        f"column {column.name!r}: its rows have all of the values {candidates[:3]}... that could "
        "stand for a missing one"
    )


def _task_and_classes(column: Evidence, options: ConvertOptions) -> tuple[Task, tuple[str, ...]]:
    if options.classes:
        task: Task = "binary" if len(options.classes) == 2 else "multiclass"
        _check_task(options.task, task, options.classes)
        return (task if options.task == "auto" else options.task), options.classes
    source_type = _source_type(column, options)
    tokens = _tokens(column, source_type, options)
    values = [value for value in column.labels if value not in tokens]
    if not values:
        raise UndecidedError(f"label {column.name!r} has no value in any row")
    if options.task == "regression" or (
        options.task == "auto" and _is_quantity(source_type, values)
    ):
        return "regression", ()
    if len(values) > MAX_CLASSES:
        raise UndecidedError(
            f"label {column.name!r} has more than {MAX_CLASSES} distinct values: is the task a "
            "regression?"
        )
    if len(values) == 1:
        raise UndecidedError(
            f"label {column.name!r} is {values[0]!r} in every row: there is nothing to learn"
        )
    classes = _ordered(values)
    task = "binary" if len(classes) == 2 else "multiclass"
    _check_task(options.task, task, classes)
    return (task if options.task == "auto" else options.task), classes


def _check_task(asked: str, found: str, classes: tuple[str, ...]) -> None:
    if asked in ("binary", "regression") and asked != found:
        raise UndecidedError(
            f"task={asked}, but the label has {len(classes)} classes: {', '.join(classes[:10])}"
        )


def _is_quantity(source_type: pa.DataType, values: list[str]) -> bool:
    if pa.types.is_boolean(source_type) or is_text(source_type):
        return False
    return not pa.types.is_integer(source_type) or len(values) > MAX_INTEGER_CLASSES


def _ordered(values: list[str]) -> tuple[str, ...]:
    """Numbers by value, anything else by its bytes."""
    try:
        return tuple(sorted(values, key=float))
    except ValueError:
        return tuple(sorted(values, key=str.encode))
