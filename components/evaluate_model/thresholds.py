"""Thresholds: what was asked for, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.contracts.errors import InputError
from components.contracts.report import Check, Metric, Slice, Verdict

_LIMITS = ("min", "max", "min_change", "max_change")
_KEYS = (*_LIMITS, "confident", "slices", "min_examples")
_EXAMPLE = '{"auc": {"min": 0.6, "slices": {"carrier": {"min": 0.55}}}}'


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One limit.

    Attributes:
        metric: its name.
        rule: `min`, `max`, `min_change` or `max_change`.
        limit: the number.
        confident: whether the interval's nearer end is compared instead of the value.
        column: of a slice, empty for all examples.
        value: of the slice; empty: every value of the column.
        min_examples: fewer cannot decide.
    """

    metric: str
    rule: str
    limit: float
    confident: bool = False
    column: str = ""
    value: str = ""
    min_examples: int = 1

    @property
    def is_relative(self) -> bool:
        """Whether it compares with the champion."""
        return self.rule.endswith("_change")


def parse_thresholds(thresholds: Mapping[str, Any], *, min_examples: int) -> tuple[Rule, ...]:
    """Read the option `thresholds`.

    Args:
        thresholds: as EvaluateOptions describes.
        min_examples: where a slice gives none of its own.

    Raises:
        InputError: an unknown key, or a limit that is not a number.
    """
    rules: list[Rule] = []
    for metric, spec in thresholds.items():
        _check_keys(f"thresholds[{metric!r}]", spec)
        rules += _rules_of(metric, spec, min_examples)
        for place, slice_spec in spec.get("slices", {}).items():
            _check_keys(f"thresholds[{metric!r}]['slices'][{place!r}]", slice_spec)
            if any(key in slice_spec for key in ("slices", "min_change", "max_change")):
                raise InputError(
                    f"thresholds[{metric!r}]['slices'][{place!r}]: slices take min and max only"
                )
            column, _, value = place.partition("=")
            rules += _rules_of(metric, slice_spec, min_examples, column=column, value=value)
    return tuple(rules)


def sliced_columns(slices: Sequence[str], rules: Sequence[Rule]) -> tuple[str, ...]:
    """The columns to slice by: those asked for, and those that a rule is about."""
    return (*slices, *(rule.column for rule in rules if rule.column))


def check_rules(
    rules: Sequence[Rule],
    metrics: Mapping[str, Metric],
    slices: Sequence[Slice],
    *,
    num_examples: int,
    changes: Mapping[str, Metric],
    why_undefined: str,
    why_no_champion: str,
) -> list[Check]:
    """Apply the rules.

    Args:
        rules: to apply.
        metrics: of all examples.
        slices: of the report.
        num_examples: scored.
        changes: differences to the champion by metric, with intervals.
        why_undefined: says why a metric of this split may be undefined.
        why_no_champion: says why `changes` is empty, where it is.

    Raises:
        InputError: a metric, a column or a slice's value that the evaluation does not know.
    """
    checks: list[Check] = []
    for rule in rules:
        if rule.column:
            checks += _check_slices(rule, slices, why_undefined)
        elif rule.is_relative:
            missing = why_no_champion or why_undefined
            checks.append(_check(rule, changes.get(rule.metric), num_examples, "", missing))
        else:
            _check_known(rule.metric, metrics)
            metric = metrics.get(rule.metric)
            checks.append(_check(rule, metric, num_examples, "", why_undefined))
    return checks


def decide(
    checks: Sequence[Check], *, num_examples: int, num_not_finite: int
) -> tuple[Verdict, str]:
    """The verdict and its reason in one sentence. Never passes a model with non-finite outputs."""
    if num_not_finite:
        share = f"{num_not_finite:,} of {num_examples:,}"
        return "failed", f"{share} outputs of the model are not finite numbers."
    for outcome in ("failed", "cannot decide"):
        found = [check for check in checks if check.outcome == outcome]
        if found:
            more = f" ({len(found) - 1} more like it)" if len(found) > 1 else ""
            return found[0].outcome, found[0].text + more + "."
    asked = [check for check in checks if check.rule in _LIMITS]
    if not asked:
        return "passed", f"No thresholds were set; {num_examples:,} examples were scored."
    if len(asked) == 1:
        return "passed", asked[0].text + "."
    return "passed", f"All {len(asked)} thresholds hold; {asked[0].text}."


def _check_keys(place: str, spec: Any) -> None:
    if not isinstance(spec, Mapping):
        raise InputError(f"{place}: received {spec!r}, expected an object such as {_EXAMPLE}")
    unknown = [key for key in spec if key not in _KEYS]
    if unknown:
        raise InputError(f"{place}: unknown key {unknown[0]!r}; there are {', '.join(_KEYS)}")
    for key in _LIMITS:
        value = spec.get(key, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InputError(f"{place}[{key!r}]: received {value!r}, expected a finite number")
    if not any(key in spec for key in (*_LIMITS, "slices")):
        raise InputError(f"{place} sets no limit; give one of {', '.join(_LIMITS)}")


def _rules_of(
    metric: str, spec: Mapping[str, Any], min_examples: int, *, column: str = "", value: str = ""
) -> list[Rule]:
    return [
        Rule(
            metric=metric,
            rule=key,
            limit=float(spec[key]),
            confident=bool(spec.get("confident", False)),
            column=column,
            value=value,
            min_examples=int(spec.get("min_examples", min_examples)),
        )
        for key in _LIMITS
        if key in spec
    ]


def _check_slices(rule: Rule, slices: Sequence[Slice], why_undefined: str) -> list[Check]:
    column = [row for row in slices if row.column == rule.column]
    if not column:
        known = sorted({row.column for row in slices})
        raise InputError(
            f"thresholds[{rule.metric!r}]: column {rule.column!r} is not sliced; add it to the "
            f"option slices. Sliced are {', '.join(known) or 'none'}"
        )
    _check_known(rule.metric, _union(column))
    if rule.value:
        column = [row for row in column if row.value == rule.value]
        if not column:
            place = f"{rule.column}={rule.value}"
            empty = f"no example of the split has {place}"
            return [_check(rule, None, rule.min_examples, place, empty)]
    # Small slices are left to min_examples only where they are named; otherwise any rare value
    # would keep every model from passing.
    if not rule.value:
        column = [row for row in column if row.num_examples >= rule.min_examples]
    return [
        _check(
            rule,
            row.metrics.get(rule.metric),
            row.num_examples,
            f"{row.column}={row.value}",
            why_undefined,
        )
        for row in column
    ]


def _union(rows: Sequence[Slice]) -> dict[str, Metric]:
    return {name: metric for row in rows for name, metric in row.metrics.items()}


def _check_known(name: str, metrics: Mapping[str, Metric]) -> None:
    if name not in metrics and metrics and name not in _SOMETIMES_UNDEFINED:
        raise InputError(
            f"thresholds: there is no metric {name!r}; there are {', '.join(sorted(metrics))}"
        )


_SOMETIMES_UNDEFINED = frozenset(
    {"auc", "average_precision", "precision", "recall", "f1", "macro_auc", "r2"}
)


def _check(
    rule: Rule, metric: Metric | None, num_examples: int, place: str, why_undefined: str
) -> Check:
    value = None if metric is None else metric.value
    compared = value
    if rule.confident and metric is not None and value is not None:
        compared = metric.low if rule.rule.startswith("min") else metric.high
    outcome, text = _judged(rule, value, compared, num_examples, place, why_undefined)
    if rule.confident and outcome == "failed" and metric is not None:
        far = metric.high if rule.rule.startswith("min") else metric.low
        if far is not None and _holds(rule, far):
            outcome = "cannot decide"
            text += ", and the limit lies inside the interval: more examples are needed"
    return Check(
        metric=rule.metric,
        rule=rule.rule,
        limit=rule.limit,
        slice=place,
        value=compared,
        outcome=outcome,
        text=text,
    )


def _judged(
    rule: Rule,
    value: float | None,
    compared: float | None,
    num_examples: int,
    place: str,
    why_undefined: str,
) -> tuple[Verdict, str]:
    where = f" on {place}" if place else ""
    name = f"The change of {rule.metric}" if rule.is_relative else rule.metric
    if value is None or compared is None or not math.isfinite(compared):
        return "cannot decide", f"{name}{where} is not defined: {why_undefined}"
    if num_examples < rule.min_examples:
        return "cannot decide", (
            f"{name}{where} rests on {num_examples:,} examples, fewer than the "
            f"{rule.min_examples:,} asked for"
        )
    side = "at least" if rule.rule.startswith("min") else "at most"
    bound = ""
    if rule.confident:
        bound = "lower bound of " if rule.rule.startswith("min") else "upper bound of "
    subject = f"{bound}{name}{where}"
    if _holds(rule, compared):
        return "passed", f"{subject} is {compared:.4f}, {side} {rule.limit:g} was asked for"
    gap = abs(compared - rule.limit)
    return "failed", (
        f"{subject} is {compared:.4f}, {side} {rule.limit:g} was asked for: {gap:.4g} off"
    )


def _holds(rule: Rule, value: float) -> bool:
    return value >= rule.limit if rule.rule.startswith("min") else value <= rule.limit
