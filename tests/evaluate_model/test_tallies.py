import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contracts.dataset import Feature, Schema, Statistics
from components.contracts.errors import InputError
from components.evaluate_model import intervals
from components.evaluate_model.measure import Measured, make_tally
from components.evaluate_model.tally import Batch, add_up

BINARY = Schema(
    features=(), label=Feature(name="y", kind="int64"), task="binary", classes=("n", "y")
)
MULTICLASS = Schema(
    features=(),
    label=Feature(name="y", kind="int64"),
    task="multiclass",
    classes=tuple("abcde"),
)
REGRESSION = Schema(
    features=(),
    label=Feature(name="y", kind="float", statistics=Statistics(mean=5e6, variance=9.0)),
    task="regression",
)


def tallied(schema, labels, outputs, *, batch=97):
    tally = make_tally(schema)
    for first in range(0, len(labels), batch):
        part = slice(first, first + batch)
        rows = Batch(
            labels=labels[part], outputs=outputs[part].astype(np.float32), codes=(), first=first
        )
        tally.add(rows)
    return tally


def measured(schema, labels, outputs):
    return Measured(schema, tallied(schema, labels, outputs), 0.95)


def scored(count, seed=0, rate=0.5):
    random = np.random.default_rng(seed)
    labels = (random.random(count) < rate).astype(np.int64)
    logits = random.normal(size=count) * 2 + labels * 1.5 - 1
    return labels, (1 / (1 + np.exp(-logits))).astype(np.float32)


def exact_auc(labels, scores):
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    for value in np.unique(scores):  # ties get their mean rank
        ranks[scores == value] = ranks[scores == value].mean()
    positives = labels.sum()
    area = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return area / positives / (len(labels) - positives)


@pytest.mark.parametrize("rate", [0.5, 0.03], ids=["balanced", "rare"])
def test_binary_metrics_equal_their_definitions(rate):
    labels, scores = scored(5000, rate=rate)
    values = measured(BINARY, labels, scores).values
    wide = scores.astype(np.float64)
    predicted = (scores >= 0.5).astype(int)
    hits = int((predicted & labels).sum())
    assert values["auc"] == pytest.approx(exact_auc(labels, wide), abs=1e-5)
    assert values["accuracy"] == (predicted == labels).mean()
    assert values["precision"] == hits / predicted.sum()
    assert values["recall"] == hits / labels.sum()
    assert values["f1"] == pytest.approx(2 * hits / (predicted.sum() + labels.sum()))
    loss = -(labels * np.log(wide) + (1 - labels) * np.log(1 - wide)).mean()
    assert values["log_loss"] == pytest.approx(loss, rel=1e-6)
    assert values["brier"] == pytest.approx(((wide - labels) ** 2).mean(), rel=1e-9)


def test_average_precision_equals_the_step_wise_sum():
    labels, scores = scored(800)
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    precision = hits / np.arange(1, len(labels) + 1)
    expected = (precision * labels[order]).sum() / labels.sum()
    assert measured(BINARY, labels, scores).values["average_precision"] == pytest.approx(
        expected, abs=2e-4
    )


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=60), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_probabilities_are_counted_and_cut_at_one_half(scores, seed):
    outputs = np.array(scores, np.float32)
    labels = np.random.default_rng(seed).integers(0, 2, len(scores))
    found = measured(BINARY, labels, outputs)
    matrix = np.array(found.confusion_matrix()["matrix"])
    assert matrix.sum() == len(scores)
    assert matrix[:, 1].sum() == (outputs >= 0.5).sum()
    assert sum(row["num_examples"] for row in found.calibration()) == len(scores)


def test_batches_and_processes_do_not_change_a_result():
    labels, scores = scored(1000)
    whole = tallied(BINARY, labels, scores, batch=1000)
    parts = [make_tally(BINARY), make_tally(BINARY)]
    for tally, part in zip(parts, (slice(0, 420), slice(420, None)), strict=True):
        tally.add(Batch(labels=labels[part], outputs=scores[part], codes=(), first=part.start))
    add_up(parts[0].state, parts[1].state)
    left, right = (Measured(BINARY, tally, 0.95) for tally in (whole, parts[0]))
    assert left.values == pytest.approx(right.values, rel=1e-12)
    assert left.intervals() == {
        name: pytest.approx(ends, rel=1e-9) for name, ends in right.intervals().items()
    }


def test_multiclass_metrics_equal_their_definitions():
    random = np.random.default_rng(3)
    labels = random.integers(0, 5, 2000)
    logits = random.normal(size=(2000, 5)) + 2 * np.eye(5)[labels]
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scores = scores.astype(np.float32)
    values = measured(MULTICLASS, labels, scores).values
    predicted = scores.argmax(1)
    recalls = [(predicted[labels == k] == k).mean() for k in range(5)]
    precisions = [(labels[predicted == k] == k).mean() for k in range(5)]
    f1 = [2 * p * r / (p + r) for p, r in zip(precisions, recalls, strict=True)]
    areas = [exact_auc((labels == k).astype(int), scores[:, k].astype(float)) for k in range(5)]
    assert values["accuracy"] == (predicted == labels).mean()
    assert values["macro_recall"] == pytest.approx(np.mean(recalls))
    assert values["macro_precision"] == pytest.approx(np.mean(precisions))
    assert values["macro_f1"] == pytest.approx(np.mean(f1))
    assert values["macro_auc"] == pytest.approx(np.mean(areas), abs=1e-4)
    top = (np.sort(scores, 1)[:, -3] <= scores[np.arange(2000), labels]).mean()
    assert values["top_3_accuracy"] == top
    loss = -np.log(scores[np.arange(2000), labels].astype(float)).mean()
    assert values["log_loss"] == pytest.approx(loss, rel=1e-6)


def test_regression_metrics_keep_their_digits_beside_large_labels():
    random = np.random.default_rng(4)
    labels = (5e6 + 3 * random.normal(size=3000)).astype(np.float32)
    outputs = (labels + random.normal(size=3000)).astype(np.float32)
    values = measured(REGRESSION, labels, outputs).values
    error = outputs.astype(float) - labels.astype(float)
    spread = labels.astype(float)
    assert values["mae"] == pytest.approx(np.abs(error).mean())
    assert values["rmse"] == pytest.approx(math.sqrt((error**2).mean()))
    assert values["bias"] == pytest.approx(error.mean(), abs=1e-9)
    assert values["r2"] == pytest.approx(1 - (error**2).mean() / spread.var(), rel=1e-6)
    assert values["median_absolute_error"] == pytest.approx(np.median(np.abs(error)), rel=0.01)
    assert values["p90_absolute_error"] == pytest.approx(np.quantile(np.abs(error), 0.9), rel=0.01)


@pytest.mark.slow
def test_intervals_hold_the_true_value_as_often_as_they_say():
    truth = NormalDist().cdf(1 / math.sqrt(2))  # two normals one deviation apart
    covered = {"auc": 0, "accuracy": 0, "average_precision": 0}
    references = {"auc": truth, "accuracy": NormalDist().cdf(0.5)}
    large = np.random.default_rng(99)
    references["average_precision"] = _values(large, 200_000)["average_precision"]
    rounds = 100
    random = np.random.default_rng(5)
    for _ in range(rounds):
        found = _metrics(random, 400)
        for name in covered:
            covered[name] += found[name].low <= references[name] <= found[name].high
    for name, count in covered.items():
        assert 0.88 <= count / rounds <= 0.99, (name, count / rounds)


def _values(random, count):
    return {name: metric.value for name, metric in _metrics(random, count).items()}


def _metrics(random, count):
    labels = random.integers(0, 2, count)
    scores = 1 / (1 + np.exp(-(random.normal(size=count) + labels - 0.5)))
    return measured(BINARY, labels, scores).metrics()


def test_the_paired_interval_is_narrower_than_two_intervals():
    labels, scores = scored(2000)
    random = np.random.default_rng(1)
    logits = np.log(scores / (1 - scores)) + 0.2 * random.normal(size=2000)
    other = 1 / (1 + np.exp(-logits))
    left, right = measured(BINARY, labels, scores), measured(BINARY, labels, other)
    low, high = left.change_intervals(right)["auc"]
    change = left.values["auc"] - right.values["auc"]
    single = left.metrics()["auc"]
    assert low <= change <= high
    assert high - low < (single.high - single.low) / 2


def test_wilson_agrees_with_its_published_example():
    # Newcombe 1998 (Stat Med 17:857), table I: 15 of 148 and 0 of 20.
    assert intervals.wilson(15, 148, 0.95) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert intervals.wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert intervals.wilson(0, 0, 0.95) is None


def test_delong_agrees_with_the_direct_formula():
    labels, scores = scored(300)
    positives, negatives = scores[labels == 1], scores[labels == 0]
    wins = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    area = wins.mean()
    variance = wins.mean(1).var(ddof=1) / len(positives) + wins.mean(0).var(ddof=1) / len(negatives)
    half = 1.959964 * math.sqrt(variance) / (area * (1 - area))
    centre = math.log(area / (1 - area))
    expected = tuple(1 / (1 + math.exp(-(centre + side * half))) for side in (-1, 1))
    metric = measured(BINARY, labels, scores).metrics()["auc"]
    assert (metric.low, metric.high) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_leaves_rank_metrics_undefined_and_the_rest_defined(label):
    scores = np.linspace(0.1, 0.9, 50)
    found = measured(BINARY, np.full(50, label), scores)
    assert "auc" not in found.values
    assert found.values["accuracy"] == pytest.approx(0.5)
    assert found.curves()["roc"] == {"fpr": [], "tpr": [], "thresholds": []}


def test_outputs_that_are_not_finite_are_counted_apart():
    labels, scores = scored(200)
    scores[[3, 77]] = np.nan
    scores[9] = np.inf
    tally = tallied(BINARY, labels, scores)
    assert (tally.num_examples, tally.num_not_finite) == (200, 3)
    assert all(math.isfinite(value) for value in Measured(BINARY, tally, 0.95).values.values())


def test_logits_in_place_of_probabilities_are_refused():
    with pytest.raises(InputError, match=r"between -3 and 2.*sigmoid"):
        tallied(BINARY, np.array([0, 1]), np.array([-3.0, 2.0]))
    with pytest.raises(InputError, match="sum to 1.8.*softmax"):
        tallied(MULTICLASS, np.array([0]), np.array([[0.9, 0.9, 0, 0, 0]]))
    with pytest.raises(InputError, match=r"shape \[batch, 3\], the label has 5 classes"):
        tallied(MULTICLASS, np.array([0]), np.array([[0.2, 0.3, 0.5]]))


def test_the_roc_curve_is_thinned_without_moving():
    labels, scores = scored(20_000)
    roc = measured(BINARY, labels, scores).curves()["roc"]
    assert len(roc["fpr"]) <= 203
    area = np.trapezoid(roc["tpr"], roc["fpr"])
    assert area == pytest.approx(exact_auc(labels, scores), abs=1e-3)
    assert np.all(np.diff(roc["thresholds"]) <= 0)


def test_the_threshold_table_says_what_a_threshold_would_do():
    labels, scores = scored(3000, rate=0.1)
    table = measured(BINARY, labels, scores).threshold_table()
    for row in table:
        # A threshold is the lower edge of a bin, and a bin is 0.002 wide on the logit scale.
        accepted = scores >= row["threshold"] * (1 - 1e-9)
        assert row["accepted"] == pytest.approx(accepted.mean(), abs=2e-3)
        assert row["recall"] == pytest.approx(labels[accepted].sum() / labels.sum(), abs=4e-3)
    best = max(row["f1"] for row in table if row["f1"] is not None)
    assert [row["f1"] for row in table if row["best_f1"]] == [best]
    assert 0.5 in [row["threshold"] for row in table]


def test_many_classes_need_no_more_memory_than_a_matrix():
    schema = Schema(
        features=(),
        label=Feature(name="y", kind="int64"),
        task="multiclass",
        classes=tuple(str(index) for index in range(500)),
    )
    labels = np.arange(1000) % 500
    scores = np.full((1000, 500), 0.5 / 499)
    scores[np.arange(1000), labels] = 0.5
    tally = tallied(schema, labels, scores)
    assert sum(array.nbytes for array in tally.state.values()) < 500 * 500 * 8 * 1.5
    found = Measured(schema, tally, 0.95).metrics()
    assert found["accuracy"].value == 1.0
    assert found["accuracy"].low == pytest.approx(0.996, abs=1e-3)
