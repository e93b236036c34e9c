"""CSV in, the same values out."""

import math
from pathlib import Path

import pytest

from components.contracts.dataset import open_dataset
from components.contracts.errors import InputError
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.storage.open import open_store
from tests.make_tfrecords.reading import rows

ALL_IN_ONE = {"all": 1.0}


@pytest.fixture
def convert(tmp_path: Path):
    def run(text: str | bytes, label: str = "label", **options):
        source = tmp_path / "source.csv"
        source.write_bytes(text if isinstance(text, bytes) else text.encode())
        options = {"splits": ALL_IN_ONE, **options}
        return make_tfrecords(
            ConvertOptions(source=str(source), label=label, **options), str(tmp_path / "out")
        )

    return run


def test_a_quoted_newline_stays_in_its_field(convert):
    dataset = convert('text,label\n"line one\nline two, with comma",1\nplain,0\n')
    assert rows(dataset) == [
        {"text": b"line one\nline two, with comma", "label": 1},
        {"text": b"plain", "label": 0},
    ]


def test_quoted_newlines_are_kept_beyond_any_block_size(convert):
    text = "text,i,label\n" + "".join(f'"ab\ncd",{i},{i % 2}\n' for i in range(300_000))
    dataset = convert(text, num_shards=3)
    assert dataset.num_rows == 300_000
    assert dataset.splits == {"all": 300_000}
    assert len(dataset.shards) == 3
    statistics = dataset.schema["i"].statistics
    assert (statistics.count, statistics.minimum, statistics.maximum) == (300_000, 0, 299_999)
    assert dataset.schema["text"].statistics.vocabulary == (("ab\ncd", 300_000),)


def test_a_byte_order_mark_is_no_part_of_the_first_name(convert):
    dataset = convert(b"\xef\xbb\xbfid,label\n1,a\n2,b\n")
    assert [feature.name for feature in dataset.schema.features] == ["id"]
    assert dataset.schema.classes == ("a", "b")


def test_strings_that_look_like_missing_tokens_are_strings(convert):
    dataset = convert("region,label\nNA,1\nEU,0\nNone,1\nnull,0\n")
    region = dataset.schema["region"]
    assert set(region.vocabulary) == {"NA", "EU", "None", "null"}
    assert region.statistics.missing == 0
    assert not region.nullable


def test_an_integer_column_with_a_blank_stays_exact(convert):
    dataset = convert("id,label\n9007199254740993,1\n,0\n9007199254740992,1\n")
    identity = dataset.schema["id"]
    assert (identity.kind, identity.nullable, identity.missing_value) == ("int64", True, -(2**63))
    assert [row["id"] for row in rows(dataset)] == [9007199254740993, -(2**63), 9007199254740992]


def test_missing_tokens_in_a_float_column_are_nan(convert):
    dataset = convert("date,value,label\nD1,1017.1,0\nD2,NA,1\nD3,,1\n")
    values = [row["value"] for row in rows(dataset)]
    assert values[0] == pytest.approx(1017.1)
    assert [math.isnan(value) for value in values] == [False, True, True]
    assert dataset.schema["value"].statistics.missing == 2


def test_the_committed_dataset_can_be_opened(convert, tmp_path: Path):
    dataset = convert("x,label\n1,a\n2,b\n")
    assert repr(open_dataset(open_store(dataset.uri))) == repr(dataset)


def test_a_missing_label_column_names_the_nearest_one(convert, tmp_path: Path):
    with pytest.raises(InputError, match=r"\['x', 'label'\]. Did you mean 'label'"):
        convert("x,label\n1,a\n2,b\n", label="lable")
    assert not any((tmp_path / "out").rglob("*"))
