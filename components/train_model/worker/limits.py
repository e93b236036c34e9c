"""How long a phase of the trainer may last without progress: given, or learned from calls seen."""

from collections import deque
from statistics import median

from components.train_model.options import TrainOptions

SAFETY_FACTOR = 20.0
_SAMPLES = 50
# Phases that belong to another one's limit: a trainer that was told what to do and does not begin,
# and one that has nothing left to do and does not end.
_PART_OF = {"waiting": "imports", "done": "barrier"}


class PhaseLimits:
    """Limits by phase; that of `step` grows with the calls observed, never below what is given."""

    def __init__(self, options: TrainOptions) -> None:
        self._options = options
        self._calls: deque[float] = deque(maxlen=_SAMPLES)

    def observe_call(self, seconds: float) -> None:
        """Take note of the time between two signs of progress in the phase `step`."""
        self._calls.append(seconds)

    def limit_of(self, phase: str) -> float:
        """Seconds."""
        given = self._options.limit_of(_PART_OF.get(phase, phase))
        if phase != "step" or not self._calls or "step" in self._options.limits:
            return given
        return max(given, SAFETY_FACTOR * median(self._calls))
