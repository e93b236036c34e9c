"""The fixtures of tests/train_model, for the tests that disturb a run."""

from tests.train_model.conftest import dataset_uri, train, undisturbed

__all__ = ["dataset_uri", "train", "undisturbed"]
