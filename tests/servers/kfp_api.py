"""As much of a Kubeflow Pipelines server's v2beta1 API as runs and schedules need, on loopback.

It keeps what it is sent and lets a test play the backend: `runs[id]` is what the next look shows.
"""

import contextlib
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_PREFIX = "/apis/v2beta1/"
_COLLECTIONS = {
    "experiments": "experiment_id",
    "runs": "run_id",
    "recurringruns": "recurring_run_id",
}


class Server:
    """What the server holds, by collection and id."""

    def __init__(self, port):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.experiments = {}
        self.runs = {}
        self.recurringruns = {}
        # Called with every look at a run, before it is answered.
        self.on_look = lambda run: None


@contextlib.contextmanager
def kfp_api():
    """Run a server; yields it."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {}))
    http.daemon_threads = True
    server = http.RequestHandlerClass.server_state = Server(http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: Server

    def log_message(self, format, *args):
        """Quiet."""

    def do_GET(self):
        url = urlsplit(self.path)
        name, _, key = url.path.removeprefix(_PREFIX).partition("/")
        if name == "healthz":
            self._answer({"multi_user": False})
            return
        held = getattr(self.server_state, name)
        if not key:
            wanted = _wanted(parse_qs(url.query))
            found = [e for e in held.values() if wanted in ("", e["display_name"])]
            self._answer({name.replace("runs", "Runs") if name != "runs" else name: found[::-1]})
        elif key in held:
            if name == "runs":
                self.server_state.on_look(held[key])
            self._answer(held[key])
        else:
            self._answer({"message": f"no {key}"}, 404)

    def do_POST(self):
        name = urlsplit(self.path).path.removeprefix(_PREFIX)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = str(uuid.uuid4())
        entry = {**body, _COLLECTIONS[name]: key}
        if name == "runs":
            entry["state"] = "PENDING"
        getattr(self.server_state, name)[key] = entry
        self._answer(entry)

    def do_DELETE(self):
        name, _, key = urlsplit(self.path).path.removeprefix(_PREFIX).partition("/")
        found = getattr(self.server_state, name).pop(key, None)
        self._answer({}, 200 if found else 404)

    def _answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _wanted(query):
    """The name that a filter asks for, empty if all are wanted."""
    predicates = json.loads(query.get("filter", ["{}"])[0]).get("predicates", [])
    return next((p.get("string_value") or p.get("stringValue") or "" for p in predicates), "")
