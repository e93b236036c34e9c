"""Alerts fire when they must, and dashboard and alerts use only metrics that exist."""

import json
import re
import shutil
import subprocess

import pytest

from components.train_model.worker.metrics import WorkerMetrics
from manifests.monitoring import dashboard
from tests.manifests.conftest import ROOT, built

FOLDER = ROOT / "manifests" / "monitoring"
# Exported by kube-state-metrics and by NVIDIA's DCGM exporter.
FOREIGN = {"kube_pod_status_phase", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"}


def rules():
    [entry] = [e for e in built("manifests/monitoring") if e["kind"] == "PrometheusRule"]
    return entry["spec"]["groups"]


def alerts():
    return [rule for group in rules() for rule in group["rules"]]


def exported():
    """Names of the metrics, and their labels, that a worker answers."""
    metrics = WorkerMetrics(0, 32)
    metrics.restarted("killed")
    text = metrics.exposition().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | set(
        re.findall(r"^(relay_\w+)\{", text, re.MULTILINE)
    )


def used(expression):
    without_labels = re.sub(r"\{[^}]*\}|\b(by|on) \([^)]*\)", "", expression)
    return set(re.findall(r"\b(relay_\w+|kube_\w+|DCGM_\w+)\b", without_labels))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_the_alerts_do_what_their_tests_say(tmp_path):
    (tmp_path / "rules.json").write_text(json.dumps({"groups": rules()}))
    shutil.copy(FOLDER / "rules_test.yaml", tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "rules_test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_explained():
    tests = (FOLDER / "rules_test.yaml").read_text()
    operations = (ROOT / "docs" / "operations.md").read_text()
    for rule in alerts():
        assert f"alertname: {rule['alert']}" in tests
        assert f"\n### {rule['alert']}\n" in operations
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_alerts_use_only_metrics_that_are_exported():
    names = {name for rule in alerts() for name in used(rule["expr"])}
    assert names - FOREIGN <= exported()
    assert len(names) >= 7


def test_the_dashboard_uses_only_metrics_that_are_exported():
    queries = [t["expr"] for panel in dashboard.dashboard()["panels"] for t in panel["targets"]]
    names = {name for query in queries for name in used(query)}
    assert names - FOREIGN <= exported()
    assert "relay_goodput_seconds" in names


def test_the_committed_dashboard_is_current():
    assert dashboard.FILE.read_text() == dashboard.rendered()


def test_panels_do_not_overlap():
    taken = set()
    for panel in dashboard.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_pod_monitor_finds_the_workers_port():
    [monitor] = [e for e in built("manifests/monitoring") if e["kind"] == "PodMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"] == {"relay/step": "train_model"}
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "relay"
