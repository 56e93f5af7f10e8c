"""Figures of the gamma population: the model, corner plots beside the exact posterior, and calibration against n."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fishnets.experiments.gamma_measures import TargetPosterior
from fishnets.experiments.gamma_population import Result, Trained
from fishnets.inference.plots import DARK, GREY, corner_plot, ecdf_plot, new_figure
from fishnets.inference.uniformity import uniformity

__all__ = ["calibration_figure", "draw", "plate_diagram", "target_figure"]

NAMES = (r"$\mu$", r"$\Theta$")
LEVELS = {"mu": r"PIT of $\mu$", "Theta": r"PIT of $\Theta$", "coverage": "coverage", "tarp": "TARP"}


def draw(result: Result, stem: Path) -> None:
    """Draws every figure of the study beside its record."""
    plate_diagram(result.config.threshold).savefig(stem.with_name(f"{stem.name}-model.png"), dpi=150)
    for theta in result.config.targets:
        name = f"{stem.name}-target-{theta[0]:g}-{theta[1]:g}.png"
        shown = {"exact", "hmc", result.config.candidates[0].label}
        posteriors = [t for t in result.targets if t.theta == theta and t.method in shown]
        target_figure(posteriors).savefig(stem.with_name(name), dpi=150)
    calibration_figure(result.trained).savefig(stem.with_name(f"{stem.name}-calibration.png"), dpi=150)
    for size, tested in result.trained[0].tested.items():
        levels = {LEVELS[name]: values.cpu() for name, values in tested.levels.items()}
        figure = ecdf_plot(levels)
        figure.axes[0].set_title(f"{result.trained[0].candidate.label} network, n = {size:,}", fontsize=9)
        figure.savefig(stem.with_name(f"{stem.name}-levels-{size}.png"), dpi=150)


def target_figure(posteriors: Sequence[TargetPosterior]) -> Any:
    """Fig. 4b: posteriors of one target, by method and set size, overlaid."""
    labels = {f"{t.method}, n = {t.size:,}": t for t in posteriors}
    exact = [label for label, t in labels.items() if t.method == "exact"]
    dashed = [label for label, t in labels.items() if t.method == "hmc"]
    samples = {label: t.samples for label, t in labels.items()}
    return corner_plot(samples, NAMES, truth=posteriors[0].theta, filled=exact, dashed=dashed)


def calibration_figure(trained: Sequence[Trained]) -> Any:
    """Distance of the levels from uniform against the set size, with the line a calibrated posterior stays below."""
    figure = new_figure(4.2 * len(trained), 3.8)
    axes = figure.subplots(1, len(trained), squeeze=False, sharey=True)[0]
    for axis, one in zip(axes, trained, strict=True):
        sizes = list(one.tested)
        for (name, label), marker in zip(LEVELS.items(), "osD^", strict=True):
            distances = [uniformity(one.tested[n].levels[name].cpu()).statistic for n in sizes]
            axis.plot(sizes, distances, marker=marker, label=label, linewidth=1.2, markersize=5)
        low, high = one.candidate.size
        axis.axvspan(0.93 * low, 1.07 * high, color=GREY, alpha=0.35, linewidth=0, label="sizes trained on")
        number = len(one.tested[sizes[0]].theta)
        line = {"color": DARK, "linewidth": 1, "linestyle": "--", "label": "passed by 1 % if calibrated"}
        axis.axhline(1.63 / math.sqrt(number), **line)
        axis.set(xscale="log", xlabel="data in a set, n", title=f"{one.candidate.label} network")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("Kolmogorov–Smirnov distance")
    entries = axes[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def plate_diagram(threshold: int | None = None) -> Any:
    """Fig. 4a: the hierarchical model; circles are random, boxes computed, shaded nodes observed."""
    figure = new_figure(4.0, 4.6)
    axis = figure.subplots()
    axis.set(xlim=(0, 4), ylim=(0.1, 4.9), aspect="equal")
    axis.axis("off")
    places = {
        r"$\mu$": (1.2, 4.5),
        r"$\Theta$": (2.4, 4.5),
        r"$\gamma_i$": (1.8, 3.2),
        r"$\tau_i$": (3.0, 3.2),
        r"$\lambda_i$": (2.4, 2.1),
        "$s_i$": (2.4, 1.0),
    }
    observed, computed = {r"$\tau_i$", "$s_i$"}, {r"$\lambda_i$"}
    arrows = [(0, 2), (1, 2), (2, 4), (3, 4), (4, 5)]
    centres = list(places.values())
    for start, end in arrows:
        cut = threshold is not None and end == 5
        style = {"arrowstyle": "-|>", "color": DARK, "shrinkA": 15, "shrinkB": 15, "linestyle": "--" if cut else "-"}
        axis.annotate("", centres[end], centres[start], arrowprops=style)
    for name, centre in places.items():
        shape = "square,pad=0.35" if name in computed else "circle,pad=0.32"
        fill = "#e4e7eb" if name in observed else "white"
        box = {"boxstyle": shape, "facecolor": fill, "edgecolor": DARK}
        axis.text(*centre, name, ha="center", va="center", fontsize=13, bbox=box)
    axis.plot([1.1, 3.7, 3.7, 1.1, 1.1], [0.45, 0.45, 3.75, 3.75, 0.45], color=GREY, linewidth=1)
    axis.text(3.62, 0.53, "$i = 1 \\dots n$", ha="right", va="bottom", fontsize=9)
    if threshold is not None:
        axis.text(2.55, 1.52, f"kept if $s_i \\geq {threshold}$", fontsize=8, va="center")
    return figure
