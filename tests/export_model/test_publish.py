import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.contracts.errors import FencedError, InputError
from components.contracts.published_model import LATEST_NAME, read_champion
from components.export_model.champion import (
    Candidate,
    apply_retention,
    promote,
    roll_back,
    write_serving_config,
)
from components.export_model.publish import (
    find_published,
    is_complete,
    publish,
    published_versions,
    take_version,
)
from components.export_model.serving_config import DIRECT, KSERVE
from components.storage.errors import StoreUnavailableError
from components.storage.open import open_store

FILES = {
    "assets/vocabulary.txt": b"UA\nAA\n",
    "assets.extra/model_card.md": b"# card",
    "fingerprint.pb": b"\x08\x01",
    "saved_model.pb": b"graph that needs its variables",
    "variables/variables.data-00000-of-00001": b"weights" * 1000,
    "variables/variables.index": b"index",
}
MUTATIONS = ("write", "create", "replace", "upload", "delete")


@pytest.fixture
def folder(tmp_path):
    """A SavedModel's files; what is in them does not matter here."""
    model = tmp_path / "model"
    for name, data in FILES.items():
        path = model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return model


class FailingStore:
    """A store whose operations fail from the k-th change on, and a server that polls after each.

    With `lost` the k-th change is made, but its answer does not come back.
    """

    def __init__(self, store, after, *, lost=False):
        self._store, self._left, self._lost = store, after, lost
        self.seen = set()

    def __getattr__(self, name):
        operation = getattr(self._store, name)
        if name not in MUTATIONS:
            return operation

        def attempt(*arguments, **options):
            self._left -= 1
            if self._left < 0 and not (self._lost and self._left == -1):
                raise StoreUnavailableError(f"{name} failed on purpose")
            result = operation(*arguments, **options)
            self.seen |= polled(self._store.uri)
            if self._left < 0:
                raise StoreUnavailableError(f"the answer of {name} was lost on purpose")
            return result

        return attempt

    def delete_prefix(self, prefix):
        names = [found.name for found in self._store.list(prefix)]
        for name in names:
            self.delete(name)
        return len(names)


def polled(root):
    """What a server would load: versions with a graph; fails if anything of one is missing."""
    versions = set()
    for path in Path(root).glob("*/saved_model.pb"):
        if path.parent.name.isdigit():
            versions.add(int(path.parent.name))
            for name, data in FILES.items():
                assert (path.parent / name).read_bytes() == data, f"{path.parent}: {name}"
    return versions


def export(store, folder, identity="model a", token="attempt", score=0.9):
    """What the step does once the model is proven."""
    version = find_published(store, identity)
    if version is None:
        claim = take_version(store, identity, token)
        publish(store, claim, folder, {"identity": identity})
        version = claim.version
    promoted, champion = promote(
        store,
        Candidate(
            version=version,
            model_uri=store.uri_of(str(version)),
            metric="auc",
            score=score,
            report_uri="report",
        ),
    )
    write_serving_config(store)
    apply_retention(store, 10)
    return version, promoted, champion


def attempts_needed(root, folder, *, lost):
    """Fail at the k-th change for every k until an export goes through; returns how many failed."""
    for k in range(200):
        store = open_store(str(root / str(k)))
        failing = FailingStore(store, k, lost=lost)
        try:
            export(failing, folder, token="first")
            return k
        except StoreUnavailableError:
            pass
        version, promoted, champion = export(
            watched := FailingStore(store, 10_000), folder, token="second"
        )
        assert (version, promoted, champion.version) == (1, True, 1), f"after {k} changes"
        assert failing.seen | watched.seen <= {1}
        assert polled(store.uri) == {1}
        assert is_complete(store, 1)
        assert published_versions(store) == [1]
    raise AssertionError("never went through")


@pytest.mark.parametrize("lost", [False, True], ids=["change fails", "answer is lost"])
def test_no_server_sees_half_a_version_wherever_an_upload_stops(tmp_path, folder, lost):
    # 6 files, claim, announcement, manifest, latest.json, two configurations, and deletions.
    assert attempts_needed(tmp_path, folder, lost=lost) >= len(FILES) + 6


def test_numbers_rise_and_are_integers(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    for number in range(1, 4):
        assert export(store, folder, identity=f"model {number}")[0] == number
    (tmp_path / "root" / "41" / "variables").mkdir(parents=True)  # somebody else's
    (tmp_path / "root" / "41" / "saved_model.pb").write_bytes(b"")
    assert export(store, folder, identity="model 4")[0] == 42


def test_an_older_attempt_stops_when_a_newer_one_works_on_its_version(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    old = take_version(store, "model a", "old attempt")
    new = take_version(store, "model a", "new attempt")
    assert new.version == old.version
    with pytest.raises(FencedError, match="taken over by a newer attempt"):
        publish(store, old, folder, {})
    assert polled(store.uri) == set()
    publish(store, new, folder, {})
    assert polled(store.uri) == {1}


def test_twenty_exports_at_once_leave_the_best_as_champion(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    generator = random.Random(7)  # noqa: S311 - scores, not secrets
    scores = [round(generator.random(), 6) for _ in range(20)]
    barrier = threading.Barrier(20)

    def run(index):
        own = open_store(store.uri)
        barrier.wait()
        return export(own, folder, identity=f"model {index}", score=scores[index])

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(run, range(20)))
    champion, _ = read_champion(store)
    best = scores.index(max(scores))
    assert sorted(version for version, _, _ in results) == list(range(1, 21))
    assert champion.version == results[best][0]
    assert champion.score == max(scores)
    assert results[best][1] is True
    for name in (DIRECT, KSERVE):
        assert f"versions: {champion.version} " in store.read(name).decode()


def test_of_two_interleaved_runs_the_worse_never_wins(tmp_path, folder):
    # kubeflow/pipelines#7261: 0.90 and 0.85, whoever comes first.
    for order in ((0.90, 0.85), (0.85, 0.90)):
        store = open_store(str(tmp_path / str(order[0])))
        for score in order:
            export(store, folder, identity=str(score), score=score)
        assert read_champion(store)[0].score == 0.90


def test_a_smaller_score_wins_where_smaller_is_better(tmp_path):
    store = open_store(str(tmp_path))
    for version, score in ((1, 0.5), (2, 0.7), (3, 0.4)):
        promote(store, candidate(version, score, metric="-log_loss"))
    assert read_champion(store)[0].version == 3


def test_the_champion_defends_itself_with_its_score_on_the_same_examples(tmp_path):
    store = open_store(str(tmp_path))
    promote(store, candidate(1, 0.90))
    promoted, _ = promote(store, candidate(2, 0.88, champion_scores={1: 0.86}))
    assert promoted
    # A champion that the evaluation did not see is judged by what it was promoted with.
    promoted, _ = promote(store, candidate(3, 0.87, champion_scores={1: 0.80}))
    assert not promoted


def test_another_metric_cannot_compare(tmp_path):
    store = open_store(str(tmp_path))
    promote(store, candidate(1, 0.90))
    with pytest.raises(InputError, match="chosen by 'auc', this export by 'accuracy'"):
        promote(store, candidate(2, 0.95, metric="accuracy"))


def test_a_roll_back_is_one_command_and_holds(tmp_path, folder, capsys):
    from components.export_model.roll_back import main

    store = open_store(str(tmp_path / "root"))
    for version, score in enumerate((0.80, 0.85, 0.90), 1):
        export(store, folder, identity=f"model {version}", score=score)
    main([f"--export-root={store.uri}"])
    champion, _ = read_champion(store)
    assert (champion.version, champion.score, champion.rolled_back) == (2, 0.85, (3,))
    assert "versions: 2 " in store.read(DIRECT).decode()
    assert "version 2" in capsys.readouterr().out
    # A retry of the export that was taken back does not bring it back.
    assert export(store, folder, identity="model 3", score=0.90)[1] is False
    # A better one comes up against the champion of now.
    assert export(store, folder, identity="model 4", score=0.86)[1] is True
    main([f"--export-root={store.uri}", "--version=1"])
    assert read_champion(store)[0].version == 1


def test_a_roll_back_needs_a_version_that_is_there(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    with pytest.raises(InputError, match="has no champion"):
        roll_back(store)
    export(store, folder)
    with pytest.raises(InputError, match="has no predecessor"):
        roll_back(store)
    with pytest.raises(InputError, match="version 9 is not completely at"):
        roll_back(store, 9)
    with pytest.raises(InputError, match="is the champion of .* already"):
        roll_back(store, 1)


def test_retention_keeps_the_champion_its_predecessors_and_the_newest(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    scores = (0.70, 0.90, 0.1, 0.2, 0.3, 0.4)
    for version, score in enumerate(scores, 1):
        export(store, folder, identity=f"model {version}", score=score)
    watched = FailingStore(store, 10_000)
    assert apply_retention(watched, 2, grace_secs=0) == [3, 4]
    assert published_versions(store) == [1, 2, 5, 6]
    assert polled(store.uri) == {1, 2, 5, 6}
    assert apply_retention(store, 0, grace_secs=0) == []


def test_retention_leaves_young_versions_to_their_exporters(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    for version, score in enumerate((0.9, 0.1, 0.2), 1):
        export(store, folder, identity=f"model {version}", score=score)
    assert apply_retention(store, 1) == []


def test_retention_stopped_anywhere_leaves_whole_versions(tmp_path, folder):
    for k in range(40):
        store = open_store(str(tmp_path / str(k)))
        for version, score in enumerate((0.9, 0.1, 0.2), 1):
            export(store, folder, identity=f"model {version}", score=score)
        failing = FailingStore(store, k)
        try:
            apply_retention(failing, 1, grace_secs=0)
        except StoreUnavailableError:
            assert polled(store.uri) <= {1, 2, 3}
            continue
        assert polled(store.uri) == {1, 3}
        assert k >= len(FILES)
        return
    raise AssertionError("never went through")


def test_a_record_that_is_not_ours_is_refused(tmp_path):
    store = open_store(str(tmp_path))
    store.write(LATEST_NAME, b'{"version": 3}')
    with pytest.raises(InputError, match="is not a champion's record"):
        promote(store, candidate(1, 0.5))


def test_the_claim_of_another_model_is_left_alone(tmp_path, folder):
    store = open_store(str(tmp_path / "root"))
    take_version(store, "model a", "attempt that died")
    assert export(store, folder, identity="model b")[0] == 2
    claim = json.loads(store.read("claims/1.json"))
    assert claim["identity"] == "model a"


def candidate(version, score, *, metric="auc", **options):
    return Candidate(
        version=version,
        model_uri=f"root/{version}",
        metric=metric,
        score=score,
        report_uri="report",
        **options,
    )
