"""The compiled training loop: several steps a call under MultiWorkerMirroredStrategy.

Keras 3's `fit` does not run under this strategy (keras-team/keras#20585), so the step is ours:
forward and backward pass, one reduction of gradients, loss and stop flag, clipping after the
reduction, then the user's optimizer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from components.contracts.checkpoint import numbered
from components.contracts.errors import InputError
from components.train_model.options import TrainOptions

# What one reduction carries beside the gradients.
_LOSS, _STOP, _SECONDS = range(3)

# Their state is in no checkpoint: a resumed run would draw other numbers.
_STATEFUL_RANDOM_OPS = frozenset(
    {"RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"}
    | {"RandomShuffle", "Multinomial", "RandomGammaGrad", "ParameterizedTruncatedNormal"}
)


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What one call of several steps did, the same on every worker but for `data_wait`.

    Attributes:
        losses: mean loss over the global batch of each step done, shape [steps done].
        stop: whether any worker asked to stop; no step was done after the one that said so.
        seconds_per_step: mean over the workers of what they reported with this call.
        data_wait: seconds this worker waited for its input.
    """

    losses: np.ndarray[Any, np.dtype[np.float32]]
    stop: bool
    seconds_per_step: float
    data_wait: float


class ScaledWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate times a factor, rising linearly from zero over the first steps.

    Linear scaling with gradual warm-up: Goyal et al. 2017, arXiv:1706.02677, section 2.
    """

    def __init__(self, base: Any, factor: float, warmup_steps: int) -> None:
        """`base`: a number or another schedule."""
        super().__init__()
        self.base, self.factor, self.warmup_steps = base, factor, warmup_steps

    def __call__(self, step: Any) -> Any:
        """The rate at `step`."""
        rate = self.base(step) if callable(self.base) else self.base
        rate = tf.cast(rate, tf.float32) * self.factor
        if self.warmup_steps:
            done = (tf.cast(step, tf.float32) + 1.0) / self.warmup_steps
            rate = rate * tf.minimum(done, 1.0)
        return rate

    def get_config(self) -> dict[str, Any]:
        """As Keras asks for."""
        return {"base": self.base, "factor": self.factor, "warmup_steps": self.warmup_steps}


class TrainLoop:
    """A model, its optimizer and the compiled functions over them."""

    def __init__(self, strategy: Any, model: Any, options: TrainOptions) -> None:
        """`model` was built and compiled under `strategy.scope()`."""
        self._strategy = strategy
        self._model = model
        self._options = options
        self._averaged = _float_state(model)
        with strategy.scope():
            _scale_learning_rate(model.optimizer, options)
            model.optimizer.build(model.trainable_variables)
        # The gradients are reduced here, once for all micro-batches; the optimizer must not do it
        # again. Keras has no public switch for that.
        for optimizer in (model.optimizer, getattr(model.optimizer, "inner_optimizer", None)):
            if optimizer is not None:
                optimizer._all_reduce_sum_gradients = lambda pairs: pairs
        # AutoGraph would rewrite every function that is called from here, the user's included: most
        # of the time of a restart. Keras' own `fit` does not use it either.
        self._steps = tf.function(self._run_steps, autograph=False)
        self._evaluate = tf.function(self._run_evaluation)
        self._finish = tf.function(self._reduce_metrics, autograph=False)
        self._meet = tf.function(self._reduce_totals, autograph=False)

    @property
    def checkpointed(self) -> dict[str, Sequence[Any]]:
        """Variables by group: all that a step depends on."""
        return {"model": self._model.variables, "optimizer": self._model.optimizer.variables}

    @property
    def trained(self) -> list[str]:
        """Names of the trained weights in a checkpoint."""
        trained = {id(variable) for variable in self._model.trainable_variables}
        pairs = numbered("model", self._model.variables)
        return [name for name, variable in pairs if id(variable) in trained]

    def learning_rate_at(self, step: int) -> float:
        """Rate that the optimizer took in `step`, the first being 1."""
        optimizer = getattr(self._model.optimizer, "inner_optimizer", self._model.optimizer)
        rate = optimizer._learning_rate  # the schedule itself, if it is one
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(step - 1)
        return float(keras.ops.convert_to_numpy(rate))

    def run(self, batches: Any, count: int, *, stop: bool, seconds_per_step: float) -> CallResult:
        """Do up to `count` steps.

        Args:
            batches: iterator over (x, y) micro-batches of this worker.
            count: steps, the same on every worker.
            stop: whether this worker wants to stop after the next step.
            seconds_per_step: what this worker has measured, to be averaged.
        """
        losses, last, wait = self._steps(
            batches,
            tf.constant(count, tf.int32),
            tf.constant(float(stop), tf.float32),
            tf.constant(seconds_per_step, tf.float32),
        )
        last = last.numpy()
        return CallResult(
            losses=losses.numpy(),
            stop=bool(last[_STOP] > 0),
            seconds_per_step=float(last[_SECONDS]) / self._options.workers,
            data_wait=float(wait.numpy()),
        )

    def check_reproducible(self, batches: Any) -> None:
        """Trace the step and look for randomness that no checkpoint holds.

        Raises:
            InputError: the model draws from TensorFlow's global generator; names the operation.
        """
        zero = tf.constant(0.0, tf.float32)
        graph = self._steps.get_concrete_function(
            batches, tf.constant(1, tf.int32), zero, zero
        ).graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        for node in nodes:
            if node.op in _STATEFUL_RANDOM_OPS:
                raise InputError(
                    f"the model draws random numbers with {node.op} ({node.name}), whose state is "
                    "in no checkpoint, so a resumed run would differ. Use keras.random with a "
                    "keras.random.SeedGenerator, or tf.random.stateless_*; or set "
                    "deterministic=false to accept the difference"
                )

    def evaluate(self, batches: tf.data.Dataset, worker_has_data: bool) -> dict[str, float]:
        """Loss and compiled metrics over all workers' batches, the same on every worker."""
        for metric in self._model.metrics:
            metric.reset_state()
        loss, count = 0.0, 0
        if worker_has_data:
            loss, count = (value.numpy() for value in self._evaluate(batches))
        totals, metrics = self._finish(tf.constant([loss, count], tf.float32))
        total_loss, total_count = totals.numpy()
        values = {"val_loss": float(total_loss) / max(float(total_count), 1.0)}
        for name, value in metrics.items():
            if name != "loss":
                values[f"val_{name}"] = float(value.numpy())
        return values

    def meet(self, *, done: bool, failed: bool) -> tuple[bool, bool]:
        """Meet all workers: whether all of them are done, and whether any has failed."""
        totals = self._meet(tf.constant([done, failed], tf.float32)).numpy()
        return bool(totals[0] == self._options.workers), bool(totals[1])

    def _reduce_totals(self, values: Any) -> Any:
        def reduce(values: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # An input by itself has no device to be reduced to.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        return self._strategy.run(reduce, args=(values,))

    def build_metrics(self, x: Any, y: Any) -> None:
        """Create the compiled metrics' variables from one batch, without changing the model."""
        with self._strategy.scope():
            outputs = self._model(x, training=False)
            self._model.compute_metrics(x, y, outputs)

    def _run_steps(self, batches: Any, count: Any, stop: Any, seconds: Any) -> Any:
        def goes_on(done: Any, losses: Any, reduced: Any, wait: Any) -> Any:
            return (done < count) & (reduced[_STOP] == 0.0)

        def step(done: Any, losses: Any, reduced: Any, wait: Any) -> Any:
            before = _clock()
            with tf.control_dependencies([before]):
                micro = [batches.get_next() for _ in range(self._options.gradient_accumulation)]
            with tf.control_dependencies(tf.nest.flatten(micro)):
                wait += _clock() - before
            reduced = self._strategy.run(self._step, args=(micro, stop, seconds))
            reduced = tf.ensure_shape(reduced, [3])
            return done + 1, losses.write(done, reduced[_LOSS]), reduced, wait

        losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        start = (tf.constant(0), losses, tf.zeros([3]), tf.constant(0.0, tf.float64))
        _, losses, reduced, wait = tf.while_loop(goes_on, step, start)
        return losses.stack(), reduced, wait

    def _step(self, micro: list[Any], stop: Any, seconds: Any) -> Any:
        trainable = self._model.trainable_variables
        loss, gradients = self._forward_backward(micro[0])
        for batch in micro[1:]:
            more_loss, more = self._forward_backward(batch)
            loss += more_loss
            gradients = [a + b for a, b in zip(gradients, more, strict=True)]
        scale = 1.0 / len(micro)
        context = tf.distribute.get_replica_context()
        packed = tf.stack([loss * scale, stop, seconds])
        packed, gradients = self._reduced(context, packed, gradients, scale)
        self._average_statistics(context)
        if self._options.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._options.clip_norm)
        self._model.optimizer.apply(gradients, trainable)
        return packed

    def _average_statistics(self, context: Any) -> None:
        if self._averaged:
            values = [tf.identity(variable.value) for variable in self._averaged]
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
            for variable, mean in zip(self._averaged, means, strict=True):
                variable.assign(mean)

    def _forward_backward(self, batch: Any) -> tuple[Any, list[Any]]:
        x, y = batch
        compute = tf.function(self._loss, jit_compile=True) if self._options.xla else self._loss
        with tf.GradientTape() as tape:
            loss = compute(x, y)
            scaled = self._model.optimizer.scale_loss(loss)
        values = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(scaled, values)
        return tf.cast(loss, tf.float32), [
            tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, value in zip(gradients, values, strict=True)
        ]

    def _loss(self, x: Any, y: Any) -> Any:
        outputs = self._model(x, training=True)
        return self._model.compute_loss(x=x, y=y, y_pred=outputs, training=True)

    def _reduced(
        self, context: Any, packed: Any, gradients: list[Any], scale: float
    ) -> tuple[Any, list[Any]]:
        gradients = [gradient * tf.cast(scale, gradient.dtype) for gradient in gradients]
        total = tf.distribute.ReduceOp.SUM
        if self._options.reduced_precision == "none":
            packed, *gradients = context.all_reduce(total, [packed, *gradients])
            return packed, gradients
        small = [tf.cast(gradient, tf.bfloat16) for gradient in gradients]
        packed = context.all_reduce(total, packed)
        small = context.all_reduce(total, small)
        return packed, [
            tf.cast(value, gradient.dtype) for value, gradient in zip(small, gradients, strict=True)
        ]

    def _run_evaluation(self, batches: tf.data.Dataset) -> Any:
        total, count = tf.constant(0.0), tf.constant(0.0)
        for batch in batches:
            loss, size = self._strategy.run(self._evaluation_step, args=(batch,))
            total += loss * size
            count += size
        return total, count

    @tf.autograph.experimental.do_not_convert
    def _evaluation_step(self, batch: Any) -> tuple[Any, Any]:
        x, y = batch
        outputs = self._model(x, training=False)
        loss = self._model.compute_loss(x=x, y=y, y_pred=outputs, training=False)
        self._model.compute_metrics(x, y, outputs)
        # compute_loss has divided by the number of replicas, for a sum that is not taken here.
        loss = tf.cast(loss, tf.float32) * self._strategy.num_replicas_in_sync
        return loss, tf.cast(tf.shape(y)[0], tf.float32)

    def _reduce_metrics(self, totals: Any) -> Any:
        def reduce(totals: Any) -> Any:
            context = tf.distribute.get_replica_context()
            variables = [v for metric in self._model.metrics for v in metric.variables]
            values = [tf.cast(tf.identity(v.value), tf.float32) for v in variables]
            values = [tf.identity(totals), *values]
            totals, *values = context.all_reduce(tf.distribute.ReduceOp.SUM, values)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(tf.cast(value, variable.dtype))
            return totals, self._model.get_metrics_result()

        return self._strategy.run(reduce, args=(totals,))


def _clock() -> Any:
    """Seconds of a monotonic clock, in the graph; tf.timestamp is refused under determinism."""
    seconds = tf.numpy_function(lambda: np.float64(time.perf_counter()), [], tf.float64)
    return tf.ensure_shape(seconds, [])


def steps_in_a_call(options: TrainOptions, seconds_per_step: float) -> int:
    """Steps for the next call: about half a second of work, so that signals are seen in time."""
    if options.steps_per_call:
        return options.steps_per_call
    if seconds_per_step <= 0.0:
        return 1
    return int(min(max(0.5 / seconds_per_step, 1.0), 50.0))


def _float_state(model: Any) -> list[Any]:
    """Running statistics (BatchNorm): averaged over the workers in every step, so all agree."""
    return [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating
    ]


def _scale_learning_rate(optimizer: Any, options: TrainOptions) -> None:
    factor = options.batch_size / options.base_batch_size if options.base_batch_size else 1.0
    if factor == 1.0 and not options.warmup_steps:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    base = inner._learning_rate  # the schedule itself; the public property is its current value
    if not isinstance(base, keras.optimizers.schedules.LearningRateSchedule):
        base = float(keras.ops.convert_to_numpy(base))
    inner.learning_rate = ScaledWarmup(base, factor, options.warmup_steps)
