"""Every ordinary source: what comes out is what went in, or one message says why not."""

import bz2
import datetime
import gzip
import io
import json
import lzma
import os
import zipfile
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from components.contracts.dataset import open_dataset
from components.contracts.errors import InputError
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.storage import gcs
from components.storage.open import open_store
from tests.make_tfrecords.reading import records, rows
from tests.servers.object_stores import gcs_server
from tests.storage.conftest import use_gcs

ALL_IN_ONE = {"all": 1.0}


@pytest.fixture
def convert(tmp_path):
    def run(source, label="label", name="out", **options):
        options = {"splits": ALL_IN_ONE, "processes": 1, **options}
        return make_tfrecords(
            ConvertOptions(source=str(source), label=label, **options), str(tmp_path / name)
        )

    return run


def test_parquet_columns_of_every_ordinary_type(convert, tmp_path):
    utc = datetime.datetime(2024, 5, 1, 12, 30, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "list": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1}, {"a": 2}]),
            "when": pa.array([utc, None], pa.timestamp("us", "UTC")),
            "naive": pa.array([1, None], pa.timestamp("ns")),
            "flag": pa.array([True, False]),
            "word": pa.array(["x", "y"]).dictionary_encode(),
            "label": pa.array([0, 1]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = convert(tmp_path / "t.parquet")
    by_label = {row["label"]: row for row in rows(dataset)}
    first, second = by_label[0], by_label[1]
    assert first["decimal"] == pytest.approx(1.1)
    assert second["decimal"] != second["decimal"]
    assert list(first["list"]) == [1, 2, 3]
    assert (first["struct.a"], second["struct.a"]) == (1, 2)
    assert first["when"] == int(utc.timestamp() * 1e6)
    assert second["when"] == dataset.schema["when"].missing_value
    assert "UTC" in dataset.schema["when"].source_type
    assert (first["naive"], second["naive"]) == (1, dataset.schema["naive"].missing_value)
    assert dataset.schema["naive"].note.endswith("ns since 1970-01-01, without a time zone")
    assert (first["flag"], second["flag"]) == (1, 0)
    assert (first["word"], second["word"]) == (b"x", b"y")
    assert dataset.schema["decimal"].note


def test_json_lines_agree_over_all_files(convert, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"u": null, "label": 0}\n')
    (folder / "b.jsonl").write_text('{"u": "x", "label": 1}\n')
    dataset = convert(folder)
    assert sorted((row["label"], row["u"]) for row in rows(dataset)) == [(0, b""), (1, b"x")]


def test_json_lines_that_contradict_each_other_name_the_line(convert, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"u": 1, "label": 0}\n{"u": "x", "label": 1}\n')
    with pytest.raises(InputError, match=r"c\.jsonl") as error:
        convert(path)
    assert "'u'" in str(error.value) or "u=" in str(error.value)


def zipped(data):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/t.csv", data)
    return target.getvalue()


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lzma.compress, zipped, lambda d: pa.compress(d, "zstd", True)],
    ids=["gzip", "bzip2", "xz", "zip", "zstd"],
)
def test_a_compressed_table_is_the_table(convert, tmp_path, pack):
    text = "a,label\n" + "".join(f"{number},{number % 2}\n" for number in range(50))
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed").write_bytes(pack(text.encode()))
    one = convert(tmp_path / "plain.csv", name="one")
    two = convert(tmp_path / "packed", name="two")
    assert records(one, "all") == records(two, "all")


def test_files_are_named_by_list_folder_or_glob(tmp_path):
    for number, name in enumerate(("in/a.csv", "in/sub/b.csv", "in/.hidden.csv", "in/c.txt")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a,label\n{number},0\n{number},1\n")
    named = {
        (f"{tmp_path}/in/a.csv", f"{tmp_path}/in/c.txt"): {0, 3},
        f"{tmp_path}/in": {0, 1, 3},
        f"{tmp_path}/in/**/*.csv": {0, 1},
        f"file://{tmp_path}/in/*.csv": {0},
    }
    for number, (source, expected) in enumerate(named.items()):
        options = ConvertOptions(source=source, label="label", splits=ALL_IN_ONE, processes=1)
        dataset = make_tfrecords(options, str(tmp_path / f"out {number}"))
        assert {row["a"] for row in rows(dataset)} == expected


def test_sources_in_object_storage(tmp_path):
    with gcs_server() as address, use_gcs(address):
        gcs._client(os.getpid()).create_bucket("bucket")
        store = open_store("gs://bucket/data")
        for number in range(3):
            store.write(f"{number}.csv", f"a,label\n{number},0\n{number},1\n".encode())
        named = {"gs://bucket/data": {0, 1, 2}, "gs://bucket/data/[01].csv": {0, 1}}
        named["gs://bucket/data/2.csv"] = {2}
        for number, (source, expected) in enumerate(named.items()):
            options = ConvertOptions(source=source, label="label", splits=ALL_IN_ONE, processes=1)
            dataset = make_tfrecords(options, str(tmp_path / f"out {number}"))
            assert {row["a"] for row in rows(dataset)} == expected


@pytest.mark.parametrize("layout", ["columns", "packed"])
def test_compressed_shards_hold_the_same_examples(convert, tmp_path, layout):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "".join(f"{n},{n % 2}\n" for n in range(5000)))
    plain = convert(path, name="plain", layout=layout)
    packed = convert(path, name="packed", layout=layout, compression="GZIP")
    assert records(plain, "all") == records(packed, "all")
    assert packed.compression == "GZIP"
    sizes = [sum(file.size for file in dataset.files.values()) for dataset in (plain, packed)]
    assert sizes[1] < sizes[0]


def test_two_equal_rows_are_on_one_side_in_whatever_file(convert, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c"):
        lines = [f"{number},{number % 2}" for number in range(200)]
        (folder / f"{name}.csv").write_text("x,label\n" + "\n".join(lines) + "\n")
    dataset = convert(folder, splits={"train": 0.5, "eval": 0.5})
    sides = [records(dataset, split) for split in ("train", "eval")]
    assert not set(sides[0]) & set(sides[1])
    assert all(side.count(record) == 3 for side in sides for record in set(side))


def test_a_plan_of_more_shards_than_rows_has_no_empty_shard(convert, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,0\n2,1\n3,0\n")
    dataset = convert(path, num_shards=5)
    assert [shard.num_records for shard in dataset.shards] == [1, 1, 1]


def damaged(folder, change):
    shard = next(folder.glob("*.tfrecord"))
    shard.write_bytes(change(shard.read_bytes()))
    return shard.name


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-7], lambda data: data[: len(data) // 5 * 4], lambda data: b""],
    ids=["within-a-record", "between-records", "to-nothing"],
)
def test_a_shard_cut_anywhere_is_named_by_whoever_opens_the_dataset(convert, tmp_path, change):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "".join(f"{n},{n % 2}\n" for n in range(5)))
    dataset = convert(path, num_shards=1)
    name = damaged(tmp_path / "out", change)
    with pytest.raises(InputError, match=name):
        open_dataset(open_store(dataset.uri))


@pytest.mark.parametrize("layout", ["columns", "packed"])
@pytest.mark.parametrize("processes", [1, 2])
def test_both_encoders_write_the_same_bytes_whatever_the_processes(
    convert, tmp_path, layout, processes
):
    lines = ["n,x,s,label"]
    for number in range(3000):
        x = "" if number % 7 == 0 else f"{number / 3:.5f}"
        lines.append(f"{number},{x},{'wörd' * (number % 5)},{number % 2}")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    splits = {"train": 0.7, "eval": 0.3}
    plain = convert(path, name="plain", encoder="plain", layout=layout, splits=splits)
    other = convert(
        path,
        name="other",
        encoder="compiled",
        layout=layout,
        splits=splits,
        processes=processes,
    )
    for split in splits:
        assert records(plain, split) == records(other, split)
    assert plain.num_rows == sum(plain.splits.values()) == 3000


def picture(kind, size=(8, 8), color=(200, 10, 10)):
    data = io.BytesIO()
    frames = [Image.new("RGB", size, color), Image.new("RGB", size, (0, 0, 9))]
    more = {"save_all": True, "append_images": frames[1:]} if kind == "GIF2" else {}
    frames[0].save(data, kind[:3] if kind == "GIF2" else kind, **more)
    return data.getvalue()


def test_images_are_known_by_content_and_damaged_ones_are_rejected(convert, tmp_path):
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            shade = (number * 20, 9, 90 if name == "cat" else 9)
            (folder / name / f"{number}.png").write_bytes(picture("PNG", color=shade))
    (folder / "cat/really-png.jpg").write_bytes(picture("PNG"))
    (folder / "cat/really-webp.jpg").write_bytes(picture("WEBP"))
    (folder / "dog/empty.jpg").write_bytes(b"")
    (folder / "dog/two-frames.jpg").write_bytes(picture("GIF2"))
    whole = picture("JPEG", size=(64, 64))
    (folder / "dog/cut.jpg").write_bytes(whole[: int(len(whole) * 0.6)])
    common = {"source_format": "images", "image_height": 8, "image_width": 8}
    with pytest.raises(InputError, match="3 of 13 rows"):
        convert(folder, name="strict", **common)
    dataset = convert(folder, name="lenient", max_rejected_share=0.3, **common)
    assert (dataset.num_rows, dataset.num_rejected) == (13, 3)
    rejects = [
        json.loads(line) for line in (tmp_path / "lenient/rejects.jsonl").read_text().splitlines()
    ]
    assert sorted(reject["source"].rpartition("/")[2] for reject in rejects) == [
        *("cut.jpg", "empty.jpg", "two-frames.jpg"),
    ]
    assert dataset.schema.classes == ("cat", "dog")
    assert all(len(row["image"]) == 8 for row in rows(dataset))


def test_an_unknown_label_is_an_error_with_counts_never_class_zero(convert, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "1,cat\n2,dog\n3,Cat\n4,dog \n5,bird\n")
    with pytest.raises(InputError) as error:
        convert(path, classes=("cat", "dog"))
    for text in ("label='Cat'", "label='dog '", "label='bird'"):
        assert f"1 x {text} is none of the classes" in str(error.value)


def test_a_split_without_rows_is_an_error(convert, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,0\n2,1\n3,0\n")
    with pytest.raises(InputError, match="would be empty"):
        convert(path, splits={"train": 0.999, "eval": 0.001})
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_groups_and_duplicates_stay_on_one_side(convert, tmp_path):
    lines = [f"u{number % 40},{number % 9},{number % 2}" for number in range(2000)]
    path = tmp_path / "t.csv"
    path.write_text("user,a,label\n" + "\n".join(lines) + "\n")
    splits = {"train": 0.5, "eval": 0.5}
    grouped = convert(path, name="grouped", group="user", splits=splits)
    sides = {split: set() for split in splits}
    for split in splits:
        from tests.make_tfrecords.reading import columns

        sides[split] = set(columns(grouped, split)["user"].tolist())
    assert not sides["train"] & sides["eval"]
    plain = convert(path, name="plain", splits=splits)
    assert not set(records(plain, "train")) & set(records(plain, "eval"))
    again = convert(path, name="again", splits=splits)
    assert records(plain, "eval") == records(again, "eval")


def test_a_changed_schema_is_refused_with_the_difference(convert, tmp_path):
    first, second = tmp_path / "one.csv", tmp_path / "two.csv"
    first.write_text("a,b,label\n" + "".join(f"{n},x,{n % 2}\n" for n in range(20)))
    second.write_text("a,c,label\n" + "".join(f"{n}.5,x,{n % 2}\n" for n in range(20)))
    dataset = convert(first, name="one")
    with pytest.raises(InputError) as error:
        convert(second, name="two", schema_uri=dataset.uri)
    assert "'b'" in str(error.value) or "'c'" in str(error.value) or " b" in str(error.value)
