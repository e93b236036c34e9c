"""Workers' logs in the step's log: every pod followed from its start, reconnected, prefixed."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

import urllib3
from kubernetes import client as k8s

from components.train_model.launch.api import ClusterApi
from components.train_model.launch.view import Pod

log = logging.getLogger("relay.launcher")

_TAIL_LINES = 20
_PAUSE_SECS = 2.0
# Progress lines come every few seconds; the launcher reports at its own, slower pace.
_SKIPPED_EVENTS = frozenset({"progress"})


class LogFollower:
    """Follows pods' logs in threads and keeps the last lines of each worker."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._followed: set[str] = set()
        self._live: set[str] = set()
        self._tails: dict[int, deque[str]] = {}

    def follow(self, pods: Iterable[Pod]) -> None:
        """Begin with every pod whose container has started and that is not followed yet."""
        pods = tuple(pods)
        self._live = {pod.uid for pod in pods}
        for pod in pods:
            started = pod.running or pod.exit_code is not None
            if started and pod.uid not in self._followed:
                self._followed.add(pod.uid)
                threading.Thread(
                    target=self._follow, args=(pod,), name=f"relay-log-{pod.worker}", daemon=True
                ).start()

    def tail(self, worker: int) -> str:
        """The last lines of a worker, whatever its pod."""
        return "\n".join(self._tails.get(worker, ()))

    def _follow(self, pod: Pod) -> None:
        last = ""
        while True:
            seen_any = False
            try:
                for line in self._api.follow_log(pod.name, last):
                    stamp, _, text = line.partition(" ")
                    if stamp > last:
                        last, seen_any = stamp, True
                        self._show(pod.worker, text)
            except k8s.ApiException as error:
                if error.status in (400, 404):  # gone, or not yet there: the next look decides
                    seen_any = False
            except (urllib3.exceptions.HTTPError, OSError):
                seen_any = True  # the connection broke: there may be more
            if pod.uid not in self._live and not seen_any:
                return
            time.sleep(_PAUSE_SECS)

    def _show(self, worker: int, text: str) -> None:
        shown = readable(text)
        if shown:
            self._tails.setdefault(worker, deque(maxlen=_TAIL_LINES)).append(shown)
            log.info("[worker %d] %s", worker, shown)


def readable(line: str) -> str:
    """A worker's log line for people; "" for what they need not see."""
    if not line.startswith("{"):
        return line.rstrip()
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or "message" not in record:
        return line
    if record.get("event") in _SKIPPED_EVENTS:
        return ""
    level = record.get("level", "info")
    prefix = "" if level == "info" else f"{level}: "
    trace = f"\n{record['traceback']}" if "traceback" in record else ""
    return f"{prefix}{record['message']}{trace}"
