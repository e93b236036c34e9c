"""Pieces of a text file that hold whole records."""

from collections.abc import Callable, Iterator
from pathlib import Path

from components.contracts.errors import InputError

BLOCK_BYTES = 4 << 20
SAMPLE_BYTES = 64 << 10
# A longer record is taken for a missing line end or quote, so that memory stays bounded.
MAX_RECORD_BYTES = 256 << 20


def blocks(
    path: Path, start: int, stop: int, size: int, record_end: Callable[[bytes], int]
) -> Iterator[bytes]:
    """Whole records from `start` to `stop`, in pieces of about `size` bytes.

    Args:
        path: a file.
        start: where a record begins.
        stop: where one ends.
        size: of a piece.
        record_end: tells past which byte the last whole record of a piece ends, 0 if none does.

    Raises:
        InputError: the file became shorter, or a record is longer than `MAX_RECORD_BYTES`.
    """
    with path.open("rb") as file:
        file.seek(start)
        rest = b""
        while start < stop:
            piece = file.read(min(size, stop - start))
            if not piece:
                raise InputError(f"{path} became shorter while it was read: start again")
            start += len(piece)
            data = rest + piece if rest else piece
            end = len(data) if start >= stop else record_end(data)
            rest = data[end:]
            if len(rest) > MAX_RECORD_BYTES:
                raise InputError(
                    f"{path} has a record longer than {MAX_RECORD_BYTES >> 20} MiB near byte "
                    f"{start}: "
                    "is a quote not closed, or is this another format?"
                )
            if end:
                yield data[:end]


def line_end(data: bytes) -> int:
    """Position past the last line feed, 0 if there is none."""
    return data.rfind(b"\n") + 1


def line_end_after(path: Path, target: int, size: int) -> int:
    """Position past the first line feed at or after `target`.

    `size`, the file's, if there is none.
    """
    with path.open("rb") as file:
        file.seek(target)
        while piece := file.read(BLOCK_BYTES):
            found = piece.find(b"\n")
            if found >= 0:
                return target + found + 1
            target += len(piece)
    return size
