"""Which files the user means, and a local.

Plain copy where they lie elsewhere or are compressed.
"""

import bz2
import fnmatch
import glob
import gzip
import logging
import lzma
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from components.contracts.errors import InputError
from components.make_tfrecords.options import ConvertOptions
from components.storage.base import crc32c_of_file
from components.storage.open import open_store

DOWNLOAD_THREADS = 16
_GLOB_CHARACTERS = "*?["
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A plain file on this machine.

    `name` is what messages call it and is the same on every machine.
    """

    name: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file as it lies where the user named it.

    Attributes:
        name: relative to what the user named.
        path: on this machine.
        size, crc32c: of its bytes.
    """

    name: str
    path: Path
    size: int
    crc32c: int


def find_sources(options: ConvertOptions, folder: Path) -> list[Source]:
    """List the files that the options name, in the order given and then by name.

    Objects of a store are downloaded into `folder`.

    Raises:
        InputError: a source matches nothing.
    """
    found = []
    for number, text in enumerate(options.sources):
        remote = "://" in text and not text.startswith("file://")
        files = (
            _download(text, folder / f"source-{number}")
            if remote
            else _local_files(text.removeprefix("file://"))
        )
        if not files:
            raise InputError(f"source {text} does not exist, or holds no file")
        for file in files:
            size, crc = file.path.stat().st_size, crc32c_of_file(file.path)
            found.append(Source(name=file.name, path=file.path, size=size, crc32c=crc))
    return found


def materialize(source: Source, folder: Path, encoding: str) -> list[LocalFile]:
    """The plain UTF-8 files in a source.

    Compressed or otherwise encoded ones are rewritten into `folder`.
    """
    return [
        LocalFile(name=name, path=_as_utf8(name, path, folder, encoding))
        for name, path in _unpacked(source, folder)
    ]


def _local_files(text: str) -> list[LocalFile]:
    path = Path(text)
    if path.is_file():
        return [LocalFile(name=path.name, path=path)]
    if path.is_dir():
        base, found = path, path.rglob("*")
    elif any(character in text for character in _GLOB_CHARACTERS):
        base = Path(_fixed_prefix(text))
        found = (Path(name) for name in glob.glob(text, recursive=True))
    else:
        return []
    files = [
        LocalFile(name=file.relative_to(base).as_posix(), path=file)
        for file in found
        if file.is_file() and not _is_hidden(file.relative_to(base).as_posix())
    ]
    return sorted(files, key=lambda file: file.name.encode())


def _download(uri: str, folder: Path) -> list[LocalFile]:
    """Fetch the objects that a uri, a prefix or a glob in a store names."""
    root, name = _fixed_prefix(uri), ""
    pattern = uri[len(root) + 1 :]
    if not pattern:
        root, _, name = uri.rstrip("/").rpartition("/")
    store = open_store(root)
    if name and store.stat(name) is None:  # a folder
        store, name = open_store(uri), ""
    names = [name] if name else [found.name for found in store.list()]
    if pattern:
        names = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    names = [name for name in names if not _is_hidden(name) and not name.endswith("/")]
    files = [LocalFile(name=name, path=folder / name) for name in names]
    with ThreadPoolExecutor(DOWNLOAD_THREADS) as pool:
        list(pool.map(lambda file: store.download(file.name, file.path), files))
    return files


def _fixed_prefix(text: str) -> str:
    """The folders before the first one with a glob character; `text` itself if there is none."""
    parts = text.split("/")
    for index, part in enumerate(parts):
        if any(character in part for character in _GLOB_CHARACTERS):
            return "/".join(parts[:index]) or ("/" if text.startswith("/") else ".")
    return text


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _unpacked(source: Source, folder: Path) -> Iterator[tuple[str, Path]]:
    with source.path.open("rb") as file:
        magic = file.read(6)
    target = folder / f"{source.crc32c:08x}-{source.size}"
    if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _unzip(source, target)
    elif magic.startswith(b"\x1f\x8b"):
        yield source.name, _copy(gzip.open(source.path), source.name, target)
    elif magic.startswith(b"BZh"):
        yield source.name, _copy(bz2.open(source.path), source.name, target)
    elif magic == b"\xfd7zXZ\x00":
        yield source.name, _copy(lzma.open(source.path), source.name, target)
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        stream = pa.input_stream(str(source.path), compression="zstd")
        yield source.name, _copy(stream, source.name, target)
    else:
        yield source.name, source.path


def _unzip(source: Source, target: Path) -> Iterator[tuple[str, Path]]:
    try:
        archive = zipfile.ZipFile(source.path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{source.name} is a damaged zip archive: {error}") from error
    with archive:
        if "[Content_Types].xml" in archive.namelist():
            raise InputError(
                f"{source.name} is an Excel workbook or another office document. Save the sheet as "
                "CSV"
            )
        for index, member in enumerate(archive.infolist()):
            if member.is_dir() or _is_hidden(member.filename.removeprefix("__MACOSX/._")):
                continue
            name = f"{source.name}/{member.filename}"
            try:
                stream = archive.open(member)
            except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:  # encrypted
                raise InputError(f"{name} cannot be read: {error}") from error
            yield name, _copy(stream, name, Path(f"{target}-{index}"))


def _copy(stream: Any, name: str, target: Path) -> Path:
    with stream, target.open("wb") as file:
        try:
            while piece := _read(stream, name):
                file.write(piece)
        except OSError as error:
            error.filename = error.filename or str(target)
            raise
    return target


def _read(stream: IO[bytes], name: str) -> bytes:
    try:
        return stream.read(1 << 20)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise InputError(f"{name} is damaged: {error}. Fetch or write it again") from error


def _as_utf8(name: str, path: Path, folder: Path, encoding: str) -> Path:
    """`path`, or a copy in UTF-8 if it is in another encoding."""
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(_UTF16_MARKS) and not encoding:
        encoding = "utf-16"
    if not encoding or encoding.lower().replace("-", "") in ("utf8", "utf8sig", "ascii"):
        return path
    target = Path(tempfile.mkstemp(dir=folder, prefix="utf8-")[1])
    try:
        with (
            path.open(encoding=encoding, newline="") as source,
            target.open("w", encoding="utf-8", newline="") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
    except (UnicodeDecodeError, UnicodeError) as error:
        raise InputError(
            f"{name} is not text in {encoding}: {error}. Set another encoding"
        ) from error
    except LookupError as error:
        raise InputError(f"encoding={encoding!r} is not known to Python") from error
    return target
