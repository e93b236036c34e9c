"""Damaged checkpoints, storage that goes away, disks that are full."""

import os
import signal
import subprocess
import time

import pytest

from components.contracts.checkpoint import committed_steps
from components.contracts.errors import EXIT_PERMANENT, EXIT_TERMINATED
from tests.faults.checks import assert_same_run
from tests.servers.faulty_proxy import Fault, FaultyProxy
from tests.servers.object_stores import gcs_server


@pytest.mark.parametrize(
    "damage",
    [
        "truncated",
        pytest.param("corrupt", marks=pytest.mark.faults),
        pytest.param("deleted", marks=pytest.mark.faults),
        pytest.param("uncommitted", marks=pytest.mark.faults),
        pytest.param("manifest-corrupt", marks=pytest.mark.faults),
    ],
)
def test_a_run_goes_on_before_a_damaged_checkpoint(train, undisturbed, tmp_path, damage):
    process = train()
    process.wait_for_step(100)
    process.process.send_signal(signal.SIGTERM)
    assert process.finish() == EXIT_TERMINATED, process.log
    process.close()
    steps = committed_steps(process.store)
    folder = tmp_path / f"run/run/checkpoints/step-{steps[-1]:08d}"
    (state,) = folder.glob("state-*.safetensors")
    manifest = folder / "manifest.json"
    if damage == "truncated":
        os.truncate(state, 100)
    elif damage == "corrupt":
        data = bytearray(state.read_bytes())
        data[-3] ^= 1
        state.write_bytes(data)
    elif damage == "deleted":
        state.unlink()
    elif damage == "uncommitted":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:-20])
    again = train()
    assert again.finish() == 0, again.log
    assert_same_run(again, undisturbed)
    assert f"starts at step {steps[-2]}" in again.log
    if damage != "uncommitted":
        assert f"checkpoint of step {steps[-1]} is passed over" in again.log
        assert folder.name in again.log


@pytest.fixture(scope="module")
def gcs_address():
    """One server for all tests here: this process keeps its client."""
    with gcs_server() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        from google.cloud import storage

        storage.Client().create_bucket("bucket")
        yield address


@pytest.fixture
def flaky_bucket(gcs_address):
    """(proxy, environment): a bucket that trainers reach through a proxy, tests directly."""
    with FaultyProxy(gcs_address) as proxy:
        yield proxy, {"STORAGE_EMULATOR_HOST": proxy.address}


@pytest.mark.faults
@pytest.mark.parametrize("kind", [503, "reset-request"], ids=["errors", "no-connection"])
@pytest.mark.parametrize("moment", ["training", "restart", "last-commit"])
def test_storage_that_is_away_for_a_minute(
    train, undisturbed, flaky_bucket, tmp_path, kind, moment
):
    proxy, environment = flaky_bucket
    process = train(
        output_uri=f"gs://bucket/{tmp_path.name}",
        environment=environment,
        collective_timeout_secs=20,
    )
    process.wait_for_step(300 if moment == "last-commit" else 60)
    down_until = time.monotonic() + 60
    proxy.choose = lambda method, path: Fault(kind) if time.monotonic() < down_until else None
    if moment == "restart":
        os.kill(process.trainers(1)[0], signal.SIGKILL)
    assert process.finish() == 0, process.log
    assert time.monotonic() > down_until
    assert_same_run(process, undisturbed)
    assert process.completion.num_restarts == (1 if moment == "restart" else 0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder])
    if mounted.returncode:
        pytest.skip("this container may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    """Use up a file system to its last block."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@pytest.mark.faults
def test_a_full_disk_under_the_run_ends_it_with_the_place(train, small_disk):
    process = train(output_uri=str(small_disk / "run"))
    process.wait_for_step(40)
    fill(small_disk)
    assert process.finish() == EXIT_PERMANENT, process.log
    assert "no space left on the device" in process.message
    assert str(small_disk) in process.message
    assert process.message.startswith("worker 0: ")
    assert process.completion is None


@pytest.mark.faults
def test_a_full_local_disk_costs_the_local_copies_only(train, undisturbed, small_disk, tmp_path):
    process = train(environment={"TMPDIR": str(small_disk)})
    process.wait_for_step(60)
    fill(small_disk)
    process.wait_for_step(200)
    os.kill(process.trainers(1)[0], signal.SIGKILL)
    assert process.finish() in (0, EXIT_PERMANENT), process.log
    assert "no local copy of step" in process.log
    if process.completion is None:  # a new trainer needs some files of its own
        assert "no space left on the device" in process.message
        assert str(small_disk) in process.message
    else:
        assert_same_run(process, undisturbed)
