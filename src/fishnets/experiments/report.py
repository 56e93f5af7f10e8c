"""Tables and pages of results: what a reader sees."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fishnets.experiments.records import Metric, read_record

__all__ = ["comparison_table", "format_metric", "linear_scaling_page", "markdown_table"]


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
    if abs(entry.value) >= 1e4:
        return f"{entry.value:,.0f}"
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


def linear_scaling_page(root: str | Path) -> str:
    """The page of the linear-regression study, made from its records on a GPU."""
    folder = Path(root) / "linear-scaling"
    records = [read_record(path) for path in sorted(folder.glob("paper-*.json"))]
    columns: dict[str, dict[str, Metric]] = {}
    for record in records:
        for candidate in record.config["candidates"]:
            label = candidate["label"]
            columns[f"{record.protocol}, {label} network"] = {
                name.replace(f"/{label}", ""): entry
                for name, entry in record.metrics.items()
                if f"/{label}/" in name or name.endswith(f"/{label}")
            }
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    figures = sorted(path.name for path in folder.glob("paper-*.png"))
    facts = [f"`{r.command}` ({r.hardware}, {r.seconds:.0f} s, torch {r.versions['torch']})" for r in records]
    return "\n".join(
        [
            "# Linear regression: trained on small sets, used on large ones",
            "",
            "Made by `python -m fishnets.experiments.report results` from the records beside it:",
            "",
            *[f"- {fact}" for fact in facts],
            "",
            "The paper shows this experiment as histograms (its Fig. 2a) and quotes no number for it. A plot committed "
            "with its authors' code, read by eye, puts the excess ratio of single networks at 0.05 to 0.08 for n = 500 "
            "(on training sets) and at 0.13 to 0.70 for n = 10,000.",
            "",
            comparison_table(columns, names),
            "",
            "What the protocols are, and notes on these records: [all records](../README.md).",
            "",
            *[f"![{name}]({name})" for name in figures],
            "",
        ]
    )


if __name__ == "__main__":
    (Path(sys.argv[1]) / "linear-scaling" / "README.md").write_text(linear_scaling_page(sys.argv[1]))
