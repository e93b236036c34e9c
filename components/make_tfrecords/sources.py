"""Which files the user means, what they are, and a local, uncompressed copy where they are not."""

import glob
import gzip
import logging
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

from components.contracts.errors import InputError
from components.make_tfrecords.options import ConvertOptions
from components.storage.base import crc32c_of_file
from components.storage.open import open_store

log = logging.getLogger(__name__)

_GLOB_CHARACTERS = "*?["


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file.

    Attributes:
        name: relative to the source the user named; the same wherever the data lies.
        uri: where it lies.
        size, crc32c: of the file as it lies there.
    """

    name: str
    uri: str
    size: int
    crc32c: int


def find_sources(options: ConvertOptions) -> list[Source]:
    """List the files that the options name, each with size and CRC32C, in the order given and then by name.

    Raises:
        InputError: a source matches nothing, or a file is empty.
    """
    found = []
    for text in options.sources:
        paths = _matches(text)
        if not paths:
            raise InputError(f"source {text} does not exist, or matches no file")
        base = Path(text) if Path(text).is_dir() else paths[0].parent
        for path in paths:
            name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
            size = path.stat().st_size
            found.append(Source(name=name, uri=str(path), size=size, crc32c=crc32c_of_file(path)))
    return found


def _matches(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        inside = [p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path))]
        return sorted(inside, key=lambda p: p.relative_to(path).as_posix().encode())
    if path.is_file():
        return [path]
    if any(character in text for character in _GLOB_CHARACTERS):
        return sorted(p for p in map(Path, glob.glob(text, recursive=True)) if p.is_file())
    return []


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def materialize(source: Source, folder: Path) -> list[tuple[str, Path]]:
    """Name and local path of the plain files in a source; compressed ones are unpacked into `folder`."""
    path = Path(source.uri)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(b"PK\x03\x04"):
        return list(_unzip(source, path, folder))
    if magic.startswith(b"\x1f\x8b"):
        return [(source.name, _unpack(gzip.open(path), source, folder))]
    if magic == b"\x28\xb5\x2f\xfd":
        return [
            (source.name, _unpack(pa.input_stream(str(path), compression="zstd"), source, folder))
        ]
    return [(source.name, path)]


def _unzip(source: Source, path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    with zipfile.ZipFile(path) as archive:
        for index, member in enumerate(archive.infolist()):
            if not member.is_dir() and not member.filename.startswith("__MACOSX/"):
                inner = Source(name=f"{source.name}/{member.filename}", uri="", size=0, crc32c=0)
                target = folder / f"{source.crc32c:08x}-{index}"
                yield inner.name, _unpack(archive.open(member), inner, folder, target)


def _unpack(stream: IO[bytes], source: Source, folder: Path, target: Path | None = None) -> Path:
    target = target or folder / f"{source.crc32c:08x}"
    with stream, target.open("wb") as file:
        try:
            shutil.copyfileobj(stream, file, 1 << 20)
        except OSError as error:
            if error.errno is None:  # the stream's own complaint about its bytes
                raise InputError(f"{source.name} is damaged: {error}") from error
            error.filename = error.filename or str(target)
            raise
        except (EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{source.name} is damaged: {error}") from error
    return target


def names_of(sources: Sequence[Source]) -> list[str]:
    """Names for messages."""
    return [source.name for source in sources]


__all__ = ["Source", "find_sources", "materialize", "names_of", "open_store"]
