"""What of a trainer goes into checkpoints, by name, and back."""

from typing import Any

import numpy as np

from components.contracts.checkpoint import Arrays, numbered
from components.contracts.errors import InputError
from components.train_model.worker.loop import TrainLoop

# Added to a SeedGenerator's state for each worker, so that their dropout masks differ.
_SEED_STRIDE = 0x9E3779B1


class TrainerState:
    """Variables of the model and the optimizer, of which every worker stores the same values.

    A worker's random seeds are its own while it trains: offset from the stored ones by its number.
    """

    def __init__(self, loop: TrainLoop, worker: int) -> None:
        """`loop` knows the variables."""
        self._loop = loop
        self._worker = worker

    def assign(self, arrays: Arrays) -> None:
        """Take up what `snapshot` gave.

        Raises:
            InputError: it is of another model.
        """
        for group, variables in self._loop.checkpointed.items():
            stored = [name for name in arrays if name.startswith(f"{group}/")]
            if len(stored) != len(variables):
                raise InputError(
                    f"the checkpoint holds {len(stored)} {group} variables, the module made "
                    f"{len(variables)}: the model changed since training began"
                )
            for name, variable in numbered(group, variables):
                variable.assign(arrays[name])

    def warm_start(self, arrays: Arrays, uri: str) -> None:
        """Take the model's weights, and nothing of the optimizer, from another run's checkpoint.

        Raises:
            InputError: it is of a model of other shapes.
        """
        variables = dict(numbered("model", self._loop.checkpointed["model"]))
        stored = {name: array for name, array in arrays.items() if name.startswith("model/")}
        wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
        found = {name: array.shape for name, array in stored.items()}
        if wanted != found:
            differ = sorted(n for n in wanted | found if wanted.get(n) != found.get(n))
            raise InputError(
                f"the weights of {uri} do not fit: variable {differ[0]} has shape "
                f"{found.get(differ[0], 'none')} there and {wanted.get(differ[0], 'none')} here. "
                "Build the same model, or train without warm_start_uri"
            )
        for name, variable in variables.items():
            variable.assign(stored[name])

    def offset_seeds(self) -> None:
        """Make the random seeds this worker's own; once, after `assign` or instead of it."""
        for variable in self._seeds():
            variable.assign(_offset(variable.numpy(), self._worker))

    def snapshot(self) -> Arrays:
        """Copies of all variables in host memory; every worker's are the same."""
        arrays = {
            name: np.asarray(variable.numpy())  # numpy() has copied already
            for group, variables in self._loop.checkpointed.items()
            for name, variable in numbered(group, variables)
        }
        seeds = {variable.path for variable in self._seeds()}
        for name, variable in numbered("model", self._loop.checkpointed["model"]):
            if variable.path in seeds:
                arrays[name] = _offset(arrays[name], -self._worker)
        return arrays

    def _seeds(self) -> list[Any]:
        return [v for v in self._loop.checkpointed["model"] if "seed_generator" in v.path]


def _offset(state: Any, worker: int) -> Any:
    moved = np.array(state)
    with np.errstate(over="ignore"):
        moved[0] += np.array(worker * _SEED_STRIDE, np.int64).astype(moved.dtype)
    return moved
