"""Conversions as real processes, to be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NUM_ROWS = 120_000
NUM_PARTS = 8
LIMIT_SECS = 120


def write_source(path: Path, num_rows: int = NUM_ROWS) -> None:
    lines = (f'{n},{n / 7:.4f},"a {n % 11}\nb",{n % 2}\n' for n in range(num_rows))
    path.write_text("n,x,text,label\n" + "".join(lines))


class Conversion:
    """`python -m components.make_tfrecords` with two worker processes."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.output = folder / "out"
        self.workspace = folder / "tmp"
        self.workspace.mkdir(exist_ok=True)
        self._command = [
            *(sys.executable, "-m", "components.make_tfrecords", f"--source={source}"),
            *("--label=label", f"--output-uri={self.output}", "--processes=2"),
            *(f"--num-shards={NUM_PARTS}", f"--workspace={self.workspace}"),
        ]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kill_when(self, is_time: Callable[[], bool]) -> bool:
        """Kill -9 the main process as soon as `is_time`; False if it had ended by then."""
        process = self.process
        assert process is not None
        workers = set()
        deadline = time.monotonic() + LIMIT_SECS
        while process.poll() is None and not is_time():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        workers = _children(process.pid)
        process.kill()
        process.communicate()
        while any(os.path.exists(f"/proc/{pid}") and _is_alive(pid) for pid in workers):
            assert time.monotonic() < deadline, "workers outlive their parent"
            time.sleep(0.01)
        return process.returncode == -signal.SIGKILL

    def finish(self) -> str:
        """Wait for success; returns what was logged."""
        assert self.process is not None
        _, log = self.process.communicate(timeout=LIMIT_SECS)
        assert self.process.returncode == 0, log
        return log

    @property
    def finished_parts(self) -> set[int]:
        return {int(path.stem.rpartition("-")[2]) for path in self.output.glob("work/part-*.json")}

    @property
    def shard_times(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in self.output.glob("*.tfrecord")}

    @property
    def contents(self) -> dict[str, bytes]:
        """All files at the output, hidden ones too, but the manifest, which names its writer."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in self.output.rglob("*")
            if path.is_file() and path.name != "dataset.json"
        }


def _children(pid: int) -> set[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return set()
    return set(map(int, text.split()))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
