"""What a reader sees of records: tables, and the lines that say where they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fishnets.experiments.records import Metric, Record, read_record

__all__ = ["MADE", "comparison_table", "facts_of", "format_metric", "markdown_table", "records_of"]

MADE = "Made by `python -m fishnets.experiments.pages results` from the records beside it:"


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


def records_of(folder: Path) -> list[Record]:
    """The records of a folder; those of quick runs only where there is no other."""
    found = [read_record(path) for path in sorted(folder.glob("*.json"))]
    full = [record for record in found if record.preset == "paper"]
    return full or found


def facts_of(records: Sequence[Record]) -> list[str]:
    """Command, hardware, time and version of each record, as lines of a list."""
    lines = [f"- `{r.command}` ({r.hardware}, {r.seconds:.0f} s, torch {r.versions['torch']})" for r in records]
    return lines or ["- none yet: the study is not over"]
