"""A schema of an earlier run is enforced: differences end the step before training, readably."""

import pytest

from components.contracts.errors import InputError
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from tests.make_tfrecords.reading import rows

HEADER = "n,x,word,label\n"


def lines(num_rows, word="w{}"):
    return "".join(f"{n},{n / 2},{word.format(n % 4)},{n % 2}\n" for n in range(num_rows))


@pytest.fixture
def convert(tmp_path):
    def run(text, name, **options):
        source = tmp_path / f"{name}.csv"
        source.write_text(text)
        options = {"splits": {"all": 1.0}, "processes": 1, **options}
        return make_tfrecords(
            ConvertOptions(source=str(source), label="label", **options), str(tmp_path / name)
        )

    return run


@pytest.fixture
def earlier(convert):
    return convert(HEADER + lines(40), "earlier").uri


def test_data_of_the_same_form_keeps_the_schema(convert, earlier):
    dataset = convert(HEADER + lines(100), "later", schema_uri=earlier)
    assert [f.source_type for f in dataset.schema.features] == ["int64", "double", "string"]
    assert dataset.num_rows == 100


DIFFERENCES = {
    "a new column": (
        "n,x,word,extra,label\n1,2,w1,3,0\n2,2,w1,3,1\n",
        "  + extra: int64, not in the schema",
    ),
    "a column less": ("n,word,label\n1,w1,0\n2,w1,1\n", "  - x: double, not in the source"),
    "another type": (HEADER + "one,2,w1,0\ntwo,2,w1,1\n", "  ~ n: int64 in the schema, string now"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_another_form_is_refused_with_the_difference(convert, earlier, tmp_path, what):
    text, difference = DIFFERENCES[what]
    with pytest.raises(InputError) as error:
        convert(text, "later", schema_uri=earlier)
    assert difference in str(error.value).split("\n")
    assert not [path for path in (tmp_path / "later").rglob("*") if path.is_file()]


def test_a_value_of_another_type_in_one_row_is_a_fault_with_its_place(convert, earlier):
    text = HEADER + lines(50_000) + "many,1,w1,0\n"
    with pytest.raises(InputError, match=r"later.csv row 50001: n='many' is not of type int64"):
        convert(text, "later", schema_uri=earlier)


def test_unseen_categories_are_refused_beyond_their_limit(convert, earlier):
    text = HEADER + lines(90) + lines(10, "new{}")
    with pytest.raises(InputError, match=r"word: 10.0% of the values, as 'new0' \(3\)"):
        convert(text, "later", schema_uri=earlier, max_unseen_share=0.09)
    assert convert(text, "later", schema_uri=earlier, max_unseen_share=0.11).num_rows == 100


def test_an_unseen_class_is_a_fault(convert, earlier):
    with pytest.raises(InputError, match="label='2' is none of the classes"):
        convert(HEADER + lines(9) + "1,1,w1,2\n", "later", schema_uri=earlier)


def test_values_missing_for_the_first_time_are_told_from_all_others(convert, earlier):
    dataset = convert(HEADER + lines(9) + ",1,,0\n", "later", schema_uri=earlier)
    missing = {name: dataset.schema[name].missing_value for name in ("n", "word")}
    assert missing["n"] == -(2**63)
    assert missing["word"] not in ("", None)
    last = rows(dataset)[-1]
    assert (last["n"], last["word"].decode()) == (missing["n"], missing["word"])
