"""A worker's own newest checkpoints on its own disk: what makes a restart in place cheap.

`step-00001200.safetensors` beside `step-00001200.json` (the checkpoint's description and the CRC32C
of its state). The JSON file is renamed into place last; without it the state does not count.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from components.contracts.checkpoint import Arrays, CheckpointInfo, read_state, write_state
from components.storage.base import crc32c_of_file
from components.storage.errors import CorruptObjectError

KEEP = 2
_NAME = re.compile(r"step-\d{8,}\.(safetensors|json)")


class LocalTier:
    """Checkpoints in one directory; written by one trainer at a time, read by its supervisor."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def names_of(self, step: int) -> tuple[str, str]:
        """File names of the state and of the description of a step."""
        return f"step-{step:08d}.safetensors", f"step-{step:08d}.json"

    def path_of(self, step: int) -> Path:
        """Where the state of a step lies."""
        return self._folder / self.names_of(step)[0]

    def open_file(self, name: str) -> BinaryIO:
        """Open a state or description by file name. Raises FileNotFoundError, also for others."""
        if not _NAME.fullmatch(name):
            raise FileNotFoundError(name)
        return (self._folder / name).open("rb")

    def save(self, info: CheckpointInfo, arrays: Arrays) -> Path:
        """Write one step and remove all but the newest KEEP. Returns the state file.

        Raises:
            OSError: the disk is full; nothing of this step is left on it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.path_of(info.step)
        temporary = self._folder / f"tmp-{os.getpid()}"
        try:
            write_state(temporary, arrays)
            description = {**vars(info), "crc32c": crc32c_of_file(temporary)}
            temporary.replace(path)
            temporary.write_text(json.dumps(description), encoding="utf-8")
            temporary.replace(path.with_suffix(".json"))
        except OSError:  # no room: leave what there is to others
            for leftover in (temporary, path):
                leftover.unlink(missing_ok=True)
            raise
        for step in self.steps()[:-KEEP]:
            self.remove(step)
        return path

    def steps(self) -> list[int]:
        """Steps of this run that are there whole, in rising order."""
        found = []
        for path in self._folder.glob("step-*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                description = json.loads(path.read_text(encoding="utf-8"))
                if description["fingerprint"] == self._fingerprint:
                    found.append(int(description["step"]))
        return sorted(found)

    def load(self, step: int) -> tuple[CheckpointInfo, Arrays]:
        """Read one step back. Raises CorruptObjectError."""
        path = self.path_of(step)
        try:
            description = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            damaged = crc32c_of_file(path) != description.pop("crc32c")
        except (OSError, ValueError, KeyError) as error:
            raise CorruptObjectError(f"{path} is not readable: {error}") from error
        if damaged:
            raise CorruptObjectError(f"{path} does not have the CRC32C it was written with")
        return CheckpointInfo(**description), read_state(path)

    def discard_after(self, step: int) -> None:
        """Remove steps newer than the one agreed on: they belong to a history that is given up."""
        for newer in self.steps():
            if newer > step:
                self.remove(newer)

    def clear_foreign(self) -> None:
        """Remove what other runs and killed writers left in this directory."""
        mine = {name for step in self.steps() for name in self.names_of(step)}
        for path in [*self._folder.glob("step-*"), *self._folder.glob("tmp-*")]:
            if path.name not in mine:
                path.unlink(missing_ok=True)

    def remove(self, step: int) -> None:
        """Remove a step; no error if it is not there."""
        for name in reversed(self.names_of(step)):
            (self._folder / name).unlink(missing_ok=True)
