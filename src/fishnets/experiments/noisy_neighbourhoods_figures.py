"""The figure of noisy neighbourhoods: how far above the bound squared errors are, by aggregation and test law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fishnets.experiments.noisy_neighbourhoods import LAWS, Result
from fishnets.inference.plots import COLOURS, new_figure

__all__ = ["draw", "neighbourhoods_figure"]

LABELS = {"train": "law of training", "degree-x20": "20 times the degree", "noise-shift": "another law of covariates"}


def draw(result: Result, stem: Path) -> None:
    """Draws the figure beside its record."""
    neighbourhoods_figure(result).savefig(stem.with_name(f"{stem.name}-mse.png"), dpi=150)


def neighbourhoods_figure(result: Result) -> Any:
    """A row for each aggregation, a mark for each law."""
    methods = result.config.methods
    figure = new_figure(6.4, 1.2 + 0.38 * len(methods))
    axis = figure.subplots()
    for law, colour, marker in zip(LAWS, COLOURS, "osD", strict=False):
        entries = [result.metrics[f"mse_over_bound/{method}/{law}"] for method in methods]
        axis.errorbar(
            [entry.value - 1 for entry in entries],
            range(len(methods)),
            xerr=[entry.error for entry in entries],
            label=LABELS[law],
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=5,
            capsize=2,
        )
    axis.set(xscale="log", yticks=range(len(methods)), yticklabels=methods)
    axis.set_xlabel("squared error over the least possible, less one")
    axis.grid(axis="y", linewidth=0.4)
    axis.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure
