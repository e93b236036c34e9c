"""What a worker tells a monitoring system, read by Prometheus' own parser and by Prometheus."""

import json
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.ledger import BUCKETS
from components.train_model.worker.metrics import WorkerMetrics
from tests.servers.object_stores import free_port
from tests.train_model.running import environment

NAMES = {
    *("relay_step", "relay_target_steps", "relay_heartbeat_age_seconds", "relay_checkpoint_step"),
    *("relay_checkpoint_age_seconds", "relay_loss", "relay_steps_per_second"),
    *("relay_examples_per_second", "relay_incarnation", "relay_data_wait_ratio"),
    *("relay_checkpoint_wait_ratio", "relay_goodput_seconds", "relay_restarts"),
    "relay_restarts_created",  # what the client library adds to a counter
}


def test_every_metric_is_valid_and_has_its_value(tmp_path):
    heartbeat = Heartbeat(tmp_path / "beat", create=True)
    heartbeat.beat("step", 70)
    heartbeat.committed(60)
    heartbeat.record(
        loss=0.25,
        data_wait=1.0,
        checkpoint_wait=2.0,
        total=10.0,
        target=100,
        goodput=dict(zip(BUCKETS, range(7), strict=True)),
    )
    metrics = WorkerMetrics(3, batch_size=48)
    metrics.incarnation(2)
    metrics.restarted("killed")
    metrics.update(heartbeat.read(), first_step=50)
    families = {f.name: f for f in text_string_to_metric_families(metrics.exposition().decode())}
    assert set(families) == NAMES
    assert all(family.documentation for family in families.values())
    values = {
        (sample.name, sample.labels.get("bucket") or sample.labels.get("reason")): sample.value
        for family in families.values()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert all(s.labels["worker"] == "3" for f in families.values() for s in f.samples)
    assert values["relay_step", None] == 70
    assert values["relay_steps_per_second", None] == 2.0
    assert values["relay_examples_per_second", None] == 96.0
    assert values["relay_checkpoint_step", None] == 60
    assert values["relay_data_wait_ratio", None] == pytest.approx(0.1)
    assert values["relay_checkpoint_wait_ratio", None] == pytest.approx(0.2)
    assert values["relay_restarts_total", "killed"] == 1
    assert [values["relay_goodput_seconds", bucket] for bucket in BUCKETS] == list(range(7))
    assert 0 <= values["relay_checkpoint_age_seconds", None] < 60


def test_prometheus_scrapes_a_run(train, tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus on the PATH (Debian: apt-get install prometheus)")
    process = train(epochs=200)
    process.wait_for_step(20)
    targets = json.loads(environment(process.supervisor(0))["RELAY_SUPERVISORS"])
    config = tmp_path / "prometheus.yml"
    jobs = [{"job_name": "relay", "static_configs": [{"targets": targets}]}]
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [program, *flags, f"--web.listen-address={address}"], stdout=log, stderr=log
        )
    try:
        steps = wait_for_answer(address, "relay_step > 0", 2)
        assert {series["metric"]["worker"] for series in steps} == {"0", "1"}
        up = query(address, 'up{job="relay"}')
        assert [series["value"][1] for series in up] == ["1", "1"]
        goodput = wait_for_answer(address, "sum by (worker) (relay_goodput_seconds) > 0", 2)
        assert all(float(series["value"][1]) < 3600 for series in goodput)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def wait_for_answer(address, expression, count):
    deadline = time.monotonic() + 60
    while True:
        try:
            found = query(address, expression)
        except OSError:
            found = []
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"{expression}: {found}"
        time.sleep(0.2)


def query(address, expression):
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]
