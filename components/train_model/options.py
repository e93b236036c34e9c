"""Options of the training step: one object for both launchers."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from components.contracts.errors import InputError

# Seconds a phase of the trainer may take without a sign of progress; `step` is a floor under what
# is learned from the steps seen. Generous: a wrong alarm costs a restart. In `data` a fetched shard
# is progress; in `ready` a trainer waits for peers that still fetch theirs.
DEFAULT_LIMITS: dict[str, float] = {
    "agreement": 600.0,
    "imports": 180.0,
    "data": 1800.0,
    "restore": 600.0,
    "ready": 7200.0,
    "rendezvous": 120.0,
    "build": 300.0,
    "first_step": 600.0,
    "step": 60.0,
    "evaluation": 600.0,
    "checkpoint": 600.0,
    "barrier": 900.0,
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and how.

    Attributes:
        dataset_uri: committed dataset.
        model_module: dotted path of the module that defines build_model(schema, hyperparameters).
        hyperparameters: passed to build_model (JSON).
        split: split to train on.
        validation_split: split to validate on at the end of each epoch; empty: none.
        validation_examples: validate on at most so many examples; 0: all.
        workers: number of worker processes that train synchronously.
        launcher: local (this machine) or kubernetes (a TFJob).
        batch_size: examples of one step over all workers together.
        epochs: passes over the training split; an incomplete last batch is left out.
        max_steps: stop after so many steps; 0: when the epochs are done.
        steps_per_call: steps inside one call of the compiled function; 0: chosen.
        seed: of shuffling, initial weights and dropout.
        deterministic: use deterministic kernels, so that a resumed run is bit-identical.
        checkpoint_steps: commit a checkpoint every so many steps; 0: every epoch.
        warm_start_uri: training run, or export root (its champion's run), with whose newest weights
            training begins instead of new ones; an export root without a champion: new ones.
        keep_newest: checkpoints to keep; the best by early_stopping_metric is kept beside them.
        keep_every: keep each checkpoint whose step is a multiple of this as well; 0: none.
        early_stopping_metric: validation metric to watch (val_loss, val_auc, -val_loss: smaller is
            better is assumed for names that contain loss or error); empty: no early stopping.
        early_stopping_patience: epochs without improvement before training stops; 0: never.
        mixed_precision: none, bfloat16 or float16 compute with float32 variables.
        xla: compile the step with XLA.
        gradient_accumulation: micro-batches a worker sums before one reduction.
        reduced_precision: all-reduce gradients as float32 (none) or bfloat16.
        clip_norm: clip the summed gradient to this global norm; 0: no clipping.
        base_batch_size: batch size the learning rate was chosen for; the rate is scaled linearly by
            batch_size / base_batch_size (Goyal et al. 2017, arXiv:1706.02677); 0: no scaling.
        warmup_steps: steps over which the learning rate rises linearly from zero; 0: none.
        communication: auto, ring or nccl.
        nccl: NCCL_* variables of the trainers, such as NCCL_DEBUG and NCCL_SOCKET_IFNAME (JSON).
        heartbeat_secs: time after which a silent peer process counts as lost.
        collective_timeout_secs: time after which a collective operation fails.
        limits: seconds by phase without progress before a trainer is killed and restarted (JSON).
        max_restarts: restarts without a newly committed checkpoint before the run fails.
        warm_spare: keep a second process with its imports done ready beside each trainer.
        local_tier: keep the newest checkpoints on each worker's own disk too, for fast restarts.
        port: of the supervisors (agreement, /healthz, /metrics) on a cluster; 0: any free one.
        termination_secs: time a SIGTERM leaves for the last checkpoint.
        log_secs: seconds between two progress lines.
        kubernetes: fields of components.train_model.launch.options (image, resources, env, ...),
            for launcher=kubernetes (JSON).
    """

    dataset_uri: str
    model_module: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    validation_split: str = "eval"
    validation_examples: int = 0
    workers: int = 2
    launcher: Literal["local", "kubernetes"] = "local"
    batch_size: int = 256
    epochs: int = 1
    max_steps: int = 0
    steps_per_call: int = 0
    seed: int = 0
    deterministic: bool = True
    checkpoint_steps: int = 0
    warm_start_uri: str = ""
    keep_newest: int = 3
    keep_every: int = 0
    early_stopping_metric: str = ""
    early_stopping_patience: int = 0
    mixed_precision: Literal["none", "bfloat16", "float16"] = "none"
    xla: bool = False
    gradient_accumulation: int = 1
    reduced_precision: Literal["none", "bfloat16"] = "none"
    clip_norm: float = 0.0
    base_batch_size: int = 0
    warmup_steps: int = 0
    communication: Literal["auto", "ring", "nccl"] = "auto"
    nccl: Mapping[str, str] = field(default_factory=dict)
    heartbeat_secs: float = 10.0
    collective_timeout_secs: float = 60.0
    limits: Mapping[str, float] = field(default_factory=dict)
    max_restarts: int = 3
    warm_spare: bool = True
    local_tier: bool = True
    port: int = 0
    termination_secs: float = 25.0
    log_secs: float = 5.0
    kubernetes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what can be checked without the data. Raises InputError."""
        for name in ("workers", "batch_size", "epochs", "gradient_accumulation", "keep_newest"):
            _at_least(name, getattr(self, name), 1)
        for name in (
            *("max_steps", "steps_per_call", "checkpoint_steps", "keep_every", "max_restarts"),
            *("early_stopping_patience", "clip_norm", "base_batch_size", "warmup_steps"),
            *("validation_examples", "port"),
        ):
            _at_least(name, getattr(self, name), 0)
        for name in ("heartbeat_secs", "collective_timeout_secs", "termination_secs", "log_secs"):
            _at_least(name, getattr(self, name), 0.1)
        if self.batch_size % (self.workers * self.gradient_accumulation):
            raise InputError(
                f"batch_size {self.batch_size} cannot be split over {self.workers} workers with "
                f"{self.gradient_accumulation} micro-batches each: it must be a multiple of "
                f"{self.workers * self.gradient_accumulation}"
            )
        for name in self.nccl:
            if not re.fullmatch(r"NCCL_[A-Z0-9_]+", name):
                raise InputError(f"nccl: {name!r} is no variable of NCCL: they begin with NCCL_")
        unknown = sorted(set(self.limits) - set(DEFAULT_LIMITS))
        if unknown:
            raise InputError(f"limits: no phase {unknown[0]!r}; phases are {list(DEFAULT_LIMITS)}")
        for phase, seconds in self.limits.items():
            _at_least(f"limits[{phase}]", seconds, 0.1)

    @property
    def micro_batch_size(self) -> int:
        """Examples of one forward pass of one worker."""
        return self.batch_size // self.workers // self.gradient_accumulation

    def limit_of(self, phase: str) -> float:
        """Seconds that `phase` may take without progress."""
        return float(self.limits.get(phase, DEFAULT_LIMITS[phase]))

    def to_json(self) -> str:
        """JSON of every option, for the worker processes and the lineage."""
        return json.dumps(dataclasses.asdict(self))


# Options that change neither weights nor data order: a run may be continued with others.
_OPERATIONAL = frozenset(
    {"launcher", "steps_per_call", "checkpoint_steps", "keep_newest", "keep_every"}
    | {"heartbeat_secs", "collective_timeout_secs", "limits", "max_restarts", "warm_spare"}
    | {"local_tier", "port", "termination_secs", "log_secs", "communication", "nccl", "dataset_uri"}
    | {"kubernetes"}
)


def weight_options(options: TrainOptions) -> dict[str, Any]:
    """The options that the weights depend on; part of the run's fingerprint."""
    values = dataclasses.asdict(options)
    return {name: value for name, value in values.items() if name not in _OPERATIONAL}


def _at_least(name: str, value: float, minimum: float) -> None:
    if not math.isfinite(value) or value < minimum:
        raise InputError(f"{name} is {value}, expected at least {minimum:g}")
