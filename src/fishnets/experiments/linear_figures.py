"""Figures of the linear-regression study: residuals, what each datum contributes, losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fishnets.experiments.linear_scaling import Result, Trained, simulator_of
from fishnets.inference.plots import COLOURS, DARK, GREY, new_figure
from fishnets.ragged import Sets

__all__ = ["draw", "loss_figure", "residual_figure", "slice_figure"]

PINK = COLOURS[0]


def draw(result: Result, stem: Path) -> None:
    """Draws every figure of the study beside its record."""
    trained, size = result.trained, result.config.test_sizes[-1]
    for one in trained:
        residual_figure(one, size, stem.with_name(f"{stem.name}-{one.candidate.label}-residuals.png"))
        slice_figure(one, stem.with_name(f"{stem.name}-{one.candidate.label}-sites.png"))
    loss_figure(trained, stem.with_name(f"{stem.name}-loss.png"))


def residual_figure(trained: Trained, size: int, path: Path) -> None:
    """Fig. 2a: histograms of the estimates' residuals at one set size, network beside exact."""
    ours, exact = trained.residuals[size]
    figure = new_figure(8, 3.2)
    axes = figure.subplots(1, 2)
    for i, (axis, label) in enumerate(zip(axes, (r"slope $\hat m - m$", r"intercept $\hat c - c$"), strict=True)):
        reach = 1.05 * float(torch.cat([ours[:, i], exact[:, i]]).abs().max())
        edges = torch.linspace(-reach, reach, 41).tolist()
        axis.hist(exact[:, i].tolist(), edges, color=GREY, alpha=0.7, label="exact posterior mean")
        axis.hist(ours[:, i].tolist(), edges, color=PINK, histtype="step", linewidth=1.8, label="Fishnets")
        axis.axvline(0, color=DARK, linewidth=0.8)
        axis.set_xlabel(label)
    axes[0].set_ylabel("test sets")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{trained.candidate.label} network, {len(ours)} test sets of n = {size:,}", fontsize=10)
    figure.savefig(path, dpi=150)


def slice_figure(trained: Trained, path: Path, num_data: int = 1500, seed: int = 7) -> None:
    """Fig. 2b: score and Fisher matrix of each datum against its inputs, true (dark) and learned (pink).

    Scores are compared in the natural gauge, t + F theta*, which does not depend on the fiducial.
    """
    rows, true, learned = _sites(trained, num_data, seed)
    labels = ("score $m$", "score $c$", "$F_{mm}$", "$F_{mc}$", "$F_{cc}$")
    figure = new_figure(9, 11)
    axes = figure.subplots(5, 3, sharex="col", sharey="row")
    for i, label in enumerate(labels):
        for j, name in enumerate(("$y$", "$x$", r"$\sigma$")):
            axis = axes[i][j]
            axis.scatter(rows[j], true[:, i], s=5, color=DARK, label="exact", linewidths=0)
            axis.scatter(rows[j], learned[:, i], s=3, color=PINK, label="Fishnets", linewidths=0, alpha=0.7)
            if j == 0:
                axis.set_ylabel(label)
            if i == len(labels) - 1:
                axis.set_xlabel(name)
    axes[0][0].legend(frameon=False, fontsize=8, markerscale=2)
    figure.suptitle(f"{trained.candidate.label} network: what each datum contributes", fontsize=10)
    figure.savefig(path, dpi=130)


def loss_figure(trained: Sequence[Trained], path: Path) -> None:
    """Loss of every member against the step, on validation sets or, where none are held out, on training sets."""
    figure = new_figure(4.5 * len(trained), 3.2)
    axes = figure.subplots(1, len(trained), squeeze=False)
    for axis, one in zip(axes[0], trained, strict=True):
        curves = torch.tensor(one.history.validation_loss)
        for k in range(curves.shape[1]):
            axis.plot(one.history.steps, curves[:, k].tolist(), color=PINK, linewidth=0.9, alpha=0.8)
        low, high = float(curves.min()), float(curves[len(curves) // 10 :].max())
        axis.set_ylim(low - 0.05 * (high - low + 0.1), high + 0.05 * (high - low + 0.1))
        what = "validation loss" if one.candidate.stored_sets is None else "loss on training sets"
        axis.set(xlabel="step", ylabel=what, title=f"{one.candidate.label}, members apart")
    figure.savefig(path, dpi=130)


@torch.no_grad()
def _sites(trained: Trained, num_data: int, seed: int) -> tuple[list[Any], Any, Any]:
    """Inputs (3 columns), exact and learned contributions (n, 5) of data from the test law."""
    model = trained.model
    simulator = simulator_of(trained.candidate)
    generator = torch.Generator().manual_seed(seed)
    theta = simulator.prior.sample(num_data, generator)
    values = simulator(theta, torch.ones(num_data, dtype=torch.int64), generator).values
    score, fisher = simulator.sites(values, torch.zeros(2, dtype=torch.float64))
    alone = model.compress(Sets(values, torch.arange(num_data + 1)))  # every datum a set of its own
    learned = torch.cat([alone.natural, alone.fisher.flatten(1)[:, [0, 1, 3]]], dim=1)
    columns = [column.numpy() for column in simulator.columns(values)]
    return columns, torch.cat([score, fisher], dim=1).numpy(), learned.numpy()
