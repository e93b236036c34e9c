"""A .keras file beside the version, for further training: Keras 3 does not load SavedModels.

It is kept only if another process can load it with nothing but the user's module imported, Keras'
safe mode on, and finds the same weights in it. Custom classes must be registered for that, and
Lambda layers, whose code would run on loading, are refused.
"""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np

from components.contracts.trained_model import TrainedModel
from components.export_model import keras_check

KERAS_NAME = "assets.extra/model.keras"
CHECK_SECS = 600

log = logging.getLogger("relay.export")


def write_keras_copy(folder: Path, trained: TrainedModel, work: Path) -> str:
    """Write the copy into a SavedModel's folder; returns why there is none, or an empty text."""
    path = folder / KERAS_NAME
    path.parent.mkdir(exist_ok=True)
    weights = work / "weights.npz"
    np.savez(weights, *[variable.numpy() for variable in trained.model.weights])
    try:
        trained.model.save(path)
        problem = _problem(path, trained.run.model_module, weights)
    except Exception as error:  # the user's get_config, or a model that cannot be described
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        path.unlink(missing_ok=True)
        log.warning(
            "no .keras copy is kept, since it could not be loaded again: %s. Decorate custom "
            "classes with @keras.saving.register_keras_serializable() and replace Lambda layers",
            problem,
        )
    return problem


def _problem(path: Path, module: str, weights: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", keras_check.__name__, str(path), module, str(weights)],
        capture_output=True,
        text=True,
        timeout=CHECK_SECS,
    )
    if ended.returncode == 0:
        return ""
    lines = [line for line in ended.stderr.strip().splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("TypeError", "ValueError"))]
    # Of chained exceptions the first one printed is the cause.
    return named[0] if named else "\n".join(lines[-1:]) or f"exit code {ended.returncode}"
