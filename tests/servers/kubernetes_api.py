"""A Kubernetes API server on loopback that knows pods and TFJobs, and can fail on demand.

It keeps what the real one keeps (names are unique, deletion takes a precondition, watches stream)
and no more. What the Training Operator and the workers do is played by the test, through `Cluster`.
"""

import contextlib
import json
import socket
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import yaml

NAMESPACE = "team"
_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/tfjobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Cluster:
    """State of the cluster; every method may be called from any thread."""

    def __init__(self):
        self.changed = threading.Condition(threading.RLock())
        self.jobs = {}
        self.pods = {}
        self.logs = {}
        self.requests = []
        self.denied = set()
        self.num_created = 0
        # Called with (method, path) before a request is served: returns None, "drop", "slow", or a
        # status to answer with instead.
        self.fault = lambda method, path: None
        # Called with the number of the request, before and after it is served.
        self.before = lambda number: None
        self.after = lambda number: None

    def create_job(self, body):
        with self.changed:
            name = body["metadata"]["name"]
            if name in self.jobs:
                return None
            self.num_created += 1
            body["metadata"]["uid"] = str(uuid.uuid4())
            body["status"] = {"conditions": []}
            self.jobs[name] = body
            self.changed.notify_all()
            return body

    def delete_job(self, name, uid=""):
        """404, 409 or the deleted job; its pods go with it."""
        with self.changed:
            job = self.jobs.get(name)
            if job is None:
                return 404
            if uid and job["metadata"]["uid"] != uid:
                return 409
            del self.jobs[name]
            for pod in [p for p, data in self.pods.items() if data["job"] == name]:
                del self.pods[pod]
            self.changed.notify_all()
            return job

    def set_condition(self, name, kind, message=""):
        with self.changed:
            if name in self.jobs:
                conditions = self.jobs[name]["status"]["conditions"]
                conditions.insert(0, {"type": kind, "status": "True", "message": message})
                self.changed.notify_all()

    def make_pod(self, job, worker, status=None):
        """A new pod of a worker, in place of one of the same name."""
        with self.changed:
            if job not in self.jobs:
                return
            name = f"{job}-worker-{worker}"
            self.pods[name] = {
                "job": job,
                "metadata": {
                    "name": name,
                    "uid": str(uuid.uuid4()),
                    "labels": {
                        "training.kubeflow.org/job-name": job,
                        "training.kubeflow.org/replica-index": str(worker),
                    },
                },
                "spec": {"nodeName": "node-a", "containers": []},
                "status": status or container({"running": {}}),
            }
            self.changed.notify_all()

    def set_status(self, job, worker, status):
        with self.changed:
            pod = self.pods.get(f"{job}-worker-{worker}")
            if pod:
                pod["status"] = status
                self.changed.notify_all()


def container(state, phase="Running"):
    """Status of a pod whose container is in this state."""
    ready = {"image": "x", "imageID": "x", "ready": True, "restartCount": 0}
    return {
        "phase": phase,
        "containerStatuses": [{"name": "tensorflow", "state": state, **ready}],
    }


@contextlib.contextmanager
def kubernetes_api(folder):
    """Run a server; yields (cluster, path of a kubeconfig for it)."""
    cluster = Cluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_Handler,), {"cluster": cluster}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    config = folder / "kubeconfig"
    config.write_text(yaml.safe_dump(_kubeconfig(server.server_address[1])))
    try:
        yield cluster, config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _kubeconfig(port):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "u", "namespace": NAMESPACE}}
        ],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def do_GET(self):
        self._serve(self._get)

    def do_POST(self):
        self._serve(self._post)

    def do_DELETE(self):
        self._serve(self._delete)

    def log_message(self, format, *args):
        """Quiet."""

    def _serve(self, action):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self.cluster.changed:
            self.cluster.requests.append((self.command, url.path))
            number = len(self.cluster.requests)
        self.cluster.before(number)
        fault = self.cluster.fault(self.command, url.path)
        try:
            if fault == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif fault == "slow":
                time.sleep(0.3)
                action(url.path, query, body)
            elif fault:
                self._error(fault, "injected")
            else:
                action(url.path, query, body)
        except OSError:  # the launcher was killed meanwhile
            self.close_connection = True
        self.cluster.after(number)

    def _get(self, path, query, body):
        if path == "/apis/kubeflow.org/v1":
            self._answer(200, {"resources": [{"name": "tfjobs"}]})
        elif path == _JOBS:
            if query.get("watch") == "true":
                self._watch(query)
            else:
                self._answer(200, {"items": list(self.cluster.jobs.values())})
        elif path.startswith(_JOBS + "/"):
            job = self.cluster.jobs.get(path.rpartition("/")[2])
            self._answer(200, job) if job else self._error(404, "no such job")
        elif path == _PODS:
            if query.get("watch") == "true":
                self._watch(query)
            else:
                with self.cluster.changed:
                    job = query.get("labelSelector", "").partition("=")[2]
                    items = [p for p in self.cluster.pods.values() if p["job"] == job]
                    self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": items})
        elif path.endswith("/log"):
            self._answer_text(self.cluster.logs.get(path.split("/")[-2], ""))
        elif path.startswith(_PODS + "/"):
            self._error(404, "no such pod")
        else:
            self._error(404, f"unknown path {path}")

    def _post(self, path, query, body):
        if path.endswith("/selfsubjectaccessreviews"):
            wanted = body["spec"]["resourceAttributes"]
            allowed = (wanted["verb"], wanted["resource"]) not in self.cluster.denied
            self._answer(201, {"spec": body["spec"], "status": {"allowed": allowed}})
        elif path.endswith("/selfsubjectreviews"):
            user = {"username": "system:serviceaccount:team:runner"}
            self._answer(201, {"status": {"userInfo": user}})
        elif path == _JOBS and query.get("dryRun") == "All":
            self._answer(201, body)
        elif path == _JOBS:
            created = self.cluster.create_job(body)
            self._answer(201, created) if created else self._error(409, "already exists")
        else:
            self._error(404, f"unknown path {path}")

    def _delete(self, path, query, body):
        name = path.rpartition("/")[2]
        uid = (body.get("preconditions") or {}).get("uid", "")
        if path.startswith(_JOBS + "/"):
            found = self.cluster.delete_job(name, uid)
            self._error(found, "refused") if isinstance(found, int) else self._answer(200, {})
        else:
            with self.cluster.changed:
                found = self.cluster.pods.pop(name, None)
            self._answer(200, {"metadata": {"name": name}}) if found else self._error(404, "no pod")

    def _watch(self, query):
        """An event for every change, for at most a few seconds."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            with self.cluster.changed:
                changed = self.cluster.changed.wait(0.2)
            if changed:
                event = {"type": "MODIFIED", "object": {"kind": "X", "metadata": {"name": "x"}}}
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()

    def _answer(self, status, value):
        with self.cluster.changed:
            data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer_text(self, text):
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status, message):
        self._answer(status, {"kind": "Status", "code": status, "message": message})
