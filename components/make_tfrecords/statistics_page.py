"""A page of a dataset's statistics: one HTML file without anything to load."""

from collections.abc import Sequence
from html import escape

from components.contracts.dataset import Dataset, Feature, Statistics

MAX_WORDS = 8
_BAR_HEIGHT = 36
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: .35em .8em; text-align: left; vertical-align:
top } tr + tr td { border-top: 1px solid #ddd } th { border-bottom: 2px solid #888 }
td.n { text-align: right; font-variant-numeric: tabular-nums } .dim { color: #777 }
.warn { color: #a40 } svg { fill: #47a }
"""


def render(dataset: Dataset, fractions: Sequence[str] = ()) -> str:
    """The page of a converted dataset.

    Args:
        dataset: with statistics in its schema.
        fractions: names of the splits in the user's order; the first one is what is described.
    """
    schema = dataset.schema
    described = fractions[0] if fractions else next(iter(dataset.splits))
    splits = ", ".join(f"{escape(name)} {count:,}" for name, count in dataset.splits.items())
    rejected = f", {dataset.num_rejected:,} rejected" if dataset.num_rejected else ""
    rows = "".join(_row(feature) for feature in schema.features)
    classes = _classes(schema.classes, schema.label.statistics) if schema.classes else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Dataset statistics</title>"
        f"<style>{_STYLE}</style><h1>Dataset statistics</h1>"
        f"<p>{dataset.num_rows:,} rows read{rejected}; examples: {splits}. Label "
        f"<b>{escape(schema.label.name)}</b>, {schema.task}. Statistics are of the split "
        f"<b>{escape(described)}</b>.</p>{classes}"
        "<table><tr><th>column<th>kind<th>values<th>missing<th>mean<th>deviation<th>min<th>max"
        f"<th>distribution</tr>{_row(schema.label)}{rows}</table></html>\n"
    )


def _row(feature: Feature) -> str:
    statistics = feature.statistics
    total = statistics.count + statistics.missing
    share = statistics.missing / total if total else 0.0
    numbers = ["", "", "", ""]
    if statistics.minimum is not None and statistics.maximum is not None:
        deviation = statistics.variance**0.5
        numbers = [
            _number(n) for n in (statistics.mean, deviation, statistics.minimum, statistics.maximum)
        ]
    shape = f" {list(feature.shape)}" if feature.shape else ""
    details = "; ".join(filter(None, (feature.source_type, feature.note)))
    missing = f"<span class=warn>{share:.1%}</span>" if share else "0"
    cells = "".join(f"<td class=n>{number}" for number in numbers)
    return (
        f"<tr><td><b>{escape(feature.name)}</b><br><span class=dim>{escape(details)}</span>"
        f"<td>{feature.kind}{shape}<td class=n>{statistics.count:,}<td class=n>{missing}{cells}"
        f"<td>{_distribution(statistics)}</tr>"
    )


def _distribution(statistics: Statistics) -> str:
    if statistics.histogram[1]:
        return _bars(*statistics.histogram)
    if statistics.image:
        sizes = statistics.image
        return (
            f"height {sizes['min_height']} to {sizes['max_height']}, "
            f"width {sizes['min_width']} to {sizes['max_width']}"
        )
    words = [
        f"{escape(word) or '<i>empty</i>'} <span class=dim>{count:,}</span>"
        for word, count in statistics.vocabulary[:MAX_WORDS]
    ]
    more = statistics.num_distinct - len(words)
    return ", ".join(words) + (f", <span class=dim>{more:,} more</span>" if more > 0 else "")


def _bars(edges: Sequence[float], counts: Sequence[int]) -> str:
    highest = max(counts) or 1
    bars = "".join(
        f"<rect x={4 * index} y={_BAR_HEIGHT - height:.1f} width=3 height={height:.1f}>"
        f"<title>{_number(edges[index])} to {_number(edges[index + 1])}: {count:,}</title></rect>"
        for index, count in enumerate(counts)
        if (height := _BAR_HEIGHT * count / highest)
    )
    return f"<svg width={4 * len(counts)} height={_BAR_HEIGHT} role=img>{bars}</svg>"


def _classes(classes: Sequence[str], label: Statistics) -> str:
    counts = dict.fromkeys(range(len(classes)), 0)
    edges, bins = label.histogram
    for edge, count in zip(edges, bins, strict=False):
        counts[int(edge)] = counts.get(int(edge), 0) + count
    if any(
        edge != int(edge) or after - edge != 1
        for edge, after in zip(edges, edges[1:], strict=False)
    ):
        return f"<p>{len(classes)} classes.</p>"  # several classes share a bin
    shown = ", ".join(
        f"{escape(name)} <span class=dim>{counts[index]:,}</span>"
        for index, name in enumerate(classes[:64])
    )
    return f"<p>{len(classes)} classes: {shown}{' ...' if len(classes) > 64 else ''}</p>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.5g}"
