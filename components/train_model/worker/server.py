"""The supervisor's one port: /healthz and /metrics for the cluster, the agreement for its peers."""

import json
import shutil
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from components.train_model.worker.agreement import Join, Leader, authorized
from components.train_model.worker.local_tier import LocalTier


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away in the middle of a long poll is ordinary."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the port is taken."""
    return socket.create_server((host, port), backlog=128)


def start_server(
    listening: socket.socket,
    *,
    token: str,
    leader: Leader | None,
    tier: LocalTier,
    health: Callable[[], str],
    metrics: Callable[[], bytes],
) -> _Server:
    """Serve on a listening socket in a daemon thread.

    Args:
        listening: it stays open when the server is closed.
        token: peers must show it; /healthz and /metrics need none.
        leader: the rounds, on worker 0 only.
        tier: local checkpoints that peers may fetch.
        health: an explanation of what is wrong, empty if nothing is.
        metrics: the exposition of all metrics.
    """
    handler = type(
        "Handler",
        (_Handler,),
        {
            "token": token,
            "leader": leader,
            "tier": tier,
            "health": staticmethod(health),
            "metrics": staticmethod(metrics),
        },
    )
    server = _Server(("", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    token: str
    leader: Leader | None
    tier: LocalTier
    health: Callable[[], str]
    metrics: Callable[[], bytes]

    def do_GET(self) -> None:  # noqa: N802 - the name http.server calls
        if self.path == "/healthz":
            problem = self.health()
            self._answer(503 if problem else 200, (problem or "ok").encode(), "text/plain")
        elif self.path == "/metrics":
            self._answer(200, self.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif not self._is_peer():
            return
        elif self.path.startswith("/watch/") and self.leader:
            runs = self.leader.watch(int(self.path.removeprefix("/watch/")))
            self._answer_json({"runs": runs})
        elif self.path.startswith("/tier/"):
            self._send_file(self.path.removeprefix("/tier/"))
        else:
            self._answer(404, b"", "text/plain")

    def do_POST(self) -> None:  # noqa: N802
        if not self._is_peer():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/join" and self.leader:
            body["local_steps"] = tuple(body["local_steps"])
            decision = self.leader.join(Join(**body))
            self._answer_json(
                {"decision": decision and vars(decision), "missing": self.leader.missing}
            )
        elif self.path == "/ready" and self.leader:
            self._answer_json({"ready": self.leader.ready(body["incarnation"], body["worker"])})
        else:
            self._answer(404, b"", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Probes and long polls are not worth a log line."""

    def _is_peer(self) -> bool:
        if authorized(self.headers.get("Authorization"), self.token):
            return True
        self._answer(401, b"", "text/plain")
        return False

    def _send_file(self, name: str) -> None:
        try:
            file = self.tier.open_file(name)
        except FileNotFoundError:
            self._answer(404, b"", "text/plain")
            return
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _answer_json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
