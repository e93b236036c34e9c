"""Samples a second of two workers in network namespaces with a slow link between them.

A model with 20 MB of gradients learns the digits (examples/digits) twice: with a plain all-reduce
of float32 gradients after each micro-batch of 32 examples a worker, and with gradient accumulation
(one reduction for 4 micro-batches), bfloat16 gradients and the learning rate scaled to the larger
batch with warm-up. tc shapes both ends of the link. The ratio is of samples a second over the
second half of each run; the curves agree if the validation losses after each epoch do.

Needs root, ip and tc.

    python -m benchmarks.network [--megabits 1000] [--epochs 4]
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from components.contracts.training_run import Completion
from tests.faults.by_hand import Workers

PLAIN = {"batch_size": 64}
BEST = {
    "batch_size": 256,
    "gradient_accumulation": 4,
    "reduced_precision": "bfloat16",
    "base_batch_size": 64,
    "warmup_steps": 8,
}


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabits", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        print(f"not measured: needs root, ip and tc (missing: {', '.join(missing) or 'root'})")
        print(json.dumps({}))
        return
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as name:
        folder = Path(name)
        data = digits(folder)
        plain = trained(folder / "plain", data, options.megabits, options.epochs, PLAIN)
        best = trained(folder / "best", data, options.megabits, options.epochs, BEST)
    for epoch, pair in enumerate(zip(curve(plain), curve(best), strict=True), 1):
        print(f"epoch {epoch}: validation loss {pair[0]:.4f} plain, {pair[1]:.4f} best")
    figures = {
        "samples_per_second_plain": rate(plain) * PLAIN["batch_size"],
        "samples_per_second_best": rate(best) * int(BEST["batch_size"]),
        "final_validation_loss_plain": curve(plain)[-1],
        "final_validation_loss_best": curve(best)[-1],
    }
    figures["best_to_plain"] = (
        figures["samples_per_second_best"] / figures["samples_per_second_plain"]
    )
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def digits(folder: Path) -> str:
    """The digits as a committed dataset."""
    source, output = folder / "images", folder / "data"
    run = [sys.executable, "-m"]
    subprocess.run([*run, "examples.digits.data", f"--output={source}"], check=True)
    flags = [f"--source={source}", f"--output-uri={output}"]
    flags += ["--source-format=images", "--label=label"]
    subprocess.run([*run, "components.make_tfrecords", *flags], check=True, capture_output=True)
    return str(output)


def trained(
    folder: Path, data: str, megabits: int, epochs: int, options: dict[str, object]
) -> Completion:
    """How a run on two workers with that link between them ended."""
    with slow_link(megabits) as namespaces:
        job = Workers(
            folder,
            data,
            module="benchmarks._wide_digits",
            hyperparameters={"learning_rate": 0.02},
            namespaces=namespaces,
            epochs=epochs,
            checkpoint_steps=0,
            validation_split="eval",
            local_tier=False,
            warm_spare=False,
            **options,
        )
        try:
            for worker in (0, 1):
                job.start(worker)
            codes = job.codes(900)
            if codes != [0, 0] or job.completion is None:
                raise RuntimeError(f"training ended with {codes}:\n{job.log[-3000:]}")
            return job.completion
        finally:
            job.close()


@contextlib.contextmanager
def slow_link(megabits: int) -> Iterator[list[tuple[str, str]]]:
    """Two namespaces with a link of that rate; yields (namespace, address) of each."""
    sides = [(f"relay-{os.getpid()}-{side}", f"10.77.0.{side + 1}") for side in (0, 1)]
    try:
        for name, _ in sides:
            _run(f"ip netns add {name}")
        (first, _), (second, _) = sides
        _run(f"ip -n {first} link add veth0 type veth peer name veth0 netns {second}")
        for name, address in sides:
            _run(f"ip -n {name} address add {address}/24 dev veth0")
            _run(f"ip -n {name} link set veth0 up")
            _run(f"ip -n {name} link set lo up")
            shape = f"rate {megabits}mbit burst 256kb latency 50ms"
            _run(f"ip netns exec {name} tc qdisc add dev veth0 root tbf {shape}")
        yield sides
    finally:
        for name, _ in sides:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def rate(completion: Completion) -> float:
    """Steps a second over the second half of a run, validations between epochs left out."""
    records = [r for r in completion.history if "loss" in r]
    pairs = list(zip(records, records[1:], strict=False))[len(records) // 2 :]
    each = sorted((b["time"] - a["time"]) / b["steps"] for a, b in pairs)
    return 1 / each[len(each) // 2]


def curve(completion: Completion) -> list[float]:
    """Validation losses in order."""
    return [record["val_loss"] for record in completion.history if "val_loss" in record]


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    main()
