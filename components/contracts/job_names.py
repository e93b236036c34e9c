"""Names of training jobs on a cluster.

Agreed between the launcher, which makes jobs, and the exit handler, which deletes what a run left.
"""

import hashlib
import re

# Set for the step by the runner: what the run is called.
RUN_VARIABLE = "RELAY_RUN"
RUN_LABEL = "relay/run"
STEP_LABEL = "relay/step"

GROUP, VERSION, PLURAL = "kubeflow.org", "v1", "tfjobs"

# The operator appends "-worker-<index>"; the whole is a DNS-1035 label of at most 63 characters.
_MAX_PREFIX = 30


def job_name(output_uri: str) -> str:
    """Name of the job that trains at `output_uri`.

    A DNS-1035 label of at most 45 characters. The same on every attempt of a task, as its uri is;
    different for every other task, loop iteration and run.
    """
    parts = [part for part in output_uri.partition("://")[2].split("/") if part]
    readable = _ascii(parts[-5] if len(parts) >= 5 else parts[-1] if parts else "")
    prefix = f"train-{readable}"[:_MAX_PREFIX].rstrip("-")
    return f"{prefix}-{hashlib.sha256(output_uri.encode()).hexdigest()[:12]}"


def run_label(run: str) -> str:
    """Value of the label `relay/run` for a run of any name; a run id stands for itself."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", run):
        return run
    prefix = _ascii(run)[:40].strip("-") or "run"
    return f"{prefix}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def _ascii(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
