"""Supervisors agree on one incarnation, over real HTTP on loopback."""

import threading
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from components.contracts.checkpoint import CheckpointInfo, commit_checkpoint, write_state
from components.contracts.errors import (
    EXIT_FENCED,
    FencedError,
    PermanentError,
    RelayError,
    StalledError,
)
from components.contracts.training_run import COMPLETE_NAME, Completion, to_json_bytes
from components.storage.open import open_store
from components.train_model.worker.agreement import Decision, Join, Leader, Member, fetch_file
from components.train_model.worker.fencing import (
    Fence,
    Incarnation,
    bury_announced,
    read_incarnation,
    take,
)
from components.train_model.worker.local_tier import LocalTier
from components.train_model.worker.round import decide
from components.train_model.worker.server import listen, start_server


def join(worker, instance="a", seen=0, steps=(), cause=""):
    return Join(
        worker=worker,
        instance=f"{instance}{worker}",
        seen=seen,
        address=f"10.0.0.{worker}:2222",
        local_steps=tuple(steps),
        cause=cause,
    )


@pytest.fixture
def serve(tmp_path):
    """Serve a leader on loopback; returns its address."""
    servers = []

    def start(leader, token="secret"):
        listening = listen("127.0.0.1", 0)
        server = start_server(
            listening,
            token=token,
            leader=leader,
            tier=LocalTier(tmp_path / "tier", "f"),
            health=lambda: "",
            metrics=lambda: b"relay_step 1\n",
        )
        servers.append(server)
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def numbered_decisions():
    count = [0]

    def decide_next(joins):
        count[0] += 1
        return Decision(
            incarnation=count[0],
            members=tuple(j.address for j in joins),
            instances=tuple(j.instance for j in joins),
        )

    return decide_next


def test_all_members_get_the_same_decision_and_a_new_join_ends_it(serve):
    address = serve(Leader(2, numbered_decisions()))
    member = Member(address, "secret")
    decisions = {}

    def take_part(worker, seen=0):
        decisions[worker] = member.join(join(worker, seen=seen), limit=20, stopped=lambda: False)

    threads = [threading.Thread(target=take_part, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decisions[0] == decisions[1]
    assert decisions[0].members == ("10.0.0.0:2222", "10.0.0.1:2222")
    watcher = threading.Thread(target=lambda: decisions.update(runs=member.still_runs(1)))
    watcher.start()
    again = threading.Thread(target=take_part, args=(1, 1))
    again.start()
    watcher.join(20)
    assert decisions["runs"] is False
    take_part(0, seen=1)
    again.join(20)
    assert decisions[0].incarnation == decisions[1].incarnation == 2


def test_trainers_meet_when_all_of_them_are_ready(serve):
    leader = Leader(2, numbered_decisions())
    member = Member(serve(leader), "secret")
    threads = [threading.Thread(target=leader.join, args=(join(worker),)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = []
    early = threading.Thread(target=lambda: answers.append(member.ready(1, 0)))
    early.start()
    early.join(0.3)
    assert answers == []
    assert member.ready(1, 1) is True
    early.join(20)
    assert answers == [True]
    assert member.ready(2, 1) is False


def test_an_answer_that_was_lost_is_given_again():
    leader = Leader(1, numbered_decisions())
    first = leader.join(join(0))
    assert leader.join(join(0)) == first
    assert leader.join(join(0, seen=1)).incarnation == 2


def test_of_two_lives_of_a_worker_the_younger_counts():
    leader = Leader(2, numbered_decisions())
    old = replace(join(1, instance="old"), age=300.0)
    young = replace(join(1, instance="young"), age=20.0)
    rounds = [threading.Thread(target=leader.join, args=(each,)) for each in (join(0), old)]
    for thread in rounds:
        thread.start()
    for thread in rounds:
        thread.join()
    threading.Thread(target=leader.join, args=(young,), daemon=True).start()
    assert not leader.watch(1)
    refused = leader.join(replace(old, seen=1, age=301.0))
    assert refused.exit_code == EXIT_FENCED
    assert "worker 1 has been replaced" in refused.error
    decided = leader.join(replace(join(0), seen=1))
    assert decided.instances == ("a0", "young1")
    # The refused one knocks again and again: the round of the others goes on.
    assert leader.join(replace(old, seen=1, age=302.0)).exit_code == EXIT_FENCED
    assert leader.join(replace(join(0), seen=1)) == decided


def test_who_is_missing_is_named(serve):
    member = Member(serve(Leader(3, numbered_decisions())), "secret")
    with pytest.raises(StalledError, match="worker 1, 2 did not start within 0 s"):
        member.join(join(0), limit=0.2, stopped=lambda: False)


def test_a_leader_that_is_not_there_is_named():
    with pytest.raises(StalledError, match="worker 0 was not reachable at 127.0.0.1:9"):
        Member("127.0.0.1:9", "secret").join(join(1), limit=0.3, stopped=lambda: False)


def test_strangers_are_kept_out(serve):
    address = serve(Leader(1, numbered_decisions()))
    with pytest.raises(RelayError, match="token"):
        Member(address, "wrong").join(join(0), limit=5, stopped=lambda: False)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{address}/tier/step-00000001.json")
    assert urllib.request.urlopen(f"http://{address}/healthz").read() == b"ok"
    assert b"relay_step" in urllib.request.urlopen(f"http://{address}/metrics").read()


def test_a_peers_checkpoint_can_be_fetched_and_nothing_else(serve, tmp_path):
    import numpy as np

    address = serve(None)
    tier = LocalTier(tmp_path / "tier", "f")
    info = CheckpointInfo(step=5, fingerprint="f", incarnation=1)
    tier.save(info, {"model/0000": np.arange(3)})
    for name in tier.names_of(5):
        assert fetch_file(address, "secret", name, tmp_path / name)
    (tmp_path / "outside").write_text("x")
    assert not fetch_file(address, "secret", "../outside", tmp_path / "got")
    assert not fetch_file(address, "wrong", tier.names_of(5)[0], tmp_path / "got")
    assert not fetch_file(address, "secret", "step-00000009.json", tmp_path / "got")


def checkpoint(store, step, folder, incarnation=1):
    import numpy as np

    state = folder / f"state-{step}"
    write_state(state, {"model/0000": np.full(10, step)})
    info = CheckpointInfo(step=step, fingerprint="f", incarnation=incarnation)
    commit_checkpoint(store, info, state, writer="test")


def test_the_newest_step_that_anyone_holds_whole_wins(tmp_path):
    store = open_store(str(tmp_path / "run"))

    def restored(*joins):
        decision = decide(store, list(joins), job="j", max_restarts=100, scratch=tmp_path)
        return decision.restore_step, decision.holder

    assert restored(join(0), join(1)) == (-1, -1)
    checkpoint(store, 10, tmp_path)
    checkpoint(store, 20, tmp_path)
    assert restored(join(0), join(1, steps=[5])) == (20, -1)
    assert restored(join(0, steps=[20]), join(1, steps=[30])) == (30, 1)
    path = tmp_path / "run/checkpoints/step-00000020/state-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert restored(join(0), join(1)) == (10, -1)
    data = bytearray(
        (tmp_path / "run/checkpoints/step-00000010/state-0001.safetensors").read_bytes()
    )
    data[-1] ^= 1
    (tmp_path / "run/checkpoints/step-00000010/state-0001.safetensors").write_bytes(data)
    with pytest.raises(RelayError, match="step-000000"):
        restored(join(0), join(1))


def test_restarts_without_progress_end_with_their_causes(tmp_path):
    store = open_store(str(tmp_path / "run"))
    cause = "trainer killed by SIGKILL at step 7 in phase step"
    for _ in range(4):
        decide(store, [join(0), join(1, cause=cause)], job="j", max_restarts=3, scratch=tmp_path)
    with pytest.raises(PermanentError) as error:
        decide(store, [join(0), join(1, cause=cause)], job="j", max_restarts=3, scratch=tmp_path)
    for text in ("worker 1: trainer killed by SIGKILL", "since step 0", "likely out of memory"):
        assert text in str(error.value)
    checkpoint(store, 10, tmp_path)  # progress refills the budget
    assert (
        decide(store, [join(0), join(1)], job="j", max_restarts=3, scratch=tmp_path).restore_step
        == 10
    )


def test_a_complete_run_is_not_started_again(tmp_path):
    store = open_store(str(tmp_path / "run"))
    done = Completion(step=1, num_epochs=1, reason="", num_workers=1, num_restarts=0, goodput={})
    store.create(COMPLETE_NAME, to_json_bytes(done))
    assert decide(store, [join(0)], job="j", max_restarts=3, scratch=tmp_path).complete
    assert read_incarnation(store) == (Incarnation(), "")


def test_only_the_newest_incarnation_commits(tmp_path):
    store = open_store(str(tmp_path / "run"))
    take(store, "", Incarnation(number=1))
    old = Fence(store, 1)
    old.announce(10)
    current, generation = read_incarnation(store)
    take(store, generation, Incarnation(number=2))
    with pytest.raises(FencedError, match="replaced by incarnation 2"):
        old.announce(20)
    Fence(store, 2).announce(20)
    with pytest.raises(FencedError):
        take(store, generation, Incarnation(number=2))


def test_a_commit_that_was_announced_before_the_takeover_happens_before_it_or_never(tmp_path):
    store = open_store(str(tmp_path / "run"))
    take(store, "", Incarnation(number=1))
    Fence(store, 1).announce(10)
    previous, generation = read_incarnation(store)
    bury_announced(store, previous)
    # The old chief goes on where it stood, between its announcement and its manifest ...
    with pytest.raises(FencedError, match="newer incarnation than 1"):
        checkpoint(store, 10, tmp_path, incarnation=1)
    # ... while the new one may commit the same step, and readers see that one only.
    from components.contracts.checkpoint import choose_step, load_newest

    assert load_newest(store) is None
    take(store, generation, Incarnation(number=2))
    checkpoint(store, 10, tmp_path, incarnation=2)
    assert load_newest(store)[0].incarnation == 2
    assert choose_step(store, "newest") == 10
    # Its state lies beside the new one's and damages nothing.
    names = [found.name.rpartition("/")[2] for found in store.list("checkpoints/step-00000010/")]
    assert names == ["manifest.json", "state-0001.safetensors", "state-0002.safetensors"]


def test_each_takeover_buries_the_announcement_before_it(tmp_path):
    store = open_store(str(tmp_path / "run"))
    for number in (1, 2):
        _, generation = read_incarnation(store)
        take(store, generation, Incarnation(number=number))
        Fence(store, number).announce(10)
        bury_announced(store, read_incarnation(store)[0])
    for number in (1, 2):
        with pytest.raises(FencedError):
            checkpoint(store, 10, tmp_path, incarnation=number)
    checkpoint(store, 10, tmp_path, incarnation=3)


def test_a_new_launch_has_a_new_budget_and_every_restart_is_kept(tmp_path):
    store = open_store(str(tmp_path / "run"))
    lost = join(0, seen=1, cause="a peer was lost (UnavailableError): closed")
    killed = join(1, seen=1, cause="trainer killed by SIGKILL")
    for number, job in enumerate(["first", "first", "second", "second"], 1):
        joins = [lost, killed] if number % 2 == 0 else [join(0), join(1)]
        decide(store, joins, job=job, max_restarts=1, scratch=tmp_path)
    with pytest.raises(PermanentError, match="2 starts with no progress"):
        decide(store, [lost, killed], job="second", max_restarts=1, scratch=tmp_path)
    restarts = read_incarnation(store)[0].restarts
    assert [restart["cause"] for restart in restarts] == [
        "worker 1: trainer killed by SIGKILL",
        "worker 0: a new launch of the run",
        "worker 1: trainer killed by SIGKILL",
    ]
    assert [restart["worker"] for restart in restarts] == [1, 0, 1]
