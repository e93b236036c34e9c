"""tf_keras' `fit` on two workers under a shell restart loop, as a process tree to measure.

tf_keras must not be in our environment (it changes what `tf.keras` is), so the benchmarks look for
one of its own, named by RELAY_TF_KERAS_PYTHON:

    python3.11 -m venv /tmp/tf_keras
    /tmp/tf_keras/bin/pip install tensorflow==2.21.* tf_keras==2.21.*
    export RELAY_TF_KERAS_PYTHON=/tmp/tf_keras/bin/python
"""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from tests.servers.object_stores import free_port

VARIABLE = "RELAY_TF_KERAS_PYTHON"
SCRIPT = Path(__file__).with_name("_tf_keras_fit.py")
ABSENT = (
    f"tf_keras is not compared with: {VARIABLE} names no Python with tf_keras "
    "(see benchmarks/_tf_keras.py)"
)


def python() -> str:
    """The Python that has tf_keras, "" if there is none."""
    found = os.environ.get(VARIABLE, "")
    return found if found and Path(found).exists() else ""


class Fit:
    """Two workers, each started again by its shell until it ends with 0."""

    def __init__(
        self, folder: Path, *, epochs: int, batch_size: int, rows: int, backup: bool
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        ports = [free_port() for _ in range(2)]
        self.shells = []
        for worker in range(2):
            arguments = {
                "worker": worker,
                "ports": ports,
                "folder": str(folder),
                "epochs": epochs,
                "batch_size": batch_size,
                "rows": rows,
                "backup": backup,
            }
            command = shlex.join([python(), str(SCRIPT), json.dumps(arguments)])
            threads = str(max(1, (os.cpu_count() or 1) // 2))
            with (folder / f"log-{worker}").open("w") as log:
                self.shells.append(
                    subprocess.Popen(
                        ["/bin/sh", "-c", f"until {command}; do :; done"],
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env={**os.environ, "TF_NUM_INTRAOP_THREADS": threads},
                    )
                )

    def worker(self, number: int) -> int | None:
        """Process id of a worker, None while there is none."""
        shell = self.shells[number].pid
        found = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(found[0]) if found else None

    def batches(self, number: int = 0) -> list[tuple[int, int, float]]:
        """(epoch, batch, time) of every batch that a worker has done, repeated ones included."""
        path = self.folder / f"batches-{number}"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split() for line in lines]
        return [(int(r[0]), int(r[1]), float(r[2])) for r in rows if len(r) == 3]

    def wait_for_batches(self, more_than: int, limit: float = 300.0) -> None:
        """Wait until worker 0 has done more batches than that."""
        deadline = time.monotonic() + limit
        while len(self.batches()) <= more_than:
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "log-0").read_text()[-2000:])
            time.sleep(0.005)

    def finish(self, limit: float = 900.0) -> list[np.ndarray]:
        """Wait for the end; the weights of worker 0."""
        for shell in self.shells:
            shell.wait(limit)
        with np.load(self.folder / "weights.npz") as found:
            return [found[name] for name in found.files]

    def close(self) -> None:
        """Kill what is left."""
        for shell in self.shells:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
