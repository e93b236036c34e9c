"""A conversion planned, shared and committed in steps gives the bytes of one in a single step."""

from pathlib import Path

import pytest

from components.contracts.errors import InputError
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.shares import convert_share, plan_shares


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rows.csv"

    def write(values):
        path.write_text("a,label\n" + "".join(f"{v},{n % 2}\n" for n, v in enumerate(values)))
        return ConvertOptions(source=str(path), label="label", num_shards=5, processes=1)

    return write


def contents(folder):
    """Files but the manifest, which names its writer."""
    found = {path.name: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    assert found.pop("dataset.json")
    return found


def test_shares_are_taken_up_whatever_their_number(source, tmp_path):
    options = source(range(30_000))
    make_tfrecords(options, str(tmp_path / "one"))
    for num_shares in (1, 3, 5):
        output = str(tmp_path / f"of {num_shares}")
        assert plan_shares(options, output, num_shares) == list(range(num_shares))
        parts = [convert_share(options, output, share, num_shares) for share in range(num_shares)]
        assert sum(parts) == 5
        make_tfrecords(options, output)
        assert contents(output) == contents(tmp_path / "one")


def test_there_are_no_more_shares_than_shards(source, tmp_path):
    assert plan_shares(source(range(1000)), str(tmp_path / "out"), 99) == [0, 1, 2, 3, 4]


def test_a_share_that_never_came_is_converted_by_who_commits(source, tmp_path):
    options = source(range(1000))
    plan_shares(options, str(tmp_path / "out"), 2)
    convert_share(options, str(tmp_path / "out"), 1, 2)
    make_tfrecords(options, str(tmp_path / "out"))
    make_tfrecords(options, str(tmp_path / "one"))
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_a_plan_from_a_misleading_sample_is_mended_by_who_commits(source, tmp_path):
    values = [*range(300_000)]
    values[100_000] = "text"
    options = source(values)
    output = str(tmp_path / "out")
    plan_shares(options, output, 2)
    assert 0 in [convert_share(options, output, share, 2) for share in range(2)]
    dataset = make_tfrecords(options, output)
    assert dataset.schema["a"].kind == "string"
    make_tfrecords(options, str(tmp_path / "one"))
    assert contents(output) == contents(tmp_path / "one")


def test_nothing_is_planned_for_what_was_converted_before(source, tmp_path):
    options = source(range(1000))
    make_tfrecords(options, str(tmp_path / "out"))
    assert plan_shares(options, str(tmp_path / "out"), 2) == []
    assert convert_share(options, str(tmp_path / "out"), 0, 0) == 0


def test_a_share_of_changed_sources_is_refused(source, tmp_path):
    output = str(tmp_path / "out")
    plan_shares(source(range(1000)), output, 2)
    with pytest.raises(InputError, match="changed since"):
        convert_share(source(range(2000)), output, 0, 2)
