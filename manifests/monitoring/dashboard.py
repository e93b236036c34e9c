"""Grafana's dashboard of training runs: `python -m manifests.monitoring.dashboard` writes the JSON.

Panels are three to a screen's width of 24 units; every query keeps to the chosen data source,
namespace and run. DCGM's metrics carry no run: they are those of the training pods' names.
"""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboard.json")
_SELECTED = 'namespace=~"$namespace", relay_run=~"$run"'
_BY_RUN = "max by (relay_run)"
_GOODPUT = "max by (relay_run, bucket) (relay_goodput_seconds{$SELECTED})"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3

# Title, unit (Grafana's names), description, and queries with their legends.
_PANELS: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Progress",
        "percentunit",
        "Steps done of those planned.",
        (
            (
                f"{_BY_RUN} (relay_step{{$SELECTED}} / relay_target_steps{{$SELECTED}})",
                "{{relay_run}}",
            ),
        ),
    ),
    (
        "Throughput",
        "short",
        "Examples a second over all workers, since the last restart.",
        ((f"{_BY_RUN} (relay_examples_per_second{{$SELECTED}})", "{{relay_run}}"),),
    ),
    (
        "Step time",
        "s",
        "Mean over the steps since the last restart.",
        ((f"1 / {_BY_RUN} (relay_steps_per_second{{$SELECTED}} > 0)", "{{relay_run}}"),),
    ),
    (
        "Loss",
        "none",
        "Of the last step.",
        ((f"{_BY_RUN} (relay_loss{{$SELECTED}})", "{{relay_run}}"),),
    ),
    (
        "Goodput",
        "percentunit",
        "What the time since the first start went into.",
        (
            (
                f"{_GOODPUT} / on (relay_run) group_left sum by (relay_run) ({_GOODPUT})",
                "{{relay_run}} {{bucket}}",
            ),
        ),
    ),
    (
        "Restarts by reason",
        "short",
        "Of trainers, in an hour. killed, oom, stalled, peer, error or terminated.",
        (
            (
                "sum by (relay_run, reason) (increase(relay_restarts_total{$SELECTED}[1h]))",
                "{{relay_run}} {{reason}}",
            ),
        ),
    ),
    (
        "Incarnation",
        "short",
        "Counts every restart of the whole run, those after which pods were replaced too.",
        ((f"{_BY_RUN} (relay_incarnation{{$SELECTED}})", "{{relay_run}}"),),
    ),
    (
        "Checkpoint age",
        "s",
        "Time since the newest checkpoint was committed: what a lost worker would cost.",
        (
            (
                'min by (relay_run) (relay_checkpoint_age_seconds{worker="0", $SELECTED})',
                "{{relay_run}}",
            ),
        ),
    ),
    (
        "Waiting",
        "percentunit",
        "Share of the time in which training waits for data, or for room to take a checkpoint.",
        (
            ("avg by (relay_run) (relay_data_wait_ratio{$SELECTED})", "{{relay_run}} data"),
            (
                "avg by (relay_run) (relay_checkpoint_wait_ratio{$SELECTED})",
                "{{relay_run}} checkpoint",
            ),
        ),
    ),
    (
        "Heartbeat age",
        "s",
        "Time since each trainer showed progress.",
        (("relay_heartbeat_age_seconds{$SELECTED}", "{{relay_run}} worker {{worker}}"),),
    ),
    (
        "GPU utilisation",
        "percent",
        "From NVIDIA's DCGM exporter; empty without one.",
        (
            (
                'DCGM_FI_DEV_GPU_UTIL{namespace=~"$namespace", pod=~"train-.*"}',
                "{{pod}} {{gpu}}",
            ),
        ),
    ),
    (
        "GPU memory",
        "decmbytes",
        "From NVIDIA's DCGM exporter; empty without one.",
        (
            (
                'DCGM_FI_DEV_FB_USED{namespace=~"$namespace", pod=~"train-.*"}',
                "{{pod}} {{gpu}}",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model (schema 39, Grafana 11)."""
    return {
        "title": "Relay training",
        "uid": "relay-training",
        "tags": ["relay", "training"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, *each) for number, each in enumerate(_PANELS)],
    }


def _variables() -> list[dict[str, Any]]:
    data_source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    within = 'namespace=~"$namespace"'
    return [
        data_source,
        _choice("namespace", label="namespace", within=""),
        _choice("run", label="relay_run", within=within),
    ]


def _choice(name: str, *, label: str, within: str) -> dict[str, Any]:
    query = f"label_values(relay_step{{{within}}}, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(
    number: int, title: str, unit: str, text: str, queries: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": None if unit == "none" else 0}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": expression.replace("$SELECTED", _SELECTED),
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def rendered() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(rendered(), encoding="utf-8")
