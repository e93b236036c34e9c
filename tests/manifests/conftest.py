"""What kubectl makes of the folders under manifests/."""

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(
    str(file.parent.relative_to(ROOT)) for file in ROOT.glob("manifests/**/kustomization.yaml")
)


@functools.cache
def built(folder):
    """The objects of a kustomization, as `kubectl apply -k` would send them."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [entry for entry in yaml.safe_load_all(done.stdout) if entry]
