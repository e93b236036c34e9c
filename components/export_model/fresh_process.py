"""Answers of a SavedModel in a process that has TensorFlow and nothing of this project.

Run as a script, `python -I fresh_process.py MODEL REQUESTS ANSWERS`: -I keeps the project, the
user's module and PYTHONPATH out. REQUESTS is a folder of `<n>.json`, {"signature", "inputs": {name:
{"dtype", "values"}}}; ANSWERS gets `<n>.json`, {output: {"dtype", "shape", "values"}}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf


def main(model: str, requests: str, answers: str) -> None:
    """Load once, answer each request."""
    loaded = tf.saved_model.load(model)
    for path in sorted(Path(requests).glob("*.json")):
        request = json.loads(path.read_text(encoding="utf-8"))
        function = loaded.signatures[request["signature"]]
        outputs = function(**{name: _tensor(value) for name, value in request["inputs"].items()})
        found = {name: _plain(value) for name, value in outputs.items()}
        Path(answers, path.name).write_text(json.dumps(found), encoding="utf-8")


def _tensor(value: dict[str, Any]) -> Any:
    values = value["values"]
    if value["dtype"] == "string":
        values = _bytes(values)
    return tf.constant(values, value["dtype"], shape=value["shape"])


def _bytes(values: Any) -> Any:
    return [_bytes(item) for item in values] if isinstance(values, list) else bytes.fromhex(values)


def _plain(value: Any) -> dict[str, Any]:
    array = value.numpy()
    flat = array.ravel().tolist()
    if value.dtype == tf.string:
        flat = [item.hex() for item in flat]
    return {"dtype": value.dtype.name, "shape": list(array.shape), "values": flat}


if __name__ == "__main__":
    main(*sys.argv[1:])
