"""The figure of string-yeast: loss in training and ROC-AUC in validation, by aggregation and budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fishnets.experiments.string_yeast import Result
from fishnets.inference.plots import COLOURS, new_figure

__all__ = ["draw", "yeast_figure"]

LABELS = {"epochs": "equal epochs", "time": "equal time"}
TITLES = {"loss": "loss on training nodes", "valid_auc": "ROC-AUC on validation nodes"}


def draw(result: Result, stem: Path) -> None:
    """Draws the figure beside its record."""
    yeast_figure(result).savefig(stem.with_name(f"{stem.name}-auc.png"), dpi=150)


def yeast_figure(result: Result) -> Any:
    """A panel for each measure, a row for each aggregation, a mark for each budget."""
    methods = result.config.methods
    figure = new_figure(7.4, 1.3 + 0.4 * len(methods))
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        for shift, (kind, label), colour, marker in zip((-0.12, 0.12), LABELS.items(), COLOURS, "os", strict=False):
            entries = [result.metrics[f"{name}/{method}/equal-{kind}"] for method in methods]
            rows = [row + shift for row in range(len(methods))]
            values, errors = [entry.value for entry in entries], [entry.error for entry in entries]
            style = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 5, "capsize": 2}
            axis.errorbar(values, rows, xerr=errors, label=label, **style)
        axis.set(xlabel=title, yticks=range(len(methods)), yticklabels=methods)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure
