"""Tables of results: what a reader sees of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fishnets.experiments.records import Metric

__all__ = ["comparison_table", "format_metric", "markdown_table"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(markdown_table(["a"], [["1"]]))
        | a |
        | --- |
        | 1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_metric(entry: Metric | None) -> str:
    """A metric with its error, in as many digits as the error supports."""
    if entry is None:
        return "–"
    if abs(entry.value) >= 1e4 or (entry.error == 0 and entry.value == round(entry.value)):
        return f"{entry.value:,.0f}"
    if entry.error == 0:  # exact, or read off once
        return f"{entry.value:.4g}"
    digits = 4 if not entry.error > 0 else min(6, max(2, 1 - math.floor(math.log10(entry.error))))
    return f"{entry.value:.{digits}f} ± {entry.error:.{digits}f}"


def comparison_table(columns: Mapping[str, Mapping[str, Metric]], names: Sequence[str]) -> str:
    """Metrics of several records between the paper's value and the exact bound, where they exist."""
    rows = []
    for name in names:
        entries = [metrics.get(name) for metrics in columns.values()]
        given = [e for e in entries if e is not None]
        paper = next((f"{e.paper:.4f}" for e in given if e.paper is not None), "–")
        optimum = next((f"{e.bound:.4f}" for e in given if e.bound is not None), "–")
        rows.append([f"`{name}`", paper, *[format_metric(e) for e in entries], optimum])
    return markdown_table(["metric", "paper", *columns, "optimum"], rows)
