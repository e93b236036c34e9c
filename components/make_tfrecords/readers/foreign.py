"""Files that are no text and no format that is read here: what they are, and what to do."""

from components.contracts.errors import InputError

_FORMATS = {
    b"ARROW1": "an Arrow file",
    b"FEA1": "a Feather file",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format 3\x00": "an SQLite database",
    b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"\x04\x22\x4d\x18": "compressed by lz4",
}


def check_is_text(name: str, head: bytes) -> None:
    """Check that a file that begins with `head` can be text in UTF-8. Raises InputError."""
    for magic, what in _FORMATS.items():
        if head.startswith(magic):
            raise InputError(
                f"{name} is {what}, which is not read here. Write it as CSV, JSON lines or Parquet"
            )
    if b"\0" not in head:
        return
    even, odd = head[::2].count(b"\0"), head[1::2].count(b"\0")
    if max(even, odd) > len(head) / 4 and min(even, odd) < len(head) / 50:
        encoding = "utf-16-le" if odd > even else "utf-16-be"
        raise InputError(
            f"{name} looks like text in UTF-16 without a byte order mark: set encoding={encoding}"
        )
    raise InputError(
        f"{name} is neither text nor a format that is read here (it has zero bytes). Expected CSV, "
        "JSON lines, Parquet or images, as they are or compressed by gzip, zstd, bzip2, xz or zip"
    )
