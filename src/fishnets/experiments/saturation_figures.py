"""The figure of saturation: the loss of information against the size of the set, by problem and estimator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fishnets.experiments.records import Metric
from fishnets.experiments.saturation import METHODS, Result
from fishnets.inference.plots import COLOURS, DARK, GREY, new_figure

__all__ = ["draw", "saturation_figure"]

TITLES = {
    "linear": "linear regression",
    "normal": "normal, mean and variance",
    "gamma": "gamma population",
    "censored": "gamma population, censored",
}
LABELS = {"plain": "plain", "onestep": "local steps", "centred": "local steps, centred"}


def draw(result: Result, stem: Path) -> None:
    """Draws the figure beside its record."""
    figure = saturation_figure([problem.name for problem in result.config.problems], result.metrics)
    figure.savefig(stem.with_name(f"{stem.name}-chi2.png"), dpi=150)


def saturation_figure(names: list[str], metrics: Mapping[str, Metric]) -> Any:
    """Squared error over the Cramér-Rao bound, one panel for each problem."""
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(4.3 * columns, 0.6 + 3.1 * rows)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axis, name in zip(axes.flat, names, strict=False):
        for method, colour, marker in zip(METHODS, COLOURS, "osD", strict=False):
            _curve(axis, metrics, name, method, label=LABELS[method], color=colour, marker=marker)
        _curve(axis, metrics, name, "exact", label="exact posterior mean", color=DARK, marker="x", linestyle=":")
        axis.axhline(1, color=GREY, linewidth=1, zorder=0)
        axis.set(xscale="log", yscale="log", title=TITLES.get(name, name))
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    for row in axes:
        row[0].set_ylabel("squared error over the bound")
    for axis in axes[-1]:
        axis.set_xlabel("data in a set, n")
    entries = axes.flat[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def _curve(axis: Any, metrics: Mapping[str, Metric], name: str, method: str, **style: Any) -> None:
    prefix = f"chi2/{name}/{method}/n="
    found = sorted((int(key.removeprefix(prefix)), entry) for key, entry in metrics.items() if key.startswith(prefix))
    if not found:
        return
    sizes, values = [size for size, _ in found], [entry.value for _, entry in found]
    errors = [entry.error for _, entry in found]
    axis.errorbar(sizes, values, errors, linewidth=1.2, markersize=4.5, capsize=2, **style)
