"""Trained runs that several tests read; none of them changes one."""

from types import SimpleNamespace

import pytest

from tests import trained_runs


def _trained(folder, name, **options):
    dataset = getattr(trained_runs, f"commit_{name}")(folder / "data")
    trained_runs.commit_run(folder / "run", dataset, f"tests.models.{name}", **options)
    return SimpleNamespace(
        dataset=dataset, data_uri=str(folder / "data"), run_uri=str(folder / "run")
    )


@pytest.fixture(scope="session")
def delays(tmp_path_factory):
    """A binary classifier on float, int64 and string columns with missing values."""
    return _trained(tmp_path_factory.mktemp("delays"), "delays", epochs=5)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A multi-class classifier of images."""
    return _trained(tmp_path_factory.mktemp("shapes"), "shapes")


@pytest.fixture(scope="session")
def prices(tmp_path_factory):
    """A regression with a column of variable length and preprocessing of its own."""
    return _trained(tmp_path_factory.mktemp("prices"), "prices")
