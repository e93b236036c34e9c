"""The report as a page for people."""

import html

from components.contracts.report import Report


def render(report: Report) -> str:
    """A self-contained page."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{metric.value}</td></tr>"
        for name, metric in report.metrics.items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Evaluation</title>"
        f"<h1>{report.verdict}</h1><p>{html.escape(report.reason)}</p><table>{rows}</table></html>"
    )
