"""Who the workers are: from TF_CONFIG, whole or sparse, to this worker's index and its peers."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.contracts.errors import InputError

JOB_VARIABLE = "RELAY_JOB_NAME"
NAMESPACE_VARIABLE = "RELAY_NAMESPACE"
PEERS_VARIABLE = "RELAY_SUPERVISORS"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """This worker among its peers.

    Attributes:
        index: of this worker, 0 being the chief.
        trainers: host:port of each worker's trainer, by index.
        supervisors: host:port of each worker's supervisor, by index.
    """

    index: int
    trainers: tuple[str, ...]
    supervisors: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.trainers)


def read_cluster(
    workers: int, supervisor_port: int, environment: Mapping[str, str] = os.environ
) -> Cluster:
    """Read the cluster that a launcher described in the environment.

    A job of one worker has no TF_CONFIG. A dynamic TFJob's is sparse: it knows only this worker;
    the others follow from the job's name and namespace (RELAY_JOB_NAME, RELAY_NAMESPACE).

    Raises:
        InputError: TF_CONFIG is not JSON, is for another number of workers, or cannot be completed.
    """
    text = environment.get("TF_CONFIG", "")
    if not text:
        return _alone(workers, supervisor_port, environment)
    try:
        config = json.loads(text)
        index = int(config["task"]["index"])
        listed = config["cluster"]["worker"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"TF_CONFIG is not what a TFJob sets: {error!r} in {text!r}") from error
    trainers = _completed(listed, workers, environment)
    if len(trainers) != workers or not 0 <= index < workers:
        raise InputError(
            f"TF_CONFIG is for worker {index} of {len(trainers)}, the options say {workers} workers"
        )
    named = environment.get(PEERS_VARIABLE)
    supervisors = (
        tuple(json.loads(named))
        if named
        else tuple(f"{trainer.rpartition(':')[0]}:{supervisor_port}" for trainer in trainers)
    )
    return Cluster(index=index, trainers=trainers, supervisors=supervisors)


def tf_config(members: tuple[str, ...], index: int) -> str:
    """The TF_CONFIG a trainer gets once the supervisors have agreed on the members' addresses."""
    return json.dumps(
        {"cluster": {"worker": list(members)}, "task": {"type": "worker", "index": index}}
    )


def _alone(workers: int, supervisor_port: int, environment: Mapping[str, str]) -> Cluster:
    if workers != 1:
        raise InputError(f"TF_CONFIG is not set, but the options say {workers} workers")
    named = environment.get(PEERS_VARIABLE)
    supervisors = tuple(json.loads(named)) if named else (f"127.0.0.1:{supervisor_port}",)
    return Cluster(index=0, trainers=("127.0.0.1:0",), supervisors=supervisors)


def _completed(listed: Any, workers: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(listed, list):
        return tuple(listed)
    job, namespace = environment.get(JOB_VARIABLE), environment.get(NAMESPACE_VARIABLE)
    if not job or not namespace:
        raise InputError(
            f"TF_CONFIG is sparse ({listed}): {JOB_VARIABLE} and {NAMESPACE_VARIABLE} must name "
            "the TFJob and its namespace"
        )
    port = next(iter(listed.values())).rpartition(":")[2]
    return tuple(f"{job}-worker-{index}.{namespace}.svc:{port}" for index in range(workers))
