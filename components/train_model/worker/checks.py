"""What ends training for good: a model that does not fit its label, a loss that is not a number."""

from typing import Any

import numpy as np

from components.contracts.errors import InputError, PermanentError
from components.train_model.worker.input import BatchPlan


def check_outputs(model: Any, task: str, num_classes: int) -> None:
    """Check the width of a Keras model's first output against the label's.

    Raises:
        InputError: they differ.
    """
    outputs = model.output_shape
    first = outputs[0] if isinstance(outputs, list) else outputs
    if isinstance(first, dict):
        first = next(iter(first.values()))
    width = {"binary": 1, "regression": 1, "multiclass": num_classes}[task]
    if not isinstance(first, tuple) or first[-1] not in (width, None):
        raise InputError(
            f"the model's output has shape {first}; a {task} label needs [batch, {width}]"
            + (" (probabilities after a softmax)" if task == "multiclass" else "")
        )


def check_finite(losses: Any, step: int, plan: BatchPlan, split: str) -> None:
    """Check the losses of the steps that followed step `step`.

    Raises:
        PermanentError: one is not finite; the message names the step and its batch.
    """
    if np.isfinite(losses).all():
        return
    bad = int(np.flatnonzero(~np.isfinite(losses))[0])
    records = plan.records((step + bad) * plan.accumulation)
    raise PermanentError(
        f"the loss is {losses[bad]} at step {step + bad + 1} "
        f"(epoch {(step + bad) // plan.steps_per_epoch + 1}): training stops, and the last "
        f"committed checkpoint is from before it. The batch of worker {plan.worker} began with the "
        f"records {records[:8].tolist()} of split {split!r}. Look for infinite or huge feature "
        "values there, lower the learning rate, or set clip_norm"
    )
