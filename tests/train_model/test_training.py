"""Training runs that end for a reason, each with one message that says what to do."""

import numpy as np
import pytest

from components.contracts.checkpoint import committed_steps, load_newest
from components.contracts.errors import EXIT_BAD_INPUT, EXIT_PERMANENT

ODD = "tests.train_model.odd_models"


@pytest.mark.parametrize(
    ("how", "code", "texts"),
    [
        ("raise", EXIT_PERMANENT, ["build_model failed", "units must be positive"]),
        ("not-compiled", EXIT_BAD_INPUT, ["not compiled", "model.compile("]),
        ("wide", EXIT_BAD_INPUT, ["binary", "[batch, 1]"]),
        ("noise", EXIT_BAD_INPUT, ["RandomStandardNormal", "SeedGenerator"]),
        ("diverge", EXIT_PERMANENT, ["the loss is", "at step", "learning rate"]),
        ("die", EXIT_PERMANENT, ["SIGKILL", "since step 0", "likely out of memory"]),
    ],
)
def test_a_model_that_cannot_be_trained_ends_the_run_for_good(train, how, code, texts):
    process = train(module=ODD, hyperparameters={"how": how}, max_restarts=1, checkpoint_steps=1)
    assert process.finish() == code, process.log
    for text in texts:
        assert text in process.message, process.message
    assert process.message.startswith("worker ")
    assert process.completion is None
    if how == "diverge" and committed_steps(process.store):
        assert all(np.isfinite(array).all() for array in load_newest(process.store)[1].values())


def test_one_worker_needs_no_cluster(train):
    process = train(workers=1, epochs=2, validation_split="eval")
    assert process.finish() == 0, process.log
    assert process.completion.num_workers == 1
    assert process.completion.step == 24
    assert [r["step"] for r in process.completion.history if "val_auc" in r] == [12, 24]


def test_validation_early_stopping_and_retention(train):
    process = train(
        epochs=40,
        validation_split="eval",
        checkpoint_steps=0,
        keep_newest=2,
        early_stopping_metric="val_accuracy",
        early_stopping_patience=2,
        gradient_accumulation=2,
        clip_norm=1.0,
        base_batch_size=24,
        warmup_steps=10,
        mixed_precision="bfloat16",
    )
    assert process.finish() == 0, process.log
    completion = process.completion
    assert completion.reason.startswith("early stopping: val_accuracy was best at step")
    validations = [r for r in completion.history if "val_accuracy" in r]
    best = max(validations, key=lambda r: r["val_accuracy"])["step"]
    assert completion.step == validations[-1]["step"] < 480
    steps = committed_steps(process.store)
    assert steps[-2:] == [completion.step - 12, completion.step]
    assert best in steps
    assert len(steps) <= 3
