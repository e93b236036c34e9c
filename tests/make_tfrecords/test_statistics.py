"""Statistics of the first split equal what numpy finds in its examples; counts always add up."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from tests.make_tfrecords.reading import columns

NUM_ROWS = 20_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    chance = random.Random(3)
    lines = ["n,x,word,label"]
    for number in range(NUM_ROWS):
        x = "" if number % 9 == 0 else repr(chance.gauss(1e3, 5.0))
        word = "" if number % 5 == 0 else f"w{int(chance.expovariate(0.3))}"
        lines.append(f"{chance.randint(-50, 10**6)},{x},{word},{number % 3}")
    lines[7] = "1,2"  # a row that is rejected
    folder = tmp_path_factory.mktemp("statistics")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    options = ConvertOptions(
        source=str(folder / "t.csv"), label="label", num_shards=4, max_rejected_share=0.01
    )
    return make_tfrecords(options, str(folder / "out"))


def test_rows_in_are_examples_out_and_rejected(dataset):
    assert dataset.num_rows == NUM_ROWS
    assert dataset.num_rejected == 1
    assert sum(dataset.splits.values()) + dataset.num_rejected == NUM_ROWS
    assert set(dataset.splits) == {"train", "eval"}
    (reject,) = map(json.loads, Path(dataset.uri, "rejects.jsonl").read_text().splitlines())
    assert reject == {
        "source": "t.csv",
        "row": 7,
        "column": "",
        "value": "1,2",
        "reason": "2 fields, the header has 4",
    }


@pytest.mark.parametrize("name", ["n", "x"])
def test_numbers(dataset, name):
    values = columns(dataset, "train")[name].astype(np.float64)
    present = values[~np.isnan(values)]
    statistics = dataset.schema[name].statistics
    assert (statistics.count, statistics.missing) == (
        len(present),
        dataset.splits["train"] - len(present),
    )
    assert statistics.mean == pytest.approx(present.mean(), rel=1e-12)
    assert statistics.variance == pytest.approx(present.var(), rel=1e-9)
    assert (statistics.minimum, statistics.maximum) == (present.min(), present.max())
    edges, counts = statistics.histogram
    assert counts == tuple(np.histogram(present, edges)[0])
    assert sum(counts) == len(present)


def test_words(dataset):
    words = columns(dataset, "train")["word"]
    present = [word.decode() for word in words if word]
    found = dict(zip(*np.unique(present, return_counts=True), strict=True))
    statistics = dataset.schema["word"].statistics
    assert dict(statistics.vocabulary) == found
    assert statistics.num_distinct == len(found)
    counts = [count for _, count in statistics.vocabulary]
    assert counts == sorted(counts, reverse=True)
    assert (statistics.count, statistics.missing) == (len(present), len(words) - len(present))


def test_the_page_and_the_schema_file_say_the_same(dataset, tmp_path):
    page = Path(dataset.uri, "statistics.html").read_text()
    assert f"{NUM_ROWS:,} rows read, 1 rejected" in page
    assert page.count("<svg") == 3  # n, x and the label
    assert "http" not in page.replace("http://www.w3.org", "")
    schema = json.loads(Path(dataset.uri, "schema.json").read_text())
    assert [feature["name"] for feature in schema["features"]] == ["n", "x", "word"]
