"""What can only be done to a cluster whose nodes are processes of this machine: the laboratory's.

LAB names its folder; pids of its parts lie in run/pids, each node has a containerd of its own.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest


def _folder():
    folder = Path(os.environ.get("LAB", "/nowhere")) / "run"
    if not (folder / "pids").is_dir():
        pytest.skip("parts of a cluster can only be stopped where LAB names the laboratory")
    return folder


@contextlib.contextmanager
def stopped(part):
    """A part of the cluster stands still: kubelet-node-a, kube-apiserver, fake-gcs-server, ..."""
    pid = int((_folder() / "pids" / part).read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_container(node, container):
    """SIGKILL the first process of a container, and so all of them; nothing tells them before."""
    socket = _folder() / node / "containerd.sock"
    command = ["ctr", "-a", str(socket), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL"]
    subprocess.run([*command, container], check=True, capture_output=True, timeout=60)
