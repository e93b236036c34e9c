"""Runs to disturb, and runs that nothing has disturbed to compare them with."""

import pytest

from tests.train_model.conftest import dataset_uri, train, undisturbed
from tests.train_model.running import TrainingProcess

__all__ = ["dataset_uri", "train", "undisturbed"]

HOOKED = "tests.faults.hooked_model"


def finished(folder, dataset_uri, **options):
    """Arrays and completion of a run that is left in peace."""
    process = TrainingProcess(folder, dataset_uri, **options)
    try:
        assert process.finish() == 0, process.log
        return process.arrays(), process.completion
    finally:
        process.close()


@pytest.fixture(scope="session")
def undisturbed_three(tmp_path_factory, dataset_uri):
    """As `undisturbed`, with three workers."""
    return finished(tmp_path_factory.mktemp("three"), dataset_uri, workers=3)


@pytest.fixture(scope="session")
def undisturbed_validated(tmp_path_factory, dataset_uri):
    """As `undisturbed`, with a validation after each epoch."""
    return finished(tmp_path_factory.mktemp("validated"), dataset_uri, validation_split="eval")


@pytest.fixture
def hooks(tmp_path):
    """Folder by which the hooked model is told to misbehave."""
    folder = tmp_path / "hooks"
    folder.mkdir()
    return folder


@pytest.fixture
def train_hooked(train, hooks):
    """Start a run of the hooked model, which trains as the small model does."""

    def start(name="run", **options):
        return train(name, module=HOOKED, hyperparameters={"hooks": str(hooks)}, **options)

    return start
