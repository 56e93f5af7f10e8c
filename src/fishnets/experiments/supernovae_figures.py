"""Figures of the supernovae: the Hubble diagram with the fitted curve, and posteriors on top of the exact ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.experiments.supernovae import Fit, Result
from fishnets.experiments.union21 import Table
from fishnets.inference.plots import COLOURS, DARK, GREY, corner_plot, new_figure
from fishnets.ragged import Sets
from fishnets.simulators import SupernovaPosterior

__all__ = ["draw", "hubble_figure", "posterior_figure"]

NAMES = {2: (r"$\Omega_m$", r"offset $\delta$"), 3: (r"$\Omega_m$", "$w$")}
NUM_SAMPLES, NUM_BINS = 200_000, 14
OTHERS = (0.1, 0.5, 1.0)  # matter densities of universes drawn for comparison
REACH, TICKS = 0.75, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def draw(result: Result, stem: Path) -> None:
    """Draws every figure of the study beside its record."""
    hubble_figure(result.config.table, result.fits[""]).savefig(stem.with_name(f"{stem.name}-hubble.png"), dpi=150)
    for prefix, label in (("", "posterior"), ("w/", "posterior-w")):
        posterior_figure(result.fits[prefix]).savefig(stem.with_name(f"{stem.name}-{label}.png"), dpi=150)


def hubble_figure(table: Table, fit: Fit) -> Any:
    """Moduli less those of the reference universe against redshift, single and binned, with the fit and its band."""
    figure = new_figure(7.2, 4.2)
    axis = figure.subplots()
    rows = fit.simulator.pack(table.z, table.mu, table.sigma)
    errors: dict[str, Any] = {"fmt": ".", "color": GREY, "alpha": 0.35, "markersize": 3, "elinewidth": 0.5, "zorder": 1}
    axis.errorbar(table.z, rows[:, 0], table.sigma, label="supernovae", **errors)
    axis.errorbar(*_binned(rows), fmt="o", color=DARK, markersize=4, capsize=2, label="weighted means", zorder=4)
    z = torch.logspace(math.log10(0.9 * float(table.z.min())), math.log10(1.1 * float(table.z.max())), 200).double()
    curve, band = _fitted(fit, z)
    axis.plot(z, curve, color=COLOURS[1], linewidth=1.8, label="Fishnet", zorder=3)
    axis.fill_between(z, curve - band, curve + band, color=COLOURS[1], alpha=0.25, linewidth=0, zorder=2)
    look: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.4, "linestyle": "--", "zorder": 3}
    axis.plot(z, _shift(fit, z, fit.exact.mean), label="exact posterior mean", **look)
    for omega_m in OTHERS:
        other = _shift(fit, z, torch.tensor([omega_m, float(fit.exact.mean[-1])]).to(z))
        axis.plot(z, other, color=DARK, linewidth=0.9, linestyle=":", zorder=3)
        axis.text(float(z[-1]), float(other[-1]), rf" $\Omega_m = {omega_m:g}$", fontsize=8, va="center")
    axis.set(xscale="log", ylim=(-REACH, REACH), xlim=(float(z[0]), float(z[-1])), xlabel="redshift $z$")
    axis.set_xticks([x for x in TICKS if z[0] <= x <= z[-1]], [f"{x:g}" for x in TICKS if z[0] <= x <= z[-1]])
    axis.set_ylabel(r"$\mu - \mu(\Omega_m = 0.3)$ in magnitudes")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def posterior_figure(fit: Fit) -> Any:
    """The exact posterior as filled contours and the Fishnet's Gaussian over it, in the first two parameters."""
    grid = fit.exact.grid if isinstance(fit.exact, SupernovaPosterior) else fit.exact
    generator = torch.Generator().manual_seed(0)
    exact, learned = (law.sample(NUM_SAMPLES, generator)[:, :2] for law in (grid, fit.learned))
    return corner_plot({"exact": exact, "Fishnet": learned}, NAMES[fit.simulator.num_params], filled=["exact"])


def _shift(fit: Fit, z: Tensor, theta: Tensor) -> Tensor:
    """Modulus less that of the reference universe, shape (K,), at redshifts (K,)."""
    values = fit.simulator.pack(z, fit.simulator.modulus(z, theta), torch.ones_like(z))
    return values[:, 0]


def _fitted(fit: Fit, z: Tensor) -> tuple[Tensor, Tensor]:
    """The fitted curve and the standard deviation of the modulus that the estimate's covariance gives, (K,) each."""
    mean, covariance = fit.learned.mean, fit.learned.covariance
    rows = fit.simulator.pack(z, fit.simulator.modulus(z, mean), torch.ones_like(z))
    singles = Sets.from_block(rows.unsqueeze(1))
    # a single supernova with an error of one magnitude has the outer product of its slopes as Fisher matrix
    outer = fit.simulator.fisher(singles, mean.expand(len(z), -1))
    return rows[:, 0], (outer * covariance).sum((1, 2)).sqrt()


def _binned(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Redshifts, weighted means and their errors of groups of supernovae with neighbouring redshifts."""
    ordered = rows[rows[:, 1].argsort()]
    groups = [part for part in ordered.tensor_split(NUM_BINS) if len(part)]
    weights = [torch.exp(-2 * part[:, 2]) for part in groups]
    z = torch.stack([part[:, 1].mean().exp() for part in groups])
    mean = torch.stack([(w * part[:, 0]).sum() / w.sum() for w, part in zip(weights, groups, strict=True)])
    return z, mean, torch.stack([w.sum().rsqrt() for w in weights])
