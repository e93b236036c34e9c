"""Parts converted side by side: as processes of this machine, or as shares of several machines.

What a part does depends on the plan alone. A finished part leaves a record beside its shards, so
that the next attempt goes on where this one was killed.
"""

import ctypes
import fcntl
import itertools
import json
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from components.contracts.errors import RetryableError
from components.make_tfrecords.infer import Evidence, gather, joined_text
from components.make_tfrecords.inputs import Inputs, open_readers
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.part import PartConverter, PartResult
from components.make_tfrecords.plan import Plan
from components.make_tfrecords.progress import Progress
from components.make_tfrecords.readers.base import Segment
from components.storage.base import Store
from components.storage.errors import ObjectNotFoundError
from components.storage.open import open_store

WORK_FOLDER = "work"
_PR_SET_PDEATHSIG = 1
_POLL_SECS = 0.5
_SAMPLED_SEGMENTS = 16
_FOLDER_PREFIX = "relay-convert-"
_ABANDONED_SECS = 60.0

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Workers:
    """Runs functions of parts, in this process or in several."""

    def __init__(self, inputs: Inputs, options: ConvertOptions) -> None:
        self._inputs = inputs
        self._options = options

    def gather(
        self, parts: Sequence[Sequence[Segment]], *, sampled: bool
    ) -> list[tuple[str, dict[str, Evidence]]]:
        """What the rows of every part, or a few rows of every source, show, in order."""
        if sampled:
            parts = _by_source(parts)
        tasks = [(_sample_source if sampled else _gather_part, (part,)) for part in parts]
        results: list[Any] = [None] * len(parts)
        processes = 1 if sampled else self._num_processes(len(parts))
        for index, result in self._run(tasks, processes, Progress("read")):
            results[index] = result
        return [pair for part in results for pair in part]

    def convert(self, plan: Plan, indices: Sequence[int], output_uri: str) -> None:
        """Convert the parts with these numbers, but those whose records are there already."""
        store = open_store(output_uri)
        todo = [index for index in indices if load_result(store, plan, index) is None]
        if len(todo) < len(indices):
            log.info("%d of %d parts were converted before", len(indices) - len(todo), len(indices))
        tasks = [(_convert_part, (plan, index, output_uri)) for index in todo]
        for _ in self._run(tasks, self._num_processes(len(todo)), Progress("converted")):
            pass

    def _num_processes(self, num_tasks: int) -> int:
        wanted = self._options.processes or len(os.sched_getaffinity(0))
        return max(1, min(wanted, num_tasks))

    def _run(
        self,
        tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
        processes: int,
        progress: Progress,
    ) -> Iterator[tuple[int, Any]]:
        if processes == 1:
            worker = _Worker(self._inputs, self._options, progress.add)
            for index, (function, arguments) in enumerate(tasks):
                yield index, function(worker, *arguments)
        elif tasks:
            yield from self._run_in_processes(tasks, processes, progress)
        progress.finish()

    def _run_in_processes(
        self,
        tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
        processes: int,
        progress: Progress,
    ) -> Iterator[tuple[int, Any]]:
        context = multiprocessing.get_context("spawn")
        counter = context.Value("q", 0)
        with ProcessPoolExecutor(
            processes, context, _start_worker, (self._inputs, self._options, counter, os.getpid())
        ) as pool:
            futures = {
                pool.submit(_run_task, function, arguments): index
                for index, (function, arguments) in enumerate(tasks)
            }
            try:
                yield from _completed(futures, lambda: progress.at(counter.value))
            except BrokenProcessPool as error:
                raise RetryableError(
                    "a process of the conversion was killed, probably for want of memory: "
                    "give more of it, or set processes to a smaller number"
                ) from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _completed(
    futures: dict[Future[Result], int], on_poll: Callable[[], None]
) -> Iterator[tuple[int, Result]]:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, _POLL_SECS, FIRST_COMPLETED)
        on_poll()
        for future in done:
            yield futures[future], future.result()


class _Worker:
    """What a process keeps between tasks."""

    def __init__(
        self, inputs: Inputs, options: ConvertOptions, on_rows: Callable[[int], None]
    ) -> None:
        self.options = options
        self.readers = open_readers(inputs, options)
        self.on_rows = on_rows


_worker: _Worker | None = None


def _start_worker(inputs: Inputs, options: ConvertOptions, counter: Any, parent: int) -> None:
    """Open the readers; end with the parent, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def count(num_rows: int) -> None:
        with counter.get_lock():
            counter.value += num_rows

    global _worker
    _worker = _Worker(inputs, options, count)


def _run_task(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_worker, *arguments)


def _by_source(parts: Sequence[Sequence[Segment]]) -> list[list[Segment]]:
    segments = (segment for part in parts for segment in part)
    return [list(found) for _, found in itertools.groupby(segments, lambda s: s.source)]


def _gather_part(worker: _Worker, part: Sequence[Segment]) -> list[tuple[str, dict[str, Evidence]]]:
    found = []
    for segment in part:
        reader = worker.readers[segment.source]
        evidence: dict[str, Evidence] = {}
        rows = reader.read(segment.start, segment.stop, None)
        gather(rows, evidence, worker.options, reader.name)
        found.append((reader.name, evidence))
    return found


def _sample_source(
    worker: _Worker, segments: Sequence[Segment]
) -> list[tuple[str, dict[str, Evidence]]]:
    reader = worker.readers[segments[0].source]
    evidence: dict[str, Evidence] = {}
    samples = (rows for s in _spread(segments) for rows in reader.sample(s.start, s.stop))
    gather(joined_text(samples), evidence, worker.options, reader.name)
    return [(reader.name, evidence)]


def _spread(segments: Sequence[Segment]) -> Sequence[Segment]:
    """At most `_SAMPLED_SEGMENTS` of them, from the first to the last."""
    count = min(len(segments), _SAMPLED_SEGMENTS)
    return [segments[round(n * (len(segments) - 1) / max(count - 1, 1))] for n in range(count)]


def _convert_part(worker: _Worker, plan: Plan, index: int, output_uri: str) -> None:
    store = open_store(output_uri)
    with temporary_folder(worker.options) as folder:
        converter = PartConverter(plan, index, worker.options, folder)
        result = converter.convert(worker.readers, store, worker.on_rows)
    record = {"plan": plan.digest, "result": result.to_json()}
    store.write(_record_name(index), json.dumps(record).encode())


def load_result(store: Store, plan: Plan, index: int) -> PartResult | None:
    """What a part of this plan left when it was converted, or None if it was not."""
    try:
        record = json.loads(store.read(_record_name(index)))
    except (ObjectNotFoundError, ValueError):
        return None
    return PartResult.from_json(record["result"]) if record["plan"] == plan.digest else None


@contextmanager
def temporary_folder(options: ConvertOptions) -> Iterator[Path]:
    """A folder for temporary files in the workspace; those of killed processes are removed."""
    workspace = Path(options.workspace or tempfile.gettempdir())
    for path in workspace.glob(f"{_FOLDER_PREFIX}*"):
        _remove_if_abandoned(path)
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=workspace) as name:
        lock = os.open(name, os.O_RDONLY)  # ends with the process, however that ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        if time.time() - folder.stat().st_mtime < _ABANDONED_SECS:
            return  # its owner may not have locked it yet
        lock = os.open(folder, os.O_RDONLY)
    except OSError:  # somebody else removed it, or owns it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _record_name(index: int) -> str:
    return f"{WORK_FOLDER}/part-{index:05d}.json"
