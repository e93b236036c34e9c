"""Peers that never start, start late, come back after the end, or live in two incarnations."""

import os
import signal

import pytest

from components.contracts.checkpoint import committed_steps, read_info
from components.contracts.errors import EXIT_FENCED, EXIT_OK, EXIT_PERMANENT, EXIT_STALLED
from components.storage.open import open_store
from components.train_model.worker.fencing import read_incarnation
from tests.faults.by_hand import Workers
from tests.faults.checks import assert_same_run


@pytest.fixture
def workers(tmp_path, dataset_uri):
    """Make jobs whose supervisors are started by hand."""
    made = []

    def make(name="job", **options):
        made.append(Workers(tmp_path / name, dataset_uri, **options))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.mark.parametrize(
    ("worker", "texts"),
    [
        (0, ["worker 1 did not start within 3 s", "limits: agreement", "image pull"]),
        pytest.param(1, ["worker 0 was not reachable", "pending"], marks=pytest.mark.faults),
    ],
    ids=["other-missing", "chief-missing"],
)
def test_a_peer_that_never_starts_is_named(workers, worker, texts):
    job = workers(limits={"agreement": 3})
    job.start(worker)
    assert job.codes(60) == [EXIT_STALLED], job.log
    for text in texts:
        assert text in job.message_of(worker)


@pytest.mark.faults
@pytest.mark.parametrize("late", [0, 1], ids=["chief", "other"])
def test_a_peer_that_starts_late_is_waited_for(workers, undisturbed, late):
    job = workers()
    early = job.start(1 - late)
    with pytest.raises(Exception, match="timed out"):
        early.wait(15)
    job.start(late)
    assert job.codes() == [EXIT_OK, EXIT_OK], job.log
    assert_same_run(job, undisturbed)
    assert job.completion.num_restarts == 0


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 1], ids=["chief", "other"])
def test_a_worker_that_starts_after_the_end_ends_with_0_and_changes_nothing(
    workers, undisturbed, worker
):
    job = workers(epochs=10)
    for index in (0, 1):
        job.start(index)
    assert job.codes() == [EXIT_OK, EXIT_OK], job.log
    before = [(found.name, found.generation) for found in job.store.list()]
    assert job.start(worker).wait(60) == EXIT_OK, job.log
    assert [(found.name, found.generation) for found in job.store.list()] == before


@pytest.mark.faults
def test_of_two_launches_the_older_is_fenced_and_the_newer_finishes(train, undisturbed, tmp_path):
    older = train("older", output_uri=str(tmp_path / "run"))
    older.wait_for_step(60)
    newer = train("newer", output_uri=str(tmp_path / "run"))
    newer.wait_until(lambda: read_incarnation(newer.store)[0].number >= 2)
    assert older.finish() == EXIT_PERMANENT, older.log
    assert "Another launch has taken this run over" in older.message
    taken = read_incarnation(newer.store)[0]
    assert taken.number == 2
    assert newer.finish() == EXIT_OK, newer.log
    assert_same_run(newer, undisturbed)
    steps = committed_steps(newer.store)
    infos = [read_info(newer.store, step) for step in steps]
    assert all(info.incarnation == 2 for info in infos if info.step > taken.restore_step)


@pytest.mark.faults
@pytest.mark.parametrize("phase", ["step", "checkpoint"])
def test_a_job_beyond_a_partition_never_commits_again(workers, undisturbed, phase):
    old = workers("old")
    for index in (0, 1):
        old.start(index)
    old.wait_for_phase(0, phase, after=60, pause=0)
    old.signal_all(signal.SIGSTOP)
    new = workers("new", run_uri=old.run_uri)
    for index in (0, 1):
        new.start(index)
    new.wait_until(lambda: max(committed_steps(new.store), default=-1) >= 200)
    old.signal_all(signal.SIGCONT)  # while the new one still trains
    assert set(old.codes()) <= {EXIT_FENCED, EXIT_OK}, old.log
    assert new.codes() == [EXIT_OK, EXIT_OK], new.log
    assert_same_run(new, undisturbed)
    for step in committed_steps(new.store):
        if step > 200:
            assert read_info(open_store(new.run_uri), step).incarnation == 2


@pytest.mark.faults
def test_the_one_dead_pod_of_a_job_is_started_again_elsewhere(workers, undisturbed):
    job = workers()
    for index in (0, 1):
        job.start(index)
    job.wait_for_step(100)
    os.kill(job.supervisor(1), signal.SIGKILL)
    job.processes[1].wait()
    job.start(1)
    assert job.codes() == [EXIT_OK, EXIT_OK], job.log
    assert_same_run(job, undisturbed)
    assert "worker 1: " in job.completion.restarts[0]["cause"]
