"""Whatever commits, crashes and clean-ups happen: a reader sees a whole version or none."""

import secrets

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from components.storage.commit import (
    commit_manifest,
    fetch,
    files_of,
    open_committed,
    put,
    remove_garbage,
)
from components.storage.errors import AlreadyExistsError
from components.storage.open import open_store

PREFIXES = st.sampled_from(["a", "b"])


class Commits(RuleBasedStateMachine):
    root_uri = ""
    folder = None

    @initialize()
    def start(self):
        self.uri = f"{self.root_uri}/{secrets.token_hex(6)}"
        self.committed = {}
        self.open = {}

    def store(self, prefix):
        return open_store(f"{self.uri}/{prefix}")

    @rule(prefix=PREFIXES, content=st.binary(max_size=50), writer=st.integers(0, 3))
    def begin(self, prefix, content, writer):
        """A writer stores data objects; it may go on or be dead from here."""
        store = self.store(prefix)
        names = {f"{writer}/x": content, f"{writer}/y": content * 2}
        if (prefix, writer) in self.open or self.owns(prefix, writer):
            return
        files = [put(store, name, data) for name, data in names.items()]
        self.open[prefix, writer] = (files, names)

    def owns(self, prefix, writer):
        return prefix in self.committed and self.committed[prefix][0] == writer

    @rule(prefix=PREFIXES, writer=st.integers(0, 3))
    def finish(self, prefix, writer):
        if (prefix, writer) not in self.open:
            return
        files, names = self.open.pop((prefix, writer))
        try:
            commit_manifest(self.store(prefix), "m.json", files, {"writer": str(writer)})
        except AlreadyExistsError:
            assert prefix in self.committed
        else:
            assert prefix not in self.committed
            self.committed[prefix] = (writer, names)

    @rule(prefix=PREFIXES, writer=st.integers(0, 3))
    def crash(self, prefix, writer):
        self.open.pop((prefix, writer), None)

    @rule(prefix=PREFIXES)
    def clean_up(self, prefix):
        if not any(key[0] == prefix for key in self.open):  # nobody alive writes there
            remove_garbage(self.store(prefix), "m.json", older_than_secs=-5)

    @rule(prefix=PREFIXES)
    def delete(self, prefix):
        if not any(key[0] == prefix for key in self.open):
            store = self.store(prefix)
            store.delete("m.json")
            store.delete_prefix("")
            self.committed.pop(prefix, None)

    @invariant()
    def readers_see_all_or_nothing(self):
        for prefix in ("a", "b"):
            if not hasattr(self, "uri"):
                return
            store = self.store(prefix)
            manifest = open_committed(store, "m.json")
            assert (manifest is None) == (prefix not in self.committed)
            if manifest is None:
                continue
            writer, names = self.committed[prefix]
            assert manifest["writer"] == str(writer)
            assert {file.name for file in files_of(manifest)} == set(names)
            for file in files_of(manifest):
                fetch(store, file, self.folder / "file")
                assert (self.folder / "file").read_bytes() == names[file.name]


def test_readers_see_all_or_nothing(root_uri, tmp_path):
    quick = root_uri.startswith("/")
    machine = type("Machine", (Commits,), {"root_uri": root_uri, "folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40 if quick else 8,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


pytestmark = pytest.mark.slow
