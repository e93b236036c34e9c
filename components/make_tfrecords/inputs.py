"""The sources as readers: what they hold decides the format, unless the options do."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from components.contracts.errors import InputError
from components.make_tfrecords.images import is_image
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import Reader
from components.make_tfrecords.readers.csv import CsvReader
from components.make_tfrecords.readers.foreign import check_is_text
from components.make_tfrecords.readers.image_columns import ImageColumnReader
from components.make_tfrecords.readers.image_folders import ImageFolderReader
from components.make_tfrecords.readers.json_lines import JsonLinesReader
from components.make_tfrecords.readers.parquet import ParquetReader
from components.make_tfrecords.sources import LocalFile

Format = Literal["csv", "jsonl", "parquet", "images"]

_HEAD_BYTES = 4096
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Local, plain files of one format."""

    format: Format
    files: tuple[LocalFile, ...]

    @property
    def sizes(self) -> list[int]:
        """Of each reader's source, in a measure that is comparable among them."""
        if self.format == "images":
            return [sum(file.path.stat().st_size for file in self.files)]
        return [file.path.stat().st_size for file in self.files]


def recognize(files: Sequence[LocalFile], options: ConvertOptions) -> Inputs:
    """Decide the format by the files' contents. Raises InputError where they are of several."""
    if not files:
        raise InputError(f"there is no file in the archive {', '.join(options.sources)}")
    if options.source_format != "auto":
        chosen = options.source_format
        kept = [f for f in files if _is_picture(f)] if chosen == "images" else files
        return _inputs(chosen, kept, files)
    formats = {file: _format_of(file) for file in files}
    if "images" in formats.values() and not options.image_column:
        return _inputs("images", [f for f in files if formats[f] == "images"], files)
    tables = {file: found for file, found in formats.items() if found != "images"}
    if len(set(tables.values())) > 1:
        shown = ", ".join(f"{file.name} is {found}" for file, found in list(tables.items())[:5])
        raise InputError(
            f"the sources are of several formats: {shown}. Name the files of one of them, or set "
            "source_format"
        )
    return _inputs(next(iter(tables.values())), list(tables), files)


def open_readers(inputs: Inputs, options: ConvertOptions) -> list[Reader]:
    """One reader a table, or one for all images. Raises InputError for a broken file."""
    if inputs.format == "images":
        return [ImageFolderReader("images", inputs.files)]
    readers = [_open_table(inputs.format, file, options) for file in inputs.files]
    if not options.image_column:
        return readers
    return [
        ImageColumnReader(reader, options.image_column, file.path.parent)
        for reader, file in zip(readers, inputs.files, strict=True)
    ]


def _open_table(found: Format, file: LocalFile, options: ConvertOptions) -> Reader:
    if found == "parquet":
        return ParquetReader(file.name, file.path)
    check_is_text(file.name, _head(file))
    if found == "jsonl":
        return JsonLinesReader(file.name, file.path, options)
    return CsvReader(file.name, file.path, options)


def _inputs(found: Format, kept: Sequence[LocalFile], files: Sequence[LocalFile]) -> Inputs:
    if not kept:
        raise InputError(
            f"no {found} among {len(files)} files, the first of which is {files[0].name}"
        )
    if len(kept) < len(files):
        others = [file.name for file in files if file not in set(kept)]
        log.info("%d files are no %s and are left out: %s", len(others), found, others[:5])
    return Inputs(format=found, files=tuple(kept))


def _is_picture(file: LocalFile) -> bool:
    return file.name.lower().endswith(_IMAGE_SUFFIXES) or is_image(_head(file))


def _format_of(file: LocalFile) -> Format:
    head = _head(file)
    if head.startswith(b"PAR1"):
        return "parquet"
    if _is_picture(file):
        return "images"
    text = b"".join(head.removeprefix(b"\xef\xbb\xbf")[:_HEAD_BYTES].split())
    return "jsonl" if text.startswith((b"{", b"[{")) else "csv"


def _head(file: LocalFile) -> bytes:
    with file.path.open("rb") as opened:
        return opened.read(_HEAD_BYTES)
