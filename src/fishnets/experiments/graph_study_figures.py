"""Figures of studies of graph networks: loss and validation score as they are trained, and test scores over seeds.

Fishnets have the same colour in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from fishnets.experiments.graph_study import Runs, StudyResult
from fishnets.experiments.records import Metric
from fishnets.inference.plots import COLOURS, new_figure

__all__ = ["curves_figure", "draw_networks", "network_scores_figure", "scores_figure"]


def draw_networks(result: StudyResult, title: str, stem: Path) -> None:
    """Draws curves and test scores of all networks of a study beside their record."""
    curves_figure({title: result.runs}).savefig(stem.with_name(f"{stem.name}-curves.png"), dpi=150)
    network_scores_figure(title, result.metrics, list(result.runs)).savefig(
        stem.with_name(f"{stem.name}-scores.png"), dpi=150
    )


def network_scores_figure(title: str, metrics: Mapping[str, Metric], names: Sequence[str]) -> Any:
    """Test scores of networks; where they are of the last evaluations, those at the best validation score too."""
    at_best = {name: metrics[f"at_best/{name}"] for name in names if f"at_best/{name}" in metrics}
    return scores_figure({title: {name: metrics[f"rocauc/{name}"] for name in names}}, at_best=at_best)


def curves_figure(panels: Mapping[str, Mapping[str, Runs]], score: str = "ROC-AUC") -> Any:
    """Loss and validation score against epochs, a row for each panel, a line for each network; of the first seed."""
    figure = new_figure(7.4, 2.3 * len(panels) + 0.4)
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for row, (title, networks) in zip(axes, panels.items(), strict=True):
        for (label, runs), colour in zip(networks.items(), _colours(networks), strict=True):
            curve = runs.curve
            row[0].plot(curve.epochs, curve.loss, color=colour, label=label, linewidth=1.2)
            row[1].plot(curve.epochs, curve.valid, color=colour, linewidth=1.2)
        row[0].set(xlabel="epochs", ylabel="training loss", yscale="log")
        row[1].set(xlabel="epochs", ylabel=f"validation {score}")
        row[0].set_title(title, loc="left", fontsize=9)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(handles[0]), frameon=False, fontsize=8)
    return figure


def scores_figure(
    panels: Mapping[str, Mapping[str, Metric]], score: str = "ROC-AUC", at_best: Mapping[str, Metric] | None = None
) -> Any:
    """Test scores with their spread, a panel for each title, a row for each network; crosses: the paper.

    Where scores of the last evaluations are given, open circles are those ``at_best``, by network.
    """
    rows = max(len(networks) for networks in panels.values())
    figure = new_figure(3.7 * len(panels), (1.3 if at_best else 1.1) + 0.35 * rows)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, networks) in zip(axes, panels.items(), strict=True):
        for row, (entry, colour) in enumerate(zip(networks.values(), _colours(networks), strict=True)):
            axis.errorbar(entry.value, row, xerr=entry.error, color=colour, marker="o", markersize=5, capsize=2)
            if entry.paper is not None:
                axis.plot(entry.paper, row, color=colour, marker="x", linestyle="none")
        for row, (name, colour) in enumerate(zip(networks, _colours(networks), strict=True)):
            if at_best and name in at_best:
                axis.plot(at_best[name].value, row, color=colour, marker="o", fillstyle="none", linestyle="none")
        crosses = " (crosses: paper)" if any(entry.paper is not None for entry in networks.values()) else ""
        of_last = " at the end\n(open: best validation)" if at_best else ""
        axis.set(xlabel=f"test {score}{of_last}{crosses}", yticks=range(len(networks)), yticklabels=list(networks))
        axis.set_title(title, loc="right", fontsize=9)  # over the labels too, which leave room for it
        axis.set_ylim(rows - 0.5, -0.5)
    return figure


def _colours(networks: Mapping[str, Any]) -> list[str]:
    """The first colours for Fishnets, in order, the others for the rest."""
    ordered = sorted(networks, key=lambda name: "fishnets" not in name)
    given = dict(zip(ordered, cycle(COLOURS), strict=False))
    return [given[name] for name in networks]
