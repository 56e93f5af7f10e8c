"""Figures of the robustness study: the laws of the noise, and errors of every network under the shifts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fishnets.experiments.robustness import LAWS, Result
from fishnets.inference.plots import COLOURS, DARK, GREY, new_figure

__all__ = ["draw", "law_figure", "residual_figure"]


def draw(result: Result, stem: Path) -> None:
    """Draws every figure of the study beside its record."""
    law_figure().savefig(stem.with_name(f"{stem.name}-laws.png"), dpi=150)
    for law in ("A", "C"):
        residual_figure(result, law).savefig(stem.with_name(f"{stem.name}-residuals-{law}.png"), dpi=150)


def law_figure() -> Any:
    """Fig. 3a: the noise's standard deviation in training and under both readings of the shift."""
    figure = new_figure(4.6, 3.0)
    axis = figure.subplots()
    labels = {"training": "training", "A": "test, reading A", "C": "test, reading C"}
    for (law, simulator), color in zip(LAWS.items(), (GREY, *COLOURS), strict=False):
        theta, size = torch.zeros(1, 2), torch.tensor([200_000])
        sets = simulator(theta, size, torch.Generator().manual_seed(0))
        sigma = simulator.columns(sets.values)[2]
        style: dict[str, Any] = {"histtype": "step", "linewidth": 1.6}
        if law == "training":
            style = {"histtype": "stepfilled", "alpha": 0.5}
        axis.hist(sigma.numpy(), 90, range=(1, 10), density=True, color=color, label=labels[law], **style)
    axis.set(xlabel=r"standard deviation of the noise, $\sigma$", ylabel="density")
    axis.legend(frameon=False, fontsize=8)
    return figure


def residual_figure(result: Result, law: str) -> Any:
    """Fig. 3b, as distributions: how far the estimates of slope and intercept fall from the truth, by network.

    Errors are in units of the exact estimate's own, on a logarithmic scale: they span decades under the shift.
    """
    networks = [kind for kind, one in result.residuals if one == law and kind != "exact"]
    figure = new_figure(8.4, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    exact = result.residuals["exact", law][0]
    share = (torch.arange(len(exact)) + 0.5) / len(exact)
    for i, (axis, label) in enumerate(zip(axes, (r"slope, $|\hat m - m|$", r"intercept, $|\hat c - c|$"), strict=True)):
        scale = exact[:, i].square().mean().sqrt()
        curves = {"exact posterior mean": exact[:, i], **{k: result.residuals[k, law][0, :, i] for k in networks}}
        for (kind, values), color in zip(curves.items(), (DARK, *COLOURS), strict=False):
            errors = (values.abs() / scale).sort().values
            width = 2.4 if kind == "exact posterior mean" else 1.3
            axis.plot(errors.numpy(), share.numpy(), color=color, linewidth=width, label=kind)
        axis.set(xscale="log", xlim=(0.05, None), xlabel=f"{label} over the exact estimate's rms")
    axes[0].set_ylabel("share of test sets below")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
