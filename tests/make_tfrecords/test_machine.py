"""Checksums by instruction and by table, and functions compiled once for all processes."""

import os
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.make_tfrecords import machine

ROOT = Path(__file__).resolve().parents[2]
WAYS = [machine.crc32c_by_table]
if machine.HAS_INSTRUCTION:
    WAYS.append(machine.crc32c_by_instruction)


@pytest.mark.parametrize("crc32c", WAYS, ids=lambda way: way.__name__)
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=100), skipped=st.integers(0, 8), cut=st.integers(0, 100))
def test_every_way_gives_the_checksum(crc32c, data, skipped, cut):
    buffer = np.frombuffer(data + bytes(8), np.uint8)
    data, address = data[skipped:], buffer.ctypes.data + skipped
    assert crc32c(0, address, len(data)) == google_crc32c.value(data)
    first = crc32c(0, address, len(data[:cut]))
    rest = len(data) - len(data[:cut])
    assert crc32c(first, address + len(data[:cut]), rest) == google_crc32c.value(data)


def test_functions_are_compiled_once_for_all_processes(tmp_path):
    program = (
        "from components.make_tfrecords import machine, jit\n"
        "import numpy as np, numba\n"
        "data = np.arange(9, dtype=np.uint8)\n"
        "machine.crc32c(0, data.ctypes.data, 9)\n"
        "print(sum(machine.crc32c.stats.cache_hits.values()), numba.config.CACHE_DIR)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert run() == ["0", str(tmp_path)]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert any(path.suffix == ".nbc" for path in files)
    assert run()[0] == "1"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files
