"""Rows to framed records, sorted by split: one task, two ways that write the same bytes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.contracts.dataset import Feature
from components.make_tfrecords.encode_plain import encode
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.split import split_of, thresholds


class Encoded(NamedTuple):
    """Records of a batch.

    Attributes:
        records: by split: framed records one after another.
        lengths: by split: bytes of every framed record.
        splits: index of the split of every row, uint8 [rows].
    """

    records: list[memoryview]
    lengths: list[npt.NDArray[np.int64]]
    splits: npt.NDArray[np.uint8]


class RowEncoder(Protocol):
    """Encodes batches of the columns it was made for."""

    def encode(
        self, columns: Sequence[pa.Array], group_crcs: npt.NDArray[np.uint32] | None
    ) -> Encoded:
        """Encode canonical arrays, one a feature; what is returned is valid until the next call.

        Args:
            columns: of one length.
            group_crcs: what decides the split of every row; None: the record's own CRC.
        """


class PlainEncoder:
    """Every row through plain Python."""

    def __init__(self, features: Sequence[Feature], options: ConvertOptions) -> None:
        self._features = features
        self._options = options
        self._bounds = thresholds(options.splits.values())

    def encode(
        self, columns: Sequence[pa.Array], group_crcs: npt.NDArray[np.uint32] | None
    ) -> Encoded:
        """See RowEncoder."""
        records, crcs = encode(self._features, columns, self._options.layout)
        hashed = crcs if group_crcs is None else group_crcs
        splits = split_of(hashed, self._bounds, self._options.seed).astype(np.uint8)
        chosen = [np.flatnonzero(splits == index) for index in range(len(self._options.splits))]
        lengths = np.array([len(record) for record in records], np.int64)
        return Encoded(
            [memoryview(b"".join([records[row] for row in rows])) for rows in chosen],
            [lengths[rows] for rows in chosen],
            splits,
        )


def make_encoder(features: Sequence[Feature], options: ConvertOptions) -> RowEncoder:
    """The encoder that the options ask for.

    The compiled one where it applies if they leave it open.

    Args:
        features: of all columns, in the schema's order.
        options: layout, splits and choice of the encoder.
    """
    if options.encoder == "plain" or not all(map(_is_compiled_kind, features)):
        return PlainEncoder(features, options)
    from components.make_tfrecords.encode_compiled import CompiledEncoder

    return CompiledEncoder(features, options)


def _is_compiled_kind(feature: Feature) -> bool:
    """Lists of strings are left to the plain encoder."""
    return not feature.shape or feature.kind in ("int64", "float", "image")
