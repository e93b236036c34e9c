"""Running models over a split: batches in, labels, outputs and slice codes out."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from components.contracts.dataset import Dataset
from components.contracts.errors import InputError
from components.contracts.examples import decode_images, labels_for_loss, parse_encoded
from components.contracts.split import SplitReader
from components.contracts.trained_model import TrainedModel, named_outputs
from components.evaluate_model.slices import SliceColumn
from components.evaluate_model.tally import Batch, Tally

# Tallies are cheapest per example when they get many at once.
TALLY_EXAMPLES = 1 << 16
LOG_SECS = 10.0

log = logging.getLogger("relay.evaluate")

# From raw columns (images encoded) to the scored output, [batch] or [batch, classes].
ServedModel = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What a pass over some shards has found.

    Attributes:
        tally: of the model.
        champion: of the champion, where there is one.
        compiled: the user's compiled loss and metrics.
        reference: outputs of the first examples, in order.
    """

    tally: Tally
    champion: Tally | None
    compiled: "CompiledMetrics"
    reference: list[list[float]]


class CompiledMetrics:
    """The user's compiled loss and metrics over the scored examples."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._usable = True
        self._loss, self._count = 0.0, 0

    def build(self, inputs: Any, labels: Any) -> None:
        """Create the metrics' variables from one batch. Unusable ones are logged, not raised."""
        try:
            outputs = self._model(inputs, training=False)
            self._model.compute_loss(x=inputs, y=labels, y_pred=outputs, training=False)
            self._model.compute_metrics(inputs, labels, outputs)
        except Exception as error:  # user code, or several outputs and one label
            self._usable = False
            log.warning(
                "the compiled loss and metrics are left out, they do not fit one label: %s: %s",
                type(error).__name__,
                str(error).splitlines()[0] if str(error) else "",
            )
        for metric in self._model.metrics:
            metric.reset_state()

    def update(self, inputs: Any, labels: Any, outputs: Any) -> Any:
        """In the graph: count a batch; returns its mean loss."""
        if not self._usable:
            return tf.constant(np.nan, tf.float32)
        loss = self._model.compute_loss(x=inputs, y=labels, y_pred=outputs, training=False)
        self._model.compute_metrics(inputs, labels, outputs)
        return tf.cast(loss, tf.float32)

    def add_loss(self, loss: float, count: int) -> None:
        """Add a batch's mean loss."""
        self._loss += loss * count
        self._count += count

    def state(self) -> list[NDArray[Any]]:
        """Sums that add up over processes: the loss and what the metrics have counted."""
        variables = [v for metric in self._model.metrics for v in metric.variables]
        totals = np.array([self._loss, self._count, float(self._usable)])
        return [totals, *(variable.numpy() for variable in variables)]

    def add_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Add what another process has counted."""
        (loss, count, usable), *counted = state
        self._loss += float(loss)
        self._count += int(count)
        self._usable = self._usable and bool(usable)
        if self._usable:
            variables = [v for metric in self._model.metrics for v in metric.variables]
            for variable, other in zip(variables, counted, strict=True):
                variable.assign_add(other)

    def result(self) -> dict[str, float]:
        """`loss` and the metrics by name."""
        if not self._usable or not self._count:
            return {}
        values = {"loss": self._loss / self._count}
        for name, value in self._model.get_metrics_result().items():
            if name != "loss" and np.ndim(value) == 0:
                values[name] = float(value)
        return values


def score(
    reader: SplitReader,
    dataset: Dataset,
    trained: TrainedModel,
    *,
    tally: Tally,
    slices: Sequence[SliceColumn],
    batch_size: int,
    first: int = 0,
    num_reference: int = 0,
    champion: tuple[ServedModel, Tally] | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Scoring:
    """Score all records of `reader` in one pass; `first` is the number of the first one.

    Raises:
        InputError: a damaged shard, or outputs that are not what the task asks for.
    """
    scorer = _Scorer(dataset, trained, slices, champion[0] if champion else None)
    reference: list[list[float]] = []
    pending = _Pending(tally, champion[1] if champion else None, slices)
    done = 0
    with reader.errors_explained():
        for batch in scorer.prepared(reader.batches(batch_size)):
            labels, outputs, codes, served = scorer.score(batch)
            if done < num_reference:
                reference += outputs[: num_reference - done].tolist()
            pending.add(labels, outputs, codes, served, first + done)
            done += len(labels)
            progress(done)
    pending.flush()
    return Scoring(
        tally=tally,
        champion=champion[1] if champion else None,
        compiled=scorer.compiled,
        reference=reference,
    )


class _Scorer:
    """The graph functions of one pass."""

    def __init__(
        self,
        dataset: Dataset,
        trained: TrainedModel,
        slices: Sequence[SliceColumn],
        served: ServedModel | None,
    ) -> None:
        self._dataset = dataset
        self._trained = trained
        self._slices = slices
        self._served = served
        self.compiled = CompiledMetrics(trained.model)
        self._forward: Any = None

    def prepared(self, serialized: tf.data.Dataset) -> tf.data.Dataset:
        """Parse and preprocess while the model is at work."""
        batches = serialized.map(self._prepare, num_parallel_calls=2, deterministic=True)
        self._specs = batches.element_spec[:2]
        return batches.prefetch(2)

    def score(self, batch: Any) -> tuple[Any, Any, tuple[Any, ...], Any]:
        """Labels, outputs, slice codes and the champion's outputs of one batch, as arrays."""
        inputs, labels, codes, raw = batch
        if self._forward is None:
            self.compiled.build(inputs, labels_for_loss(labels, self._dataset.schema))
            # Traced for batches of any size, since the last one of each shard is smaller.
            forward = tf.function(self._forward_pass)
            self._forward = forward.get_concrete_function(*self._specs)
        outputs, loss = self._forward(inputs, labels)
        self.compiled.add_loss(float(loss), len(labels))
        served = self._served(raw).numpy() if self._served is not None else None
        return labels.numpy(), outputs.numpy(), tuple(code.numpy() for code in codes), served

    def _prepare(self, serialized: Any) -> Any:
        schema = self._dataset.schema
        encoded = parse_encoded(serialized, schema, self._dataset.layout)
        labels = encoded.pop(schema.label.name)
        columns = decode_images(encoded, schema)
        codes = tuple(column.prepare(columns[column.name]) for column in self._slices)
        raw = encoded if self._served is not None else {}
        return self._trained.preprocess(columns), labels, codes, raw

    def _forward_pass(self, inputs: Any, labels: Any) -> tuple[Any, Any]:
        model = self._trained.model
        outputs = model(inputs, training=False)
        loss = self.compiled.update(inputs, labels_for_loss(labels, self._dataset.schema), outputs)
        scored = next(iter(named_outputs(model, outputs).values()))
        return flat_output(scored, self._dataset.schema.task), loss


def flat_output(scored: Any, task: str) -> Any:
    """The scored output without the axis of size 1 that binary and regression models have."""
    if task == "multiclass" or scored.shape.rank == 1:
        return scored
    if scored.shape.rank != 2 or scored.shape[1] not in (1, None):
        raise InputError(
            f"the model's first output has shape {scored.shape}, a {task} label needs [batch, 1]"
        )
    return tf.squeeze(scored, 1)


class _Pending:
    """Collects batches until they are worth tallying."""

    def __init__(self, tally: Tally, champion: Tally | None, slices: Sequence[SliceColumn]) -> None:
        self._slices = slices
        self._tallies = [tally] if champion is None else [tally, champion]
        self._rows: list[tuple[Any, Any, tuple[Any, ...], Any]] = []
        self._first = self._count = 0

    def add(self, labels: Any, outputs: Any, codes: Any, served: Any, first: int) -> None:
        if not self._rows:
            self._first = first
        self._rows.append((labels, outputs, codes, served))
        self._count += len(labels)
        if self._count >= TALLY_EXAMPLES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        labels, outputs, codes, served = zip(*self._rows, strict=True)
        joined = tuple(
            column.encode(np.concatenate(parts))
            for column, parts in zip(self._slices, zip(*codes, strict=True), strict=True)
        )
        for tally, found, code in zip(self._tallies, (outputs, served), (joined, ()), strict=False):
            tally.add(
                Batch(
                    labels=np.concatenate(labels),
                    outputs=np.concatenate(found),
                    codes=code,
                    first=self._first,
                )
            )
        self._rows, self._count = [], 0


@contextlib.contextmanager
def logged_progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress callback that logs every LOG_SECS seconds, and the rate at the end."""
    started = last = time.monotonic()
    seen = 0

    def progress(done: int) -> None:
        nonlocal last, seen
        seen = done
        now = time.monotonic()
        if now - last >= LOG_SECS:
            last = now
            rate = done / (now - started)
            log.info(
                "scored %s of %s examples (%s/s, %.0f s left)",
                f"{done:,}",
                f"{total:,}",
                f"{rate:,.0f}",
                (total - done) / rate,
            )

    yield progress
    seconds = time.monotonic() - started
    log.info("scored %s examples in %.1f s", f"{seen:,}", seconds)
