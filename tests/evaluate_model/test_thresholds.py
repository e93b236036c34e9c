import pytest

from components.contracts.errors import InputError
from components.contracts.report import Metric, Slice
from components.evaluate_model.thresholds import check_rules, decide, parse_thresholds

METRICS = {
    "auc": Metric(value=0.8, low=0.75, high=0.85),
    "log_loss": Metric(value=0.5, low=0.45, high=0.55),
}
SLICES = tuple(
    Slice(column="carrier", value=value, num_examples=count, metrics={"auc": Metric(value=auc)})
    for value, count, auc in (("UA", 500, 0.82), ("B6", 300, 0.51), ("OO", 3, 0.1))
)


def judged(thresholds, *, metrics=None, slices=SLICES, changes=None, num_examples=1000, bad=0):
    rules = parse_thresholds(thresholds, min_examples=100)
    checks = check_rules(
        rules,
        METRICS if metrics is None else metrics,
        slices,
        num_examples=num_examples,
        changes=changes or {},
        why_undefined="every example of the split has the label 'no'",
        why_no_champion="" if changes else "there is no champion yet",
    )
    return decide(checks, num_examples=num_examples, num_not_finite=bad)


def test_a_limit_that_holds_passes_and_equality_holds():
    assert judged({"auc": {"min": 0.8}})[0] == "passed"
    assert judged({"log_loss": {"max": 0.5}})[0] == "passed"


def test_a_failure_names_metric_limit_and_gap():
    verdict, reason = judged({"auc": {"min": 0.83}})
    assert verdict == "failed"
    assert reason == "auc is 0.8000, at least 0.83 was asked for: 0.03 off."


def test_a_slice_that_fails_is_named_and_rare_values_are_left_out():
    verdict, reason = judged({"auc": {"min": 0.7, "slices": {"carrier": {"min": 0.6}}}})
    assert verdict == "failed"
    assert "carrier=B6 is 0.5100" in reason
    assert "OO" not in reason


def test_a_slice_asked_for_by_value_cannot_be_too_small_to_decide():
    verdict, reason = judged({"auc": {"slices": {"carrier=OO": {"min": 0.6}}}})
    assert verdict == "cannot decide"
    assert "rests on 3 examples, fewer than the 100 asked for" in reason
    verdict, _ = judged({"auc": {"slices": {"carrier=OO": {"min": 0.6, "min_examples": 3}}}})
    assert verdict == "failed"
    verdict, reason = judged({"auc": {"slices": {"carrier=ZZ": {"min": 0.6}}}})
    assert verdict == "cannot decide"
    assert "no example of the split has carrier=ZZ" in reason


def test_too_few_examples_cannot_decide():
    verdict, reason = judged({"auc": {"min": 0.1}}, num_examples=12)
    assert verdict == "cannot decide"
    assert "12 examples" in reason


def test_an_undefined_metric_cannot_decide_and_says_why():
    metrics = {"log_loss": METRICS["log_loss"]}
    verdict, reason = judged({"auc": {"min": 0.1}}, metrics=metrics)
    assert verdict == "cannot decide"
    assert "label 'no'" in reason


def test_a_metric_that_is_not_a_number_never_passes():
    for value in (None, float("nan")):
        metrics = {"auc": Metric(value=value)}
        assert judged({"auc": {"min": 0.0}}, metrics=metrics)[0] == "cannot decide"
    assert judged({"auc": {"min": 0.1}}, bad=2) == (
        "failed",
        "2 of 1,000 outputs of the model are not finite numbers.",
    )


def test_failing_outweighs_not_deciding():
    metrics = {**METRICS, "compiled_auc": Metric(value=None)}
    thresholds = {"compiled_auc": {"min": 0.1}, "auc": {"min": 0.9}}
    assert judged(thresholds, metrics=metrics)[0] == "failed"


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(0.74, "passed"), (0.79, "cannot decide"), (0.84, "cannot decide"), (0.86, "failed")],
)
def test_confident_limits_look_at_the_interval(limit, verdict):
    assert judged({"auc": {"min": limit, "confident": True}})[0] == verdict


def test_limits_relative_to_the_champion():
    changes = {"auc": Metric(value=-0.02, low=-0.03, high=-0.01)}
    assert judged({"auc": {"min_change": -0.03}}, changes=changes)[0] == "passed"
    verdict, reason = judged({"auc": {"min_change": 0.0}}, changes=changes)
    assert verdict == "failed"
    assert reason.startswith("The change of auc is -0.0200, at least 0 was asked for")
    verdict, reason = judged({"auc": {"min_change": 0.0}})
    assert verdict == "cannot decide"
    assert "there is no champion yet" in reason


def test_no_thresholds_pass_and_say_so():
    assert judged({}) == ("passed", "No thresholds were set; 1,000 examples were scored.")


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ({"auc": 0.6}, "received 0.6, expected an object"),
        ({"auc": {"minimum": 0.6}}, "unknown key 'minimum'"),
        ({"auc": {"min": "0.6"}}, "expected a finite number"),
        ({"auc": {"min": float("nan")}}, "expected a finite number"),
        ({"auc": {"confident": True}}, "sets no limit"),
        ({"auc": {"slices": {"carrier": {"min_change": 0}}}}, "slices take min and max only"),
        ({"acu": {"min": 0.6}}, "there is no metric 'acu'; there are auc, log_loss"),
        ({"auc": {"slices": {"plane": {"min": 0}}}}, "'plane' is not sliced"),
    ],
)
def test_thresholds_that_cannot_be_meant_are_refused(thresholds, message):
    with pytest.raises(InputError, match=message):
        judged(thresholds)
