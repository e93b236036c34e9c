"""A folder of images for each class."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.readers.base import Rows
from components.make_tfrecords.sources import LocalFile

IMAGE = "image"
LABEL = "label"
BATCH_BYTES = 16 << 20
BATCH_FILES = 256
SAMPLE_FILES = 64


class ImageFolderReader:
    """Local files, one row each; units are files.

    The class is the outermost folder below the source.
    """

    def __init__(self, name: str, files: Sequence[LocalFile]) -> None:
        self.name = name
        self._files = files
        for file in files:
            if "/" not in file.name:
                raise InputError(
                    f"the image {file.name} lies in no class folder. Expected <class>/<image> "
                    "below the "
                    "source: name the folder that holds the class folders"
                )

    def source_of(self, row: int) -> str:
        return self._files[row].name

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        edges = sorted(set(np.linspace(0, len(self._files), num_parts + 1).astype(int).tolist()))
        return list(zip(edges[:-1], edges[1:], strict=True))

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        spread = np.linspace(start, stop - 1, min(SAMPLE_FILES, stop - start)).astype(int)
        yield from _batches([self._files[index] for index in spread])

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        yield from _batches(self._files[start:stop])


def _batches(files: Sequence[LocalFile]) -> Iterator[Rows]:
    images: list[bytes] = []
    labels: list[str] = []
    for file in files:
        images.append(file.path.read_bytes())
        labels.append(file.name.partition("/")[0])
        if len(images) >= BATCH_FILES or sum(map(len, images)) >= BATCH_BYTES:
            yield _rows(images, labels)
            images, labels = [], []
    if images:
        yield _rows(images, labels)


def _rows(images: list[bytes], labels: list[str]) -> Rows:
    columns = {IMAGE: pa.array(images, pa.binary()), LABEL: pa.array(labels, pa.string())}
    return Rows(
        columns=columns, num_rows=len(images), numbers=np.arange(len(images)), images=(IMAGE,)
    )
