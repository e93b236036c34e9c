"""Event files are readable by TensorFlow's own reader and never tell a step twice."""

import tensorflow as tf

from components.storage.open import open_store
from components.train_model.worker.event_files import EventFiles


def scalars(run_uri):
    """{tag: [(step, value)]} over all event files, in the order in which TensorBoard reads."""
    found = {}
    store = open_store(run_uri)
    for entry in store.list("tensorboard/"):
        assert "tfevents" in entry.name  # what TensorBoard looks for
        for data in tf.data.TFRecordDataset(store.uri_of(entry.name)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(data)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, round(value.simple_value, 4)))
    return found


def record(step, **values):
    return {"step": step, "time": 1000.0 + step, **values}


def test_a_resumed_run_shows_each_step_once(tmp_path):
    uri = str(tmp_path / "run")
    files = EventFiles(open_store(uri), 0)
    history = [record(step, steps=2, loss=1 / step, learning_rate=0.5) for step in (2, 4)]
    files.write(history)
    files.write(history)  # nothing new, no file
    history += [record(6, steps=2, loss=1 / 6, learning_rate=0.5), record(6, val_auc=0.75)]
    files.write(history)
    history += [record(8, steps=2, loss=1 / 8, learning_rate=0.5)]
    files.write(history)
    assert len(list(open_store(uri).list("tensorboard/"))) == 3
    # Step 6's checkpoint is the one that verifies: 8 is made again, differently this time.
    resumed = EventFiles(open_store(uri), 6)
    resumed.write([*history[:-1], record(8, steps=2, loss=2.0, learning_rate=0.25)])
    assert scalars(uri) == {
        "train/loss": [(2, 0.5), (4, 0.25), (6, 0.1667), (8, 2.0)],
        "train/learning_rate": [(2, 0.5), (4, 0.5), (6, 0.5), (8, 0.25)],
        "validation/auc": [(6, 0.75)],
    }
