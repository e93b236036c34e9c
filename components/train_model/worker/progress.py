"""What a run remembers across restarts beside its weights: training curve and early stopping."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# The training curve keeps about so many loss records, whatever the number of steps.
RECORDS = 400


class History:
    """The training curve: every step's loss in exactly one record, whatever the restarts."""

    def __init__(self, target: int) -> None:
        """`target`: steps of the whole run."""
        self._interval = max(1, target // RECORDS)
        self._records: list[dict[str, float]] = []
        self._pending: list[float] = []
        self.validated_at = -1

    def add(self, step: int, losses: np.ndarray[Any, Any], rate_at: Callable[[int], float]) -> None:
        """Add the losses of the steps that end with `step`; `rate_at`: learning rate of a step."""
        first = step - len(losses)
        for index, loss in enumerate(losses):
            self._pending.append(float(loss))
            if (first + index + 1) % self._interval == 0:
                self._flush(first + index + 1, rate_at)

    def add_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a validation after `step`."""
        self._records.append({"step": step, "time": round(time.time(), 3), **metrics})
        self.validated_at = step

    def records(self) -> list[dict[str, float]]:
        """All records in order, the unfinished interval included."""
        rest = []
        if self._pending:
            step = int(self._last_step()) + len(self._pending)
            rest = [self._record(step)]
        return [*self._records, *rest]

    def state(self) -> dict[str, Any]:
        """JSON form for a checkpoint."""
        return {
            "records": list(self._records),
            "pending": list(self._pending),
            "validated_at": self.validated_at,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._records = list(state["records"])
        self._pending = list(state["pending"])
        self.validated_at = state["validated_at"]

    def _flush(self, step: int, rate_at: Callable[[int], float]) -> None:
        self._records.append({**self._record(step), "learning_rate": rate_at(step)})
        self._pending.clear()

    def _record(self, step: int) -> dict[str, float]:
        loss = float(np.mean(self._pending))
        count = len(self._pending)
        return {"step": step, "steps": count, "time": round(time.time(), 3), "loss": loss}

    def _last_step(self) -> float:
        return max((record["step"] for record in self._records if "loss" in record), default=0)


class EarlyStopping:
    """Whether validation has stopped getting better; every worker comes to the same answer."""

    def __init__(self, metric: str, patience: int) -> None:
        """`metric`: a validation metric, smaller is better after a `-` or for losses and errors."""
        self._metric = metric.removeprefix("-")
        self._smaller = metric.startswith("-") or any(
            word in metric for word in ("loss", "error", "mae", "mse")
        )
        self._patience = patience
        self._best = 0.0
        self._since = 0
        self.best_step = -1

    @property
    def stopped(self) -> bool:
        """Whether patience is at an end."""
        return bool(self._patience) and self._since >= self._patience

    @property
    def reason(self) -> str:
        """Why training stopped, empty if it did not."""
        if not self.stopped:
            return ""
        return (
            f"early stopping: {self._metric} was best at step {self.best_step} ({self._best:.5g}) "
            f"and did not improve in {self._since} validations"
        )

    def observe(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take note of a validation; whether it is the best so far.

        Raises:
            InputError: the metric is not among those that validation computes.
        """
        from components.contracts.errors import InputError

        if not self._metric:
            return False
        if self._metric not in metrics:
            raise InputError(
                f"early_stopping_metric {self._metric!r} is not computed; validation has "
                f"{', '.join(metrics)}"
            )
        value = metrics[self._metric]
        better = self.best_step < 0 or (value < self._best if self._smaller else value > self._best)
        if better:
            self._best, self.best_step, self._since = value, step, 0
        else:
            self._since += 1
        return better

    def state(self) -> dict[str, Any]:
        """JSON form for a checkpoint."""
        return {"best": self._best, "best_step": self.best_step, "since": self._since}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._best, self._since = state["best"], state["since"]
        self.best_step = state["best_step"]


class DataWait:
    """Whether training waits for its input too much, judged over the last stretch of time."""

    def __init__(self, *, share: float = 0.05, over_secs: float = 60.0) -> None:
        """Warn above `share` of `over_secs` seconds."""
        self._share = share
        self._over = over_secs
        self._from = (0.0, 0.0)

    def observe(self, waited: float, total: float) -> str:
        """Take note of seconds waited and seconds trained so far; a warning, or "" for none."""
        waited_before, total_before = self._from
        stretch = total - total_before
        if stretch < self._over:
            return ""
        self._from = (waited, total)
        share = (waited - waited_before) / stretch
        if share <= self._share:
            return ""
        return (
            f"training waited for data {share:.0%} of the last {stretch:.0f} s: give the workers "
            "more CPU, make preprocess cheaper, or convert with the packed layout"
        )
