"""Start a worker's supervisor: `python -m components.train_model.worker`, as a launcher does.

Everything comes from the environment: TF_CONFIG, RELAY_OPTIONS (JSON of TrainOptions),
RELAY_RUN_URI, RELAY_TOKEN, RELAY_WORKER_DIR, and what components.train_model.worker.cluster reads.
"""

import json
import os
import socket
import sys
from pathlib import Path

from components.contracts.command_line import options_from
from components.contracts.errors import EXIT_OK, InputError, run_main
from components.contracts.training_run import read_run
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import TOKEN_VARIABLE
from components.train_model.worker.assignment import die_with_parent
from components.train_model.worker.cluster import read_cluster
from components.train_model.worker.lease import LEASE_VARIABLE
from components.train_model.worker.logs import set_up_logging
from components.train_model.worker.server import listen
from components.train_model.worker.supervisor import Supervisor

DEFAULT_PORT = 2223


def main() -> int:
    """Run one supervisor; returns its exit code."""
    set_up_logging()
    if os.environ.get("RELAY_DIE_WITH_PARENT"):
        die_with_parent()
    options = options_from(TrainOptions, json.loads(_required("RELAY_OPTIONS")))
    cluster = read_cluster(options.workers, options.port or DEFAULT_PORT)
    run_uri = _required("RELAY_RUN_URI")
    folder = Path(_required("RELAY_WORKER_DIR"))
    folder.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(
        options,
        cluster,
        run=read_run(open_store(run_uri)),
        run_uri=run_uri,
        token=_required(TOKEN_VARIABLE),
        folder=folder,
        listening=_listening(cluster.supervisors[cluster.index]),
        lease_secs=float(os.environ.get(LEASE_VARIABLE) or 0),
    )
    return supervisor.run() or EXIT_OK


def _listening(address: str) -> socket.socket:
    """The socket that a launcher on this machine has handed down, or a new one."""
    inherited = os.environ.get("RELAY_LISTEN_FD")
    if inherited:
        return socket.socket(fileno=int(inherited))
    return listen("0.0.0.0", int(address.rpartition(":")[2]))  # noqa: S104 - reached by pod address


def _required(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InputError(f"the environment variable {name} is not set; a launcher sets it")
    return value


if __name__ == "__main__":
    sys.exit(run_main(main))
