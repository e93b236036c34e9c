"""Storage: our upload and download against a bare client loop and against plain HTTP.

A GCS server (fake-gcs-server) runs on loopback; every way moves the same 8 files to and from it, in
turns, and each figure is a ratio of wall times within this run. Memory is the growth of this
process's peak while files of 16 MB and of 128 MB move: it must not follow the size.

Run: python -m benchmarks.storage [--megabytes 1024]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from google.cloud import storage

from components.storage.commit import fetch, put
from components.storage.open import open_store
from tests.servers.object_stores import gcs_server

FILES = 8
ROUNDS = 3


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="in all, over 8 files")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_growth(arguments.memory_of))
        return
    with gcs_server() as address, tempfile.TemporaryDirectory() as folder:
        os.environ["STORAGE_EMULATOR_HOST"] = address
        storage.Client().create_bucket("bucket")
        files = make_files(Path(folder), arguments.megabytes << 20)
        ratios = measure(address, files, Path(folder))
        small, large = (memory(address, megabytes) for megabytes in (16, 128))
    ratios["peak_memory_128MB_file_to_16MB_file"] = large / small
    print("Ratios of wall time, ours to the other (below 1: ours is faster), and of peak memory.")
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


def make_files(folder: Path, total: int) -> list[Path]:
    """FILES files of random bytes."""
    files = []
    for number in range(FILES):
        files.append(folder / f"file-{number}")
        files[-1].write_bytes(os.urandom(1 << 20) * (total // FILES >> 20))
    return files


def measure(address: str, files: list[Path], folder: Path) -> dict[str, float]:
    """Median wall time of each way over ROUNDS rounds, as ratios of ours to the others."""
    ways: dict[str, Callable[[], None]] = {
        "upload": lambda: ours_up(files),
        "upload_client_loop": lambda: client_up(files),
        "upload_http": lambda: http_up(address, files),
        "download": lambda: ours_down(files, folder),
        "download_client_loop": lambda: client_down(files, folder),
        "download_http": lambda: http_down(address, files, folder),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    middle = {name: sorted(values)[ROUNDS // 2] for name, values in seconds.items()}
    return {
        f"{kind}_to_{other}": middle[kind] / middle[f"{kind}_{other}"]
        for kind in ("upload", "download")
        for other in ("client_loop", "http")
    }


def ours_up(files: list[Path]) -> None:
    """Eight threads, CRC32C computed and compared."""
    store = open_store("gs://bucket/ours")
    with ThreadPoolExecutor(FILES) as pool:
        list(pool.map(lambda path: put(store, path.name, path), files))


def ours_down(files: list[Path], folder: Path) -> None:
    """Eight threads, ranges of large files in parallel, verified, renamed."""
    store = open_store("gs://bucket/ours")
    with ThreadPoolExecutor(FILES) as pool:
        list(pool.map(lambda path: store.download(path.name, folder / "down" / path.name), files))


def client_up(files: list[Path]) -> None:
    """What the client library's documentation shows, one file after another."""
    bucket = storage.Client().bucket("bucket")
    for path in files:
        bucket.blob(f"client/{path.name}").upload_from_filename(str(path))


def client_down(files: list[Path], folder: Path) -> None:
    """Likewise."""
    bucket = storage.Client().bucket("bucket")
    for path in files:
        bucket.blob(f"client/{path.name}").download_to_filename(str(folder / "client-down"))


def http_up(address: str, files: list[Path]) -> None:
    """One POST a file."""
    for path in files:
        name = urllib.parse.quote(f"http/{path.name}", safe="")
        url = f"{address}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
        with path.open("rb") as file:
            requests.post(url, data=file, timeout=300).raise_for_status()


def http_down(address: str, files: list[Path], folder: Path) -> None:
    """One GET a file, streamed to the disk."""
    for path in files:
        name = urllib.parse.quote(f"http/{path.name}", safe="")
        url = f"{address}/storage/v1/b/bucket/o/{name}?alt=media"
        with requests.get(url, stream=True, timeout=300) as answer:
            answer.raise_for_status()
            with (folder / "http-down").open("wb") as file:
                for chunk in answer.iter_content(1 << 20):
                    file.write(chunk)


def memory(address: str, megabytes: int) -> float:
    """Peak memory of a fresh process that moves one file of so many megabytes, in bytes."""
    command = [sys.executable, "-m", "benchmarks.storage", "--memory-of", str(megabytes)]
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": address}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def peak_growth(megabytes: int) -> int:
    """Peak resident memory of this process after one upload and one verified download."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1 << 20))
        store = open_store("gs://bucket/memory")
        stored = put(store, "file", path)
        fetch(store, stored, Path(folder, "again"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
