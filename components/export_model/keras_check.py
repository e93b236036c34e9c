"""Can a .keras file be loaded again? `python -m ... FILE MODULE WEIGHTS`, see keras_copy."""

import importlib
import sys

import keras
import numpy as np


def main(path: str, module: str, weights: str) -> None:
    """Load with the user's module imported, and compare the weights. Raises ValueError."""
    importlib.import_module(module)
    model = keras.models.load_model(path, compile=False, safe_mode=True)
    # Not model.variables: Keras saves no state of random seeds.
    expected = np.load(weights, allow_pickle=False)
    found = [variable.numpy() for variable in model.weights]
    if len(found) != len(expected.files) or not all(
        np.array_equal(array, expected[name], equal_nan=array.dtype.kind == "f")
        for array, name in zip(found, expected.files, strict=True)
    ):
        raise ValueError("the weights in the file are not those of the model")


if __name__ == "__main__":
    main(*sys.argv[1:])
