"""Figures of studies of graph networks: loss and validation score as they are trained, and test scores over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fishnets.experiments.graph_study import Runs
from fishnets.experiments.records import Metric
from fishnets.inference.plots import COLOURS, new_figure

__all__ = ["curves_figure", "scores_figure"]


def curves_figure(panels: Mapping[str, Mapping[str, Runs]], score: str = "ROC-AUC") -> Any:
    """Loss and validation score against epochs, a row for each panel, a line for each network; of the first seed."""
    figure = new_figure(7.4, 2.3 * len(panels) + 0.4)
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for row, (title, networks) in zip(axes, panels.items(), strict=True):
        for (label, runs), colour in zip(networks.items(), COLOURS, strict=False):
            curve = runs.curve
            row[0].plot(curve.epochs, curve.loss, color=colour, label=label, linewidth=1.2)
            row[1].plot(curve.epochs, curve.valid, color=colour, linewidth=1.2)
        row[0].set(xlabel="epochs", ylabel="training loss", title=title)
        row[1].set(xlabel="epochs", ylabel=f"validation {score}", title=title)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(handles[0]), frameon=False, fontsize=8)
    return figure


def scores_figure(metrics: Mapping[str, Metric], labels: Sequence[str], groups: Sequence[str], score: str) -> Any:
    """Test scores ``score/label/group`` with their spread over seeds, a row for each label, a panel for each group."""
    figure = new_figure(3.7 * max(1, len(groups)), 1.1 + 0.35 * len(labels))
    axes = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axis, group in zip(axes, groups, strict=True):
        for row, (label, colour) in enumerate(zip(labels, COLOURS * len(labels), strict=False)):
            entry = metrics.get(f"{score}/{label}/{group}")
            if entry is not None:
                axis.errorbar(entry.value, row, xerr=entry.error, color=colour, marker="o", markersize=5, capsize=2)
        axis.set(xlabel=f"test {score}, {group}", yticks=range(len(labels)), yticklabels=labels)
    axes[0].invert_yaxis()
    return figure
