"""Run by the interpreter of an environment with tfx-bsl: CSV to TFRecord by its C++ encoder.

    python _tfx_bsl.py SOURCE TARGET TYPES

Prints the CPU seconds of reading, encoding and writing, start-up left out.
"""

import json
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import tensorflow as tf
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

BLOCK_BYTES = 4 << 20


def main(source: str, target: str, types: dict[str, str]) -> None:
    began = time.process_time()
    encoder = RecordBatchToExamplesEncoder(None)
    reader = pyarrow.csv.open_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: _type_named(alias) for name, alias in types.items()},
            null_values=["", "NA"],
        ),
    )
    with tf.io.TFRecordWriter(target) as writer:
        for batch in reader:
            for record in encoder.encode(_as_lists(batch)):
                writer.write(record)
    print(time.process_time() - began)


def _type_named(name: str) -> pa.DataType:
    unit, separator, zone = name.removesuffix("]").removeprefix("timestamp[").partition(", tz=")
    return pa.timestamp(unit, zone) if separator else pa.type_for_alias(name)


def _as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One list a row, as tfx-bsl wants its columns; a missing value is a missing list."""
    lists = []
    for array in batch.columns:
        if pa.types.is_floating(array.type):
            array = array.cast(pa.float32())
        elif pa.types.is_string(array.type):
            array = array.cast(pa.binary())
        elif not pa.types.is_integer(array.type):
            array = array.cast(pa.int64())
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        ends = np.cumsum(valid, dtype=np.int32)
        starts = pa.array(np.append(0, ends).astype(np.int32), mask=np.append(~valid, False))
        lists.append(pa.ListArray.from_arrays(starts, array.drop_null()))
    return pa.RecordBatch.from_arrays(lists, batch.schema.names)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
