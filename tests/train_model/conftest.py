import pytest

from tests.train_model.running import TrainingProcess


@pytest.fixture(scope="session")
def dataset_uri(tmp_path_factory):
    """A small committed dataset."""
    from tests.datasets import commit_binary_dataset

    uri = str(tmp_path_factory.mktemp("dataset") / "dataset")
    commit_binary_dataset(uri)
    return uri


@pytest.fixture
def train(tmp_path, dataset_uri):
    """Start training runs that are ended, whatever happens, with the test."""
    started = []

    def start(name="run", **options):
        process = TrainingProcess(tmp_path / name, dataset_uri, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, dataset_uri):
    """Arrays and completion of a run that nothing has disturbed."""
    process = TrainingProcess(tmp_path_factory.mktemp("undisturbed"), dataset_uri)
    try:
        assert process.finish() == 0, process.log
        return process.arrays(), process.completion
    finally:
        process.close()
