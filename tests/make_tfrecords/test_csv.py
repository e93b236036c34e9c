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


def test_a_record_over_several_lines_is_one_row_in_a_table_of_tabs_too(convert):
    dataset = convert('text\tlabel\n"a\tb\r\nc"\t1\nplain\t0\n')
    assert [row["text"] for row in rows(dataset)] == [b"a\tb\r\nc", b"plain"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "shift_jis", "utf-16-le", "utf-16"])
def test_a_declared_encoding_is_read(convert, encoding):
    word = "größe" if encoding in ("latin-1", "cp1252") else "大きさ"
    text = f"{word},label\n{word}1,0\n{word}2,1\n"
    options = {} if encoding == "utf-16" else {"encoding": encoding}
    dataset = convert(text.encode(encoding), **options)
    assert [row[word].decode() for row in rows(dataset)] == [f"{word}1", f"{word}2"]


def test_text_that_looks_like_a_number_keeps_its_spelling(convert):
    dataset = convert("zip,hex,label\n00501,0x10,0\n10001,0x1F,1\n")
    assert [row["zip"] for row in rows(dataset)] == [b"00501", b"10001"]
    assert [row["hex"] for row in rows(dataset)] == [b"0x10", b"0x1F"]


def test_integers_beyond_int64_are_kept_as_text_with_a_note(convert):
    dataset = convert("n,label\n18446744073709551616,0\n2,1\n")
    assert [row["n"] for row in rows(dataset)] == [b"18446744073709551616", b"2"]
    assert dataset.schema["n"].note == "integers beyond int64 kept as text"


def test_a_number_beyond_float32_is_a_fault(convert):
    with pytest.raises(InputError, match=r"row 2: x='1e\+39' is too large for float"):
        convert("x,label\n0.5,0\n1e39,1\n")


def test_missing_tokens_of_one_column_are_its_own(convert):
    dataset = convert("a,b,label\n-9,-9,0\n1,2,1\n", column_missing_tokens={"a": "-9"})
    assert [dataset.schema[name].statistics.missing for name in "ab"] == [1, 0]
    assert [row["b"] for row in rows(dataset)] == [-9, 2]


def test_booleans_are_zero_and_one_with_a_note(convert):
    dataset = convert("flag,label\ntrue,0\nFalse,1\n,1\n")
    flag = dataset.schema["flag"]
    assert flag.note == "boolean stored as int64: false 0, true 1"
    assert [row["flag"] for row in rows(dataset)] == [1, 0, flag.missing_value]


def test_times_are_integers_of_a_recorded_unit(convert):
    dataset = convert("day,at,label\n1970-01-03,2013-01-01T10:00:00Z,0\n,2013-01-01T10:00:01Z,1\n")
    assert [row["at"] for row in rows(dataset)] == [1357034400, 1357034401]
    assert dataset.schema["at"].source_type == "timestamp[s, tz=UTC]"
    assert rows(dataset)[0]["day"] == 2
