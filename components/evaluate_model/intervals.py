"""Confidence intervals of metrics that are known only through counts and sums."""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]


def quantile(confidence: float) -> float:
    """Two-sided quantile of the normal distribution: 1.96 for 0.95."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(successes: float, trials: float, confidence: float) -> Interval | None:
    """Score interval of a proportion (Wilson 1927), sound at 0 and 1 too; None without trials."""
    if trials <= 0:
        return None
    z2 = quantile(confidence) ** 2
    share = successes / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean(total: float, squares: float, count: float, confidence: float) -> Interval | None:
    """Normal interval of a mean from sum and sum of squares; None for fewer than two values."""
    if count < 2:
        return None
    centre = total / count
    variance = max(squares / count - centre**2, 0.0) * count / (count - 1)
    half = quantile(confidence) * math.sqrt(variance / count)
    return centre - half, centre + half


def area_under_roc(negatives: Floats, positives: Floats, confidence: float) -> Interval | None:
    """DeLong's interval of the AUC on the logit scale, which stays inside (0, 1).

    DeLong et al. 1988 (doi:10.2307/2531595), with the placement values taken from histograms.

    Args:
        negatives: counts of negatives by rising score, shape [bins].
        positives: likewise.
        confidence: 0.95 for instance.

    Returns:
        None with fewer than two examples of a class.
    """
    num_negatives, num_positives = float(negatives.sum()), float(positives.sum())
    if num_negatives < 2 or num_positives < 2:
        return None
    below = np.cumsum(negatives) - negatives / 2
    of_positives = below / num_negatives
    above = num_positives - np.cumsum(positives) + positives / 2
    of_negatives = above / num_positives
    area = float(positives @ of_positives) / num_positives
    variance = 0.0
    for counts, placements, total in (
        (positives, of_positives, num_positives),
        (negatives, of_negatives, num_negatives),
    ):
        variance += float(counts @ (placements - area) ** 2) / (total - 1) / total
    if not 0 < area < 1:  # the estimated variance is 0 there: rule of three
        bound = 3 / min(num_negatives, num_positives)
        return (max(0.0, 1 - bound), 1.0) if area == 1 else (0.0, min(1.0, bound))
    half = quantile(confidence) * math.sqrt(variance) / (area * (1 - area))
    centre = math.log(area / (1 - area))
    return _logistic(centre - half), _logistic(centre + half)


def jackknife(
    groups: Mapping[str, Floats],
    values_of: Callable[[Mapping[str, Floats]], Mapping[str, float]],
    confidence: float,
) -> dict[str, Interval]:
    """Delete-a-group intervals of any metrics (Shao and Tu 1995, section 2.3).

    Args:
        groups: additive counts and sums, the first axis being the group.
        values_of: metrics by name, from counts and sums without that axis.
        confidence: 0.95 for instance.

    Returns:
        Intervals by metric; a metric that is undefined or not finite without some group has none.
    """
    totals = {name: array.sum(0) for name, array in groups.items()}
    count = len(next(iter(groups.values())))
    if count < 2:
        return {}
    whole = values_of(totals)
    without = [
        values_of({name: totals[name] - groups[name][group] for name in groups})
        for group in range(count)
    ]
    found = {}
    for name, value in whole.items():
        left = np.array([values.get(name, math.nan) for values in without])
        if math.isfinite(value) and np.isfinite(left).all():
            error = math.sqrt((count - 1) / count * float(((left - left.mean()) ** 2).sum()))
            half = quantile(confidence) * error
            found[name] = (value - half, value + half)
    return found


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))
