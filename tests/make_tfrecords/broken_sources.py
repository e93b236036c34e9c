"""Broken sources of every kind: how to make each one, and what its message must say."""

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = "a,label\n" + "".join(f"{number},{number % 2}\n" for number in range(200))
OBJECTS = "".join(json.dumps({"a": n, "label": n % 2}) + "\n" for n in range(200))
# Bytes that no text encoding and no format begins with, the same on every run.
GARBAGE = bytes((number * 167 + 89) % 256 for number in range(1, 4000))


@dataclass(frozen=True)
class Broken:
    """A broken source: `make` writes it into a folder and returns what the user names."""

    make: Callable[[Path], Path]
    says: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def holding(name: str, data: bytes | str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return make


def folder_of(**files: bytes | str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        root = folder / "data"
        root.mkdir()
        for name, data in files.items():
            path = root / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return root

    return make


def zipped(*members: tuple[str, bytes | str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return data.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def changed(data: bytes, position: int, by: int = 0xFF) -> bytes:
    """The same bytes but one."""
    position %= len(data)
    return data[:position] + bytes([data[position] ^ by]) + data[position + 1 :]


def parquet(table: pa.Table | None = None, **options: Any) -> bytes:
    if table is None:
        numbers = list(range(2000))
        table = pa.table(
            {"a": [f"text {n * n}" for n in numbers], "label": [n % 2 for n in numbers]}
        )
    data = io.BytesIO()
    pq.write_table(table, data, **options)
    return data.getvalue()


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 8), shade: int = 0) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, (shade, 90, 9)).save(data, kind)
    return data.getvalue()


def dangling(folder: Path) -> Path:
    (folder / "data.csv").symlink_to(folder / "gone.csv")
    return folder / "data.csv"


def unreadable(folder: Path) -> Path:
    path = holding("data.csv", ROWS)(folder)
    path.chmod(0)
    return path


def encrypted_zip() -> bytes:
    """A stored archive whose entry says that it is encrypted."""
    data = bytearray(zipped(("a.csv", ROWS)))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


TEXTS = {
    "csv-empty": Broken(holding("t.csv", ""), ("t.csv", "empty")),
    "csv-blank": Broken(holding("t.csv", "\n\n  \n"), ("t.csv", "empty")),
    "csv-header-only": Broken(holding("t.csv", "a,label\n"), ("t.csv", "no row")),
    "csv-garbage": Broken(holding("t.csv", GARBAGE), ("t.csv", "neither text nor")),
    "csv-nul-bytes": Broken(
        holding("t.csv", ROWS + "7,1\n" * 3819 + "\0\0\0,1\n"),
        ("t.csv", "row 4020", "a="),
        {"kinds": {"a": "int64"}},
    ),
    "csv-utf16-without-mark": Broken(
        holding("t.csv", ROWS.encode("utf-16-le")), ("t.csv", "utf-16-le", "encoding")
    ),
    "csv-latin1-header": Broken(
        holding("t.csv", "größe,label\n1,0\n2,1\n".encode("latin-1")), ("t.csv", "encoding=latin-1")
    ),
    "csv-latin1-value": Broken(
        holding("t.csv", ROWS.encode() + "Köln,1\n".encode("latin-1")),
        ("t.csv", "row 201", "a='K\\\\xf6ln'", "UTF-8", "encoding"),
    ),
    "csv-truncated-utf16": Broken(
        holding("t.csv", ROWS.encode("utf-16")[:-1]), ("t.csv", "utf-16", "truncated")
    ),
    "csv-wrong-encoding-option": Broken(
        holding("t.csv", "größe,label\n1,0\n2,1\n".encode("latin-1")),
        ("t.csv", "shift_jis", "another encoding"),
        {"encoding": "shift_jis"},
    ),
    "csv-unknown-encoding-option": Broken(
        holding("t.csv", ROWS), ("'latin-99'", "encoding"), {"encoding": "latin-99"}
    ),
    "csv-quote-not-closed": Broken(
        holding("t.csv", 'a,label\n1,0\n"2,1\n3,0\n'), ("t.csv", "quote is not closed", '"2,1')
    ),
    "csv-row-with-too-few-fields": Broken(
        holding("t.csv", ROWS + "7\n"), ("t.csv", "row 201", "1 fields", "header has 2")
    ),
    "csv-cut-in-its-last-row": Broken(
        holding("t.csv", ROWS.removesuffix(",1\n")), ("t.csv", "row 200", "1 fields")
    ),
    "csv-name-twice": Broken(
        holding("t.csv", "a,a,label\n1,2,0\n1,2,1\n"), ("t.csv", "'a'", "more than once")
    ),
    "csv-column-without-name": Broken(
        holding("t.csv", "a,,label\n1,2,0\n1,2,1\n"), ("t.csv", "column 2", "no name")
    ),
    "csv-other-delimiter": Broken(
        holding("t.csv", ROWS), ("'label'", "'a,label'"), {"delimiter": ";"}
    ),
    "tsv-row-with-too-many-fields": Broken(
        holding("t.tsv", ROWS.replace(",", "\t") + "7\t1\t2\n"), ("t.tsv", "row 201", "3 fields")
    ),
    "tsv-header-only": Broken(holding("t.tsv", "a\tlabel"), ("t.tsv", "no row")),
    "jsonl-blank": Broken(
        holding("t.jsonl", " \n\n"), ("t.jsonl", "empty"), {"source_format": "jsonl"}
    ),
    "jsonl-empty": Broken(holding("t.jsonl", ""), ("t.jsonl", "empty"), {"source_format": "jsonl"}),
    "jsonl-cut-in-its-last-line": Broken(
        holding("t.jsonl", OBJECTS[:-9]), ("t.jsonl", "row 200", "not a JSON object")
    ),
    "jsonl-an-array": Broken(
        holding("t.json", json.dumps([{"a": 1, "label": 0}, {"a": 2, "label": 1}])),
        ("t.json", "array", "one object a line"),
    ),
    "jsonl-over-several-lines": Broken(
        holding("t.json", json.dumps({"a": 1, "label": 0}, indent=2)),
        ("t.json", "row 1", "not a JSON object"),
    ),
    "jsonl-not-a-number": Broken(
        holding("t.jsonl", OBJECTS + '{"a": NaN, "label": 0}\n'),
        ("t.jsonl", "row 201", "NaN is not in JSON"),
    ),
    "jsonl-key-twice": Broken(
        holding("t.jsonl", OBJECTS + '{"a": 1, "a": 2, "label": 0}\n'),
        ("t.jsonl", "row 201", "'a'", "more than once"),
    ),
    "jsonl-invalid-utf8": Broken(
        holding("t.jsonl", OBJECTS.encode() + b'{"a": "\xff", "label": 0}\n'),
        ("t.jsonl", "row 201", "UTF-8"),
    ),
    "jsonl-lone-surrogate": Broken(
        holding("t.jsonl", '{"a": "x", "label": 0}\n{"a": "\\ud800", "label": 1}\n'),
        ("t.jsonl", "row 2", "surrogate"),
    ),
    "jsonl-deeply-nested": Broken(
        holding("t.jsonl", OBJECTS + '{"a":' * 5000 + "1" + "}" * 5000 + "\n"),
        ("t.jsonl", "row 201"),
    ),
    "jsonl-beyond-int64": Broken(
        holding("t.jsonl", OBJECTS + '{"a": 18446744073709551616, "label": 0}\n'),
        ("t.jsonl", "18446744073709551616"),
    ),
    "jsonl-list-of-objects": Broken(
        holding("t.jsonl", '{"a": [{"b": 1}], "label": 0}\n'), ("t.jsonl:1", "drop a")
    ),
}

PACKED = {
    "gzip-cut": Broken(
        holding("t.csv.gz", gzip.compress(ROWS.encode())[:-12]), ("t.csv.gz", "damaged")
    ),
    "gzip-changed": Broken(
        holding("t.csv.gz", changed(gzip.compress(ROWS.encode()), -6)), ("t.csv.gz", "damaged")
    ),
    "gzip-magic-only": Broken(holding("t.csv.gz", b"\x1f\x8b"), ("t.csv.gz", "damaged")),
    "gzip-of-nothing": Broken(holding("t.csv.gz", gzip.compress(b"")), ("t.csv.gz", "empty")),
    "gzip-followed-by-garbage": Broken(
        holding("t.csv.gz", gzip.compress(ROWS.encode()) + b"tail"), ("t.csv.gz", "damaged")
    ),
    "gzip-of-garbage": Broken(
        holding("t.csv.gz", gzip.compress(GARBAGE)), ("t.csv.gz", "neither text nor")
    ),
    "zstd-cut": Broken(holding("t.csv.zst", zstd(ROWS.encode())[:-9]), ("t.csv.zst", "damaged")),
    "zstd-garbage": Broken(
        holding("t.csv.zst", b"\x28\xb5\x2f\xfd" + GARBAGE), ("t.csv.zst", "damaged")
    ),
    "zstd-of-nothing": Broken(holding("t.csv.zst", zstd(b"")), ("t.csv.zst", "empty")),
    "zip-cut": Broken(
        holding("t.zip", zipped(("a.csv", ROWS))[:-30]), ("t.zip", "damaged zip archive")
    ),
    "zip-member-changed": Broken(
        holding("t.zip", changed(zipped(("a.csv", ROWS)), 60)), ("t.zip/a.csv", "damaged")
    ),
    "zip-encrypted": Broken(holding("t.zip", encrypted_zip()), ("t.zip/a.csv", "encrypted")),
    "zip-of-nothing": Broken(holding("t.zip", zipped()), ("t.zip", "no file")),
    "zip-of-an-empty-file": Broken(
        holding("t.zip", zipped(("a.csv", ""))), ("t.zip/a.csv", "empty")
    ),
    "zip-of-an-unknown-method": Broken(
        holding("t.zip", zipped(("a.csv", ROWS)).replace(b"\x08\x00", b"\x62\x00")),
        ("t.zip/a.csv", "cannot be read"),
    ),
    "excel": Broken(
        holding("t.xlsx", zipped(("[Content_Types].xml", "<a/>"), ("xl/workbook.xml", "<a/>"))),
        ("t.xlsx", "Excel", "CSV"),
    ),
    "bzip2-cut": Broken(
        holding("t.csv.bz2", bz2.compress(ROWS.encode())[:-9]), ("t.csv.bz2", "damaged")
    ),
    "xz-changed": Broken(
        holding("t.csv.xz", changed(lzma.compress(ROWS.encode()), 90)), ("t.csv.xz", "damaged")
    ),
}

TABLES = {
    "parquet-magic-only": Broken(holding("t.parquet", b"PAR1"), ("t.parquet", "Parquet")),
    "parquet-cut": Broken(holding("t.parquet", parquet()[:-300]), ("t.parquet", "Parquet")),
    "parquet-footer-changed": Broken(
        holding("t.parquet", changed(parquet(), -6)), ("t.parquet", "Parquet")
    ),
    "parquet-page-changed": Broken(
        holding("t.parquet", changed(parquet(write_page_checksum=True), 1500)),
        ("t.parquet", "damaged"),
    ),
    "parquet-without-rows": Broken(
        holding("t.parquet", parquet(pa.table({"a": pa.array([], "int64"), "label": []}))),
        ("t.parquet", "no row"),
    ),
    "parquet-without-columns": Broken(
        holding("t.parquet", parquet(pa.table({}))), ("t.parquet", "no row")
    ),
    "parquet-type-without-treatment": Broken(
        holding(
            "t.parquet",
            parquet(
                pa.table(
                    {
                        "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
                        "label": [0, 1],
                    }
                )
            ),
        ),
        ("'m'", "map<string, int64", "drop m"),
    ),
    "parquet-text-named-so": Broken(
        holding("t.parquet", ROWS), ("t.parquet", "Parquet"), {"source_format": "parquet"}
    ),
    "arrow-file": Broken(holding("t.arrow", b"ARROW1\0\0" + GARBAGE), ("t.arrow", "Arrow")),
}

IMAGES = {
    "images-of-no-class": Broken(
        folder_of(a_dot_png=picture(), b_dot_png=picture()), ("a.png", "class folder")
    ),
    "images-all-damaged": Broken(
        folder_of(cat__a_dot_png=picture()[:30], dog__b_dot_png=GARBAGE),
        ("'image'", "no image that can be decoded"),
    ),
    "images-one-cut": Broken(
        folder_of(
            cat__a_dot_png=picture(),
            cat__b_dot_png=picture(size=(8, 8))[:-20],
            dog__c_dot_png=picture(shade=9),
        ),
        ("cat/b.png", "damaged"),
    ),
    "images-empty-files": Broken(
        folder_of(cat__a_dot_jpg=b"", dog__b_dot_jpg=b""), ("no image that can be decoded",)
    ),
    "images-of-one-class": Broken(
        folder_of(cat__a_dot_png=picture(), cat__b_dot_png=picture(shade=3)),
        ("label", "'cat' in every row"),
    ),
    "images-of-several-sizes": Broken(
        folder_of(cat__a_dot_png=picture(), dog__b_dot_png=picture(size=(9, 8))),
        ("image_height", "image_width", "width 8 to 9"),
    ),
    "images-asked-for-but-none": Broken(
        folder_of(cat__a_dot_txt="x"), ("no images", "cat/a.txt"), {"source_format": "images"}
    ),
    "image-table-path-missing": Broken(
        folder_of(t_dot_csv="file,label\na.png,0\nb.png,1\nb.png,0\n", a_dot_png=picture()),
        ("t.csv", "row 2", "file='b.png'", "No such file"),
        {"image_column": "file"},
    ),
    "image-table-path-of-no-image": Broken(
        folder_of(t_dot_csv="file,label\na.png,0\nt.csv,1\n", a_dot_png=picture()),
        ("t.csv", "row 2", "not an image"),
        {"image_column": "file"},
    ),
    "image-table-without-path": Broken(
        folder_of(t_dot_csv="file,n,label\na.png,1,0\n,2,1\n", a_dot_png=picture()),
        ("t.csv", "row 2", "file"),
        {"image_column": "file"},
    ),
    "image-table-without-the-column": Broken(
        folder_of(t_dot_csv="file,label\na.png,0\n", a_dot_png=picture()),
        ("'picture'", "['file', 'label']"),
        {"image_column": "picture"},
    ),
}

PLACES = {
    "missing": Broken(lambda folder: folder / "none.csv", ("none.csv", "does not exist")),
    "missing-glob": Broken(lambda folder: folder / "*.csv", ("*.csv", "does not exist")),
    "empty-folder": Broken(folder_of(), ("data", "holds no file")),
    "hidden-files-only": Broken(folder_of(_dot_a=ROWS), ("data", "holds no file")),
    "dangling-link": Broken(dangling, ("data.csv", "does not exist")),
    "file-of-several-formats": Broken(
        folder_of(a_dot_csv=ROWS, b_dot_parquet=parquet()), ("a.csv is csv", "b.parquet is parquet")
    ),
    "files-of-other-columns": Broken(
        folder_of(a_dot_csv=ROWS, b_dot_csv=ROWS.replace("a", "b")), ("b.csv", "'b'", "'a'")
    ),
    "files-of-other-types": Broken(
        folder_of(
            a_dot_parquet=parquet(),
            b_dot_parquet=parquet(pa.table({"a": [1, 2], "label": [0, 1]})),
        ),
        ("a.parquet", "b.parquet", "'a'"),
    ),
    "one-file-of-them-empty": Broken(folder_of(a_dot_csv=ROWS, b_dot_csv=""), ("b.csv", "empty")),
}
if os.geteuid():
    PLACES["unreadable"] = Broken(unreadable, ("permission denied", "data.csv"))

SOURCES = TEXTS | PACKED | TABLES | IMAGES | PLACES
