"""Whatever a table holds, `tf.io.parse_example` gives back: any type, size, block, encoding."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from components.contracts.dataset import Dataset, Feature
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers import blocks, json_lines, parquet
from tests.make_tfrecords import tables
from tests.make_tfrecords.reading import columns, records
from tests.make_tfrecords.tables import Column, Table

# Shrinking converts thousands of tables, which takes longer than reading the one that failed.
BASE = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
QUICK = settings(BASE, max_examples=12, derandomize=True)
WIDE = settings(BASE, max_examples=150)

# Bytes of a text block, and rows of a batch of Parquet: records and lists cross many of them.
BLOCKS = st.sampled_from([(48, 1), (300, 7), (4096, 64), (4 << 20, 8192)])


def check(table: Table, write: Callable[[Table, Path], dict[str, Any]], sizes: Any) -> None:
    """Convert by both encoders to both layouts, and compare with the drawn values."""
    with tempfile.TemporaryDirectory() as folder, _small_blocks(*sizes):
        source = Path(folder, "source")
        options = write(table, source)
        for layout in ("columns", "packed"):
            compiled, plain = (
                _converted(source, Path(folder, layout, encoder), layout, encoder, options)
                for encoder in ("compiled", "plain")
            )
            assert compiled.splits == plain.splits
            assert sum(compiled.splits.values()) == table.num_rows
            for split in compiled.splits:
                assert records(compiled, split) == records(plain, split)
            assert repr(compiled.schema) == repr(plain.schema)
            _assert_holds(compiled, table)


def _converted(
    source: Path, output: Path, layout: Any, encoder: Any, options: dict[str, Any]
) -> Dataset:
    return make_tfrecords(
        ConvertOptions(
            source=str(source),
            label=tables.LABEL,
            task="regression",
            splits={"all": 1.0},
            layout=layout,
            encoder=encoder,
            processes=1,
            num_shards=3,
            **options,
        ),
        str(output),
    )


@contextlib.contextmanager
def _small_blocks(text_bytes: int, batch_rows: int) -> Iterator[None]:
    with (
        mock.patch.object(blocks, "BLOCK_BYTES", text_bytes),
        mock.patch.object(blocks, "SAMPLE_BYTES", text_bytes),
        mock.patch.object(json_lines, "BLOCK_BYTES", text_bytes),
        mock.patch.object(parquet, "BATCH_ROWS", batch_rows),
        mock.patch.object(parquet, "SAMPLE_ROWS", batch_rows),
    ):
        yield


def _assert_holds(dataset: Dataset, table: Table) -> None:
    found = columns(dataset, "all")
    assert found.pop(tables.LABEL).tolist() == list(range(table.num_rows))
    assert set(found) == {column.name for column in table.columns}
    for column in table.columns:
        feature = dataset.schema[column.name]
        untyped = column.is_untyped and feature.source_type in ("string", "list<item: null>")
        assert feature.kind == ("string" if untyped else column.kind)
        assert feature.shape == (() if feature.source_type == "string" else column.shape)
        expected = [_expected(column, feature, value) for value in column.values]
        for row, (value, wanted) in enumerate(zip(found[column.name], expected, strict=True)):
            assert _same(value, wanted), (column.name, row, value, wanted)
        missing = sum(value is None for value in column.values)
        assert (feature.nullable, feature.statistics.missing) == (
            missing > 0,
            missing,
        ) or column.kind == "float"


def _expected(column: Column, feature: Feature, value: Any) -> Any:
    if value is not None and not _is_nan(value):
        return column.stored(value)
    if column.shape == (-1,):
        return ()
    stand_in: Any = feature.missing_value
    if isinstance(stand_in, str):
        stand_in = stand_in.encode()
    if column.kind != "float":
        known = [v for v in column.values if v is not None]
        stored = map(column.stored, known)
        flat = itertools.chain.from_iterable(stored) if column.shape else stored
        assert stand_in not in set(flat)
    return (stand_in,) * column.shape[0] if column.shape else stand_in


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _same(value: Any, wanted: Any) -> bool:
    """Equal to the last bit; NaN is NaN."""
    if isinstance(wanted, tuple):
        items = list(value)
        return len(items) == len(wanted) and all(map(_same, items, wanted))
    if isinstance(wanted, np.floating | float):
        if wanted != wanted:
            return bool(np.isnan(value))
        return np.float32(value).tobytes() == np.float32(wanted).tobytes()
    return bool(value == wanted)


CSV_TABLES = tables.tables(tables.CSV_TYPES, tables.CSV_STYLES)
JSON_TABLES = tables.tables(tables.JSON_TYPES, tables.JSON_STYLES)
PARQUET_TABLES = tables.tables(tables.PARQUET_TYPES, tables.PARQUET_STYLES)


@QUICK
@given(CSV_TABLES, BLOCKS)
def test_csv_comes_back_as_it_was(table, sizes):
    check(table, tables.write_csv, sizes)


@QUICK
@given(JSON_TABLES, BLOCKS)
def test_json_lines_come_back_as_they_were(table, sizes):
    check(table, tables.write_json_lines, sizes)


@QUICK
@given(PARQUET_TABLES, BLOCKS)
def test_parquet_comes_back_as_it_was(table, sizes):
    check(table, tables.write_parquet, sizes)


@pytest.mark.faults
@WIDE
@given(CSV_TABLES, BLOCKS)
def test_any_csv_comes_back_as_it_was(table, sizes):
    check(table, tables.write_csv, sizes)


@pytest.mark.faults
@WIDE
@given(JSON_TABLES, BLOCKS)
def test_any_json_lines_come_back_as_they_were(table, sizes):
    check(table, tables.write_json_lines, sizes)


@pytest.mark.faults
@WIDE
@given(PARQUET_TABLES, BLOCKS)
def test_any_parquet_comes_back_as_it_was(table, sizes):
    check(table, tables.write_parquet, sizes)
