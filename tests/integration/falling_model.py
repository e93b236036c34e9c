"""A user's model whose evaluation is killed the first time: a step that fails and is retried."""

import os
import signal
import sys
from pathlib import Path

from tests.train_model import small_model


def build_model(schema, hyperparameters):
    fell = Path(hyperparameters["marker"])
    if "evaluate_model" in sys.argv[0] and not fell.exists():
        fell.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return small_model.build_model(schema, hyperparameters)
