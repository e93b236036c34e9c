import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from components.contracts.report import Metric, Report
from components.evaluate_model.evaluate import evaluate_model
from components.evaluate_model.options import EvaluateOptions
from components.evaluate_model.page.numbers import figure, short, ticks
from components.evaluate_model.page.render import render
from tests.evaluate_model.browser import axe_source, chromium, console_messages, examined


@pytest.fixture(scope="module")
def reports(delays, shapes, prices, tmp_path_factory):
    """One report of each task."""
    folder = tmp_path_factory.mktemp("reports")
    thresholds = {"auc": {"min": 0.6, "slices": {"carrier": {"min": 0.84}}}}
    found = {}
    for name, run in (("binary", delays), ("multiclass", shapes), ("regression", prices)):
        options = EvaluateOptions(
            dataset_uri=run.data_uri,
            run_uri=run.run_uri,
            thresholds=thresholds if name == "binary" else {},
        )
        found[name] = evaluate_model(options, str(folder / name))
    return found


class _Structure(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.open, self.loads = [], [], [], []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag not in ("meta", "link", "br", "hr"):
            self.open.append(tag)
        self.ids += [named["id"]] if "id" in named else []
        self.links += [named["href"]] if tag == "a" else []
        self.loads += [value for key, value in attributes if key in ("src", "srcset", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_page_is_well_formed_and_loads_nothing(reports, task):
    page = render(reports[task])
    structure = _Structure()
    structure.feed(page)
    assert structure.open == []
    assert structure.loads == []
    assert "<script" not in page
    assert "url(" not in page
    assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)", page.split("</style>")[0])
    assert len(structure.ids) == len(set(structure.ids))
    assert all(link.removeprefix("#") in structure.ids for link in structure.links)
    for section in ("verdict", "metrics", "curves", "calibration", "data", "training", "lineage"):
        assert section in structure.ids


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_page_shows_what_the_report_says(reports, task):
    report = reports[task]
    page = render(report)
    assert report.lineage["dataset_fingerprint"] in page
    for name, metric in report.metrics.items():
        assert f"<strong>{figure(metric.value)}</strong>" in page, name
    for row in report.slices:
        assert f">{row.value}<" in page
    for restart in report.training["restarts"]:
        assert restart["cause"] in page
    if task != "regression":
        assert "ROC curve" in page
        assert "Confusion matrix" in page


def test_what_comes_from_data_is_escaped(reports):
    bad = "<script>alert(1)</script>"
    report = reports["binary"]
    checks = tuple(replace(check, slice=bad) for check in report.checks)
    slices = tuple(replace(row, value=bad) for row in report.slices)
    changed = replace(report, reason=bad, classes=(bad, "ok"), slices=slices, checks=checks)
    assert "<script" not in render(changed)


def test_a_report_with_hardly_anything_in_it_is_rendered():
    empty = Report(
        verdict="cannot decide",
        reason="Nothing was scored.",
        task="binary",
        classes=("no", "yes"),
        split="eval",
        num_examples=0,
        checkpoint_step=0,
        confidence=0.95,
        metrics={"auc": Metric(value=None)},
    )
    page = render(empty)
    assert "Cannot decide" in page
    assert "Nothing was scored." in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.25, "0.25"), (-100000.0, "−100k"), (2.5e6, "2.5M"), (1e-5, "1e−5"), (30, "30")],
)
def test_ticks_are_short(value, text):
    assert short(value) == text


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-3.2, 88) == [0, 20, 40, 60, 80]
    assert ticks(5, 5) == [5]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_page_is_accessible_and_nothing_overlaps(
    reports, request, tmp_path, task, width, scheme
):
    chromium()
    axe = axe_source(request.config.cache.mkdir("axe"))
    violations, layout, messages = examined(
        render(reports[task]), width=width, dark=scheme == "dark", axe=axe, folder=tmp_path
    )
    assert [v for v in violations if v["impact"] in ("serious", "critical")] == []
    assert layout == []
    assert messages == []


@pytest.mark.slow
def test_the_page_leaves_the_console_empty(reports, tmp_path):
    chromium()
    assert console_messages(render(reports["binary"]), tmp_path) == []
    broken = render(reports["binary"]).replace("<main", "<script>nothing()</script><main")
    assert console_messages(broken, tmp_path) != []  # the check can see something
