"""Several processes on one split: each scores some shards, and their tallies add up.

TensorFlow keeps a few cores busy by itself with a small model; beyond that, processes do. The same
examples are in the same groups whatever the number of processes, so the report does not depend on
it.

`python -m components.evaluate_model.shares REQUEST ANSWER` is one of the other processes.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.contracts.command_line import options_from
from components.contracts.dataset import Dataset, Shard, open_dataset
from components.contracts.errors import PermanentError, RetryableError, is_retryable, run_main
from components.contracts.split import SplitReader
from components.contracts.trained_model import load_trained_model
from components.evaluate_model.champion import open_champion
from components.evaluate_model.measure import make_tally
from components.evaluate_model.options import EvaluateOptions
from components.evaluate_model.scoring import Scoring, score
from components.evaluate_model.slices import slice_columns
from components.evaluate_model.tally import Tally, add_up
from components.evaluate_model.thresholds import parse_thresholds, sliced_columns
from components.storage.open import open_store

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Share:
    """Neighbouring shards for one process; `first` is the number of their first example."""

    shards: tuple[Shard, ...]
    first: int

    @property
    def num_examples(self) -> int:
        """Examples in the shards."""
        return sum(shard.num_records for shard in self.shards)


def shares_of(dataset: Dataset, split: str, processes: int) -> list[Share]:
    """Cut a split into at most `processes` shares of about equally many examples."""
    shards = dataset.shards_of(split)
    total = dataset.splits[split]
    parts: list[list[Shard]] = [[] for _ in range(min(processes, len(shards)))]
    seen = 0
    for shard in shards:
        middle = seen + shard.num_records / 2
        parts[min(int(middle * len(parts) / max(total, 1)), len(parts) - 1)].append(shard)
        seen += shard.num_records
    shares, first = [], 0
    for part in (part for part in parts if part):
        shares.append(Share(shards=tuple(part), first=first))
        first += shares[-1].num_examples
    return shares


class OtherProcesses:
    """Processes that score the other shares."""

    def __init__(self, processes: list[tuple[subprocess.Popen[str], Path]]) -> None:
        self._processes = processes

    def add_to(self, scoring: Scoring, champion_version: int) -> None:
        """Wait for all, and add what they have counted.

        Raises:
            PermanentError: one failed; the message is its own.
            RetryableError: one was killed, or the champion changed in the meantime.
        """
        for process, answer in self._processes:
            _, text = process.communicate()
            if process.returncode:
                message = _last_line(text)
                if is_retryable(process.returncode):
                    raise RetryableError(f"a process that scored a share ended: {message}")
                raise PermanentError(f"a process that scored a share failed: {message}")
            arrays = dict(np.load(answer, allow_pickle=False))
            if int(arrays["champion_version"]) != champion_version:
                raise RetryableError("the champion changed while the split was scored")
            _add(scoring, arrays)

    def end(self) -> None:
        """End those that still run."""
        for process, _ in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def other_processes(
    options: EvaluateOptions, step: int, shares: Sequence[Share], folder: Path
) -> Iterator[OtherProcesses]:
    """Start a process for each share; they end with the context at the latest."""
    started = []
    for number, share in enumerate(shares):
        request, answer = folder / f"request-{number}.json", folder / f"answer-{number}.npz"
        body = {
            "options": dataclasses.asdict(options),
            "step": step,
            "first": share.first,
            "shards": [shard.to_json() for shard in share.shards],
            "cache": str(folder / f"cache-{number}"),
        }
        request.write_text(json.dumps(body), encoding="utf-8")
        command = [sys.executable, "-m", __name__, str(request), str(answer)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        started.append((process, answer))
    others = OtherProcesses(started)
    try:
        yield others
    finally:
        others.end()


def score_share(request: Path, answer: Path) -> None:
    """Score what a request asks for and write the counts."""
    body = json.loads(request.read_text(encoding="utf-8"))
    options = options_from(EvaluateOptions, body["options"])
    store = open_store(options.dataset_uri)
    dataset = open_dataset(store)
    trained = load_trained_model(open_store(options.run_uri), dataset, body["step"])
    rules = parse_thresholds(options.thresholds, min_examples=options.min_examples)
    columns = slice_columns(
        dataset.schema, sliced_columns(options.slices, rules), options.slice_values
    )
    shards = tuple(Shard(**shard) for shard in body["shards"])
    with open_champion(options.champion_root, dataset.schema) as champion:
        scoring = score(
            SplitReader(store, dataset, shards, Path(body["cache"])),
            dataset,
            trained,
            tally=make_tally(dataset.schema, columns),
            slices=columns,
            batch_size=options.batch_size,
            first=body["first"],
            champion=(champion.score, make_tally(dataset.schema)) if champion.score else None,
        )
    arrays = _arrays_of(scoring) | {"champion_version": np.array(champion.version)}
    np.savez(answer, **arrays)  # type: ignore[arg-type] # its other keyword is allow_pickle


def _arrays_of(scoring: Scoring) -> Arrays:
    arrays: Arrays = {}
    for name, tally in (("model", scoring.tally), ("champion", scoring.champion)):
        if tally is not None:
            arrays |= {f"{name}/{key}": array for key, array in _parts(tally).items()}
            arrays[f"{name}/num"] = np.array([tally.num_examples, tally.num_not_finite])
    for index, array in enumerate(scoring.compiled.state()):
        arrays[f"compiled/{index}"] = array
    return arrays


def _add(scoring: Scoring, arrays: Arrays) -> None:
    for name, tally in (("model", scoring.tally), ("champion", scoring.champion)):
        if tally is not None:
            parts = _parts(tally)
            add_up(parts, {key: arrays[f"{name}/{key}"] for key in parts})
            tally.num_examples += int(arrays[f"{name}/num"][0])
            tally.num_not_finite += int(arrays[f"{name}/num"][1])
    count = sum(name.startswith("compiled/") for name in arrays)
    scoring.compiled.add_state([arrays[f"compiled/{index}"] for index in range(count)])


def _parts(tally: Tally) -> Arrays:
    """The arrays of a tally themselves, by name."""
    parts: Arrays = {f"state/{key}": array for key, array in tally.state.items()}
    for index, sliced in enumerate(tally.sliced):
        parts |= {f"slices/{index}/{key}": array for key, array in sliced.items()}
    return parts


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "no message"


if __name__ == "__main__":
    sys.exit(run_main(lambda: score_share(Path(sys.argv[1]), Path(sys.argv[2]))))
