"""Options of the evaluation step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.contracts.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What to score, and what it must reach.

    Attributes:
        dataset_uri: committed dataset that the model was trained on.
        run_uri: the training run.
        split: split to score.
        checkpoint: newest, best:METRIC (best:-METRIC where smaller is better) or a step.
        batch_size: examples scored at once; does not change any result.
        thresholds: what decides (JSON), by metric: {"auc": {"min": 0.6, "max": 1.0, "min_change":
            -0.01, "confident": true, "slices": {"carrier": {"min": 0.55}, "origin=JFK": {"min":
            0.6}}}}. min_change and max_change are relative to the champion on the same examples;
            confident compares the interval's end instead of the value.
        slices: columns to slice by (JSON list); ["*"]: all that can be.
        slice_values: most frequent values of a column that become slices of their own.
        min_examples: fewer examples cannot decide; also the least of a slice with a threshold.
        confidence: of the intervals.
        champion_root: export root whose champion is scored on the same examples; empty: none.
        processes: processes that score shares of the split at the same time.
    """

    dataset_uri: str
    run_uri: str
    split: str = "eval"
    checkpoint: str = "newest"
    batch_size: int = 4096
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    slices: tuple[str, ...] = ("*",)
    slice_values: int = 20
    min_examples: int = 100
    confidence: float = 0.95
    champion_root: str = ""
    processes: int = 1

    def __post_init__(self) -> None:
        """Raises InputError for values that cannot work."""
        for name in ("batch_size", "slice_values", "min_examples", "processes"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"option {name}: received {getattr(self, name)}, expected 1 or more"
                )
        if not 0.5 <= self.confidence < 1:
            raise InputError(
                f"option confidence: received {self.confidence}, expected a number in [0.5, 1), "
                "such as 0.95"
            )
        for name in ("dataset_uri", "run_uri", "split", "checkpoint"):
            if not getattr(self, name):
                raise InputError(f"option {name} is empty")
