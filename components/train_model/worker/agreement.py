"""Supervisors agree before trainers meet: one round an incarnation, led by worker 0.

Every supervisor joins with its trainer's address and what its local tier holds. When all have
joined, the leader decides (incarnation, members, restore step) once and answers everybody. Trainers
then fetch what they need, however long each takes, and start their rendezvous when all are ready.
A join while an incarnation runs ends it: the others learn of that from their watch, stop their
trainers and join too. So a restart is one round, not a race of rendezvous that time out on each
other.
"""

import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from components.contracts.errors import (
    EXIT_FENCED,
    EXIT_PERMANENT,
    RelayError,
    StalledError,
    as_relay_error,
    is_retryable,
)

# Long polls end after this many seconds, so that a dead connection is noticed.
POLL_SECS = 10.0
# How the cause of a trainer begins that only saw the end of another one.
PEER_LOST = "a peer was lost"
REPLACED = "worker {} has been replaced by a younger one: this one stops"
TOKEN_VARIABLE = "RELAY_TOKEN"  # noqa: S105 - the name of the variable


@dataclass(frozen=True, kw_only=True)
class Join:
    """What a supervisor says when it is ready for the next incarnation.

    Attributes:
        worker: its index.
        instance: differs between two lives of the same supervisor.
        seen: the newest incarnation that this life has taken part in, 0 for none.
        address: host:port for its next trainer.
        local_steps: steps that its local tier holds whole.
        cause: why its last trainer ended, empty at the first start.
        age: seconds since this life began; of two lives of one worker the younger counts.
    """

    worker: int
    instance: str
    seen: int
    address: str
    local_steps: tuple[int, ...] = ()
    cause: str = ""
    age: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the round has decided, the same for every worker.

    Attributes:
        incarnation: fencing token; 0 if the run is complete or has failed.
        members: trainer addresses by index.
        restore_step: checkpoint to start from, -1 for none.
        holder: worker whose local tier holds it, -1 for the object store.
        complete: the run is finished: end with 0.
        error: the run has failed: end with exit_code and this message.
        exit_code: see error.
        num_restarts: restarts of the whole run so far.
        instances: the supervisors that took part.
    """

    incarnation: int = 0
    members: tuple[str, ...] = ()
    restore_step: int = -1
    holder: int = -1
    complete: bool = False
    error: str = ""
    exit_code: int = 0
    num_restarts: int = 0
    instances: tuple[str, ...] = field(default=())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Decision":
        """The inverse of dataclasses.asdict."""
        return cls(
            **{
                **data,
                "members": tuple(data["members"]),
                "instances": tuple(data["instances"]),
            }
        )


class Leader:
    """The rounds, as kept by worker 0. Called from the threads of its HTTP server."""

    def __init__(self, size: int, decide: Callable[[list[Join]], Decision]) -> None:
        """`decide` is called once a round with the joins by index; what it raises ends the run."""
        self._size = size
        self._decide = decide
        self._joins: dict[int, Join] = {}
        self._decision: Decision | None = None
        self._ready: set[int] = set()
        # By worker: when its youngest life began, and that life's instance.
        self._lives: dict[int, tuple[float, str]] = {}
        self._changed = threading.Condition()

    def join(self, join: Join) -> Decision | None:
        """Take part in the next round; None if it was not decided within POLL_SECS: join again."""
        with self._changed:
            if self._is_replaced(join):
                return Decision(error=REPLACED.format(join.worker), exit_code=EXIT_FENCED)
            decided = self._decision
            if decided is not None:
                if join.instance in decided.instances and join.seen < decided.incarnation:
                    return decided  # its answer was lost on the way
                if decided.complete or (decided.error and not is_retryable(decided.exit_code)):
                    return decided
                self._decision = None
                self._joins.clear()
                self._changed.notify_all()
            self._joins[join.worker] = join
            if len(self._joins) == self._size:
                self._decision = self._decided()
                self._ready.clear()
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._answer(join) is not None, POLL_SECS)
            return self._answer(join)

    def _is_replaced(self, join: Join) -> bool:
        """Whether a younger life of the same worker is known.

        On a node that the cluster has lost a worker lives on beside its replacement, and the two
        would end each other's rounds for ever. Ages are compared, not clocks.
        """
        began = time.monotonic() - join.age
        newest = self._lives.get(join.worker)
        if newest is not None and newest[1] != join.instance and began < newest[0]:
            return True
        if newest is None or newest[1] != join.instance:
            self._lives[join.worker] = began, join.instance
        return False

    def ready(self, incarnation: int, worker: int) -> bool:
        """Note that a worker's trainer may meet its peers; whether all may, after a wait."""
        with self._changed:
            if self._runs(incarnation):
                self._ready.add(worker)
                self._changed.notify_all()

            def settled() -> bool:
                return not self._runs(incarnation) or len(self._ready) == self._size

            self._changed.wait_for(settled, POLL_SECS)
            return self._runs(incarnation) and len(self._ready) == self._size

    def watch(self, incarnation: int) -> bool:
        """Wait up to POLL_SECS for the end of an incarnation; whether it still runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._runs(incarnation), POLL_SECS)
            return self._runs(incarnation)

    @property
    def missing(self) -> list[int]:
        """Workers that the round still waits for."""
        with self._changed:
            return [index for index in range(self._size) if index not in self._joins]

    def _runs(self, incarnation: int) -> bool:
        return self._decision is not None and self._decision.incarnation == incarnation

    def _answer(self, join: Join) -> Decision | None:
        decided = self._decision
        if decided is None or (decided.incarnation and join.instance not in decided.instances):
            return None
        return decided

    def _decided(self) -> Decision:
        joins = [self._joins[index] for index in range(self._size)]
        try:
            return self._decide(joins)
        except Exception as error:
            known = as_relay_error(error)
            code = known.exit_code if known else EXIT_PERMANENT
            text = str(known) if known else f"the leader failed: {type(error).__name__}: {error}"
            return Decision(error=text, exit_code=code)


class Member:
    """A supervisor's side of the agreement."""

    def __init__(self, leader: str, token: str) -> None:
        """Begin the life of a supervisor; `leader` is host:port of worker 0's."""
        self._leader = leader
        self._token = token
        self._began = time.monotonic()

    def join(self, join: Join, *, limit: float, stopped: Callable[[], bool]) -> Decision | None:
        """Join and wait for the decision; None once `stopped()` says so.

        Raises:
            StalledError: no decision within `limit` seconds; names the workers that are missing.
        """
        deadline = time.monotonic() + limit
        while not stopped():
            answer = self._request("POST", "/join", asdict(self._aged(join)))
            if answer is not None and answer.get("decision"):
                return Decision.from_json(answer["decision"])
            if time.monotonic() > deadline:
                raise StalledError(self._explain(answer, limit))
            if answer is None:
                time.sleep(0.1)
        return None

    def _aged(self, join: Join) -> Join:
        return replace(join, age=time.monotonic() - self._began)

    def ready(self, incarnation: int, worker: int) -> bool | None:
        """Whether all workers' trainers may meet, after a wait; None if the leader is silent."""
        body = {"incarnation": incarnation, "worker": worker}
        answer = self._request("POST", "/ready", body)
        return None if answer is None else bool(answer["ready"])

    def still_runs(self, incarnation: int) -> bool | None:
        """Whether an incarnation still runs, after a wait; None if the leader does not answer."""
        answer = self._request("GET", f"/watch/{incarnation}", None)
        return None if answer is None else bool(answer["runs"])

    def _explain(self, answer: Mapping[str, Any] | None, limit: float) -> str:
        if answer is None:
            return (
                f"worker 0 was not reachable at {self._leader} for {limit:.0f} s: its pod may be "
                "pending, or a network policy may block the port"
            )
        missing = ", ".join(map(str, answer["missing"])) or "none"
        return (
            f"worker {missing} did not start within {limit:.0f} s (limits: agreement). "
            "Look at that pod: pending, image pull, or crash before the supervisor starts"
        )

    def _request(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        host, _, port = self._leader.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=POLL_SECS + 5)
        try:
            connection.request(
                method,
                path,
                json.dumps(body) if body is not None else None,
                {"Authorization": f"Bearer {self._token}"},
            )
            response = connection.getresponse()
            data = response.read()
            if response.status == http.client.UNAUTHORIZED:
                raise RelayError(f"{self._leader} refuses this job's token: it serves another job")
            return dict(json.loads(data)) if response.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def fetch_file(holder: str, token: str, name: str, destination: Path) -> bool:
    """Copy a file of the local tier behind the supervisor at `holder`; whether it came whole."""
    host, _, port = holder.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("GET", f"/tier/{name}", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            return False
        with destination.open("wb") as file:
            while chunk := response.read(1 << 20):
                file.write(chunk)
        return destination.stat().st_size == int(response.headers["Content-Length"])
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def authorized(header: str | None, token: str) -> bool:
    """Whether an Authorization header carries the job's token."""
    return hmac.compare_digest(header or "", f"Bearer {token}")
