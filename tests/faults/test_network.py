"""Connections between workers that are cut: packets vanish, nobody hears of it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.checks import assert_same_run


@pytest.fixture
def namespace():
    """A network namespace of its own with loopback only; yields its name."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("iptables"):
        pytest.skip("cutting connections needs root, ip and iptables")
    name = f"relay-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace here: {made.stderr.strip()}")
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def listening_ports(pid):
    """Ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
        if found:
            inodes.add(found[1])
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 1], ids=["to-chief", "to-other"])
def test_a_dropped_connection_between_trainers(train, undisturbed, namespace, worker):
    process = train(
        prefix=["ip", "netns", "exec", namespace], heartbeat_secs=4, collective_timeout_secs=15
    )
    process.wait_for_step(100)
    trainer = process.trainers(worker)[0]
    ports = [port for port in listening_ports(trainer)]
    assert ports
    for port in ports:
        for side in ("--dport", "--sport"):
            rule = ["INPUT", "-p", "tcp", side, str(port), "-j", "DROP"]
            subprocess.run(["ip", "netns", "exec", namespace, "iptables", "-A", *rule], check=True)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)
    assert process.completion.num_restarts >= 1
