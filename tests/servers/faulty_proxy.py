"""An HTTP proxy on loopback that damages what passes through it, as a test says."""

import random
import socket
import struct
import threading
from dataclasses import dataclass, field


@dataclass
class Fault:
    """What happens to a request.

    kind: a status code (answered without asking the server), "reset", "truncate", "flip", "stall",
    "drip", "reset-request" (the server never sees the whole request) or "lose-answer" (the server
    does its work, the client hears nothing).
    position: share of the body after which it happens, 0 to 1.
    """

    kind: int | str
    position: float = 0.5
    headers: dict = field(default_factory=dict)


class FaultyProxy:
    """Forwards to `target`; `choose(method, path)` returns a Fault or None for each request."""

    def __init__(self, target, choose=lambda method, path: None):
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self.choose = choose
        self.num_requests = 0
        self.head = b""  # of the newest request
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._closed.set()
        self._listening.close()

    def _accept(self):
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            with client:
                self._serve_one(client)
        except OSError:
            pass

    def _serve_one(self, client):
        head = _read_head(client)
        if not head:
            return
        self.num_requests += 1
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        self.head = head
        fault = self.choose(method, path)
        if fault and fault.kind == "reset-request":
            _reset(client)
            return
        if b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = _read_body(client, head)
        if fault and isinstance(fault.kind, int):
            client.sendall(_status_answer(fault))
            return
        answer = self._ask(head, body)
        if fault and fault.kind == "lose-answer":
            _reset(client)
        elif fault:
            self._damage(client, answer, fault)
        else:
            client.sendall(answer)

    def _ask(self, head, body):
        with socket.create_connection(self._target) as server:
            server.sendall(_without_keeping_alive(head) + body)
            parts = []
            while part := server.recv(1 << 16):
                parts.append(part)
        answer = b"".join(parts)
        while answer.startswith(b"HTTP/1.1 100"):
            answer = answer.partition(b"\r\n\r\n")[2]
        return answer

    def _damage(self, client, answer, fault):
        head, separator, body = answer.partition(b"\r\n\r\n")
        cut = len(head) + 4 + int(len(body) * fault.position)
        if fault.position >= 1:
            cut = len(answer) - 1
        if fault.kind == "flip" and body:
            place = min(cut, len(answer) - 1)
            client.sendall(answer[:place] + bytes([answer[place] ^ 1]) + answer[place + 1 :])
        elif fault.kind == "flip":
            client.sendall(answer)
        elif fault.kind in ("truncate", "reset"):
            client.sendall(answer[:cut])
            if fault.kind == "reset":
                _reset(client)
        elif fault.kind == "stall":
            client.sendall(answer[:cut] if fault.position else b"")
            self._closed.wait(60)
        elif fault.kind == "drip":
            for byte in answer:
                if self._closed.wait(0.25):
                    return
                client.sendall(bytes([byte]))


def sometimes(share, seed=0):
    """A choice that fails a share of all requests, in every way."""
    generator = random.Random(seed)
    lock = threading.Lock()
    kinds = [429, 500, 503, "reset", "truncate", "reset-request", "lose-answer"]

    def choose(method, path):
        with lock:
            if generator.random() >= share:
                return None
            return Fault(generator.choice(kinds), generator.random())

    return choose


def first(number, fault):
    """A choice that damages the first `number` requests."""
    left = [number]
    lock = threading.Lock()

    def choose(method, path):
        with lock:
            if left[0] == 0:
                return None
            left[0] -= 1
            return fault

    return choose


def _read_head(client):
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(1)
        if not part:
            return b""
        data += part
    return data


def _read_body(client, head):
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += client.recv(1 << 16)
        return data
    for line in lower.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            left = int(line.partition(b":")[2])
            parts = []
            while left:
                part = client.recv(min(left, 1 << 16))
                if not part:
                    raise OSError("the client went away")
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
    return b""


def _without_keeping_alive(head):
    lines = [
        line
        for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if not line.lower().startswith((b"connection:", b"expect:"))
    ]
    return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n"


def _status_answer(fault):
    headers = "".join(f"{name}: {value}\r\n" for name, value in fault.headers.items())
    return (
        f"HTTP/1.1 {fault.kind} Fault\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n"
    ).encode()


def _reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
