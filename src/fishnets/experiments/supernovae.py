r"""Supernovae: a network trained on simulated surveys reads a real one, beside the exact posterior.

Two refined Fishnets learn distance moduli of simulated surveys of any depth, size and error model, one for
:math:`(\Omega_m, \delta)` in a flat universe with a cosmological constant, one for :math:`(\Omega_m, w, \delta)`. Both
then meet the 580 supernovae of Union2.1, which they have never seen: estimates are centred by simulations at the
table's own redshifts and errors. The likelihood is known, so the exact posterior stands beside every number.

How far estimates are from exact ones in the long run is measured on simulated surveys with the table's redshifts and
errors, for one universe near the real one and for universes drawn from the prior: the excess is the mean of
:math:`\delta^\top F\,\delta / p`, where :math:`\delta` is the estimate minus the exact posterior mean and :math:`F` the
exact Fisher matrix. An estimate is the root of a score, Gaussian prior included, and no mean: where the posterior is
skewed, as it is with :math:`w`, the root of the exact score is away from it too. That root is the bound of the excess,
and the distance from it is measured as well. The paper has no such experiment: there is one protocol, *clean*.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.errors import ConvergenceWarning
from fishnets.experiments.candidates import checkpoint_path, expect_clean
from fishnets.experiments.records import Metric, metric
from fishnets.experiments.union21 import Table, read_union21
from fishnets.inference.efficiency import excess, mean_with_error
from fishnets.networks import Gated
from fishnets.ragged import Sets
from fishnets.sets import Fishnet
from fishnets.sets.estimate import Estimate
from fishnets.simulators import GridPosterior, Supernovae, SupernovaPosterior

__all__ = ["PARAMETERS", "Config", "Fit", "Result", "Table", "Training", "config_for", "read_union21", "run"]

PARAMETERS = {"": ("omega_m", "offset"), "w/": ("omega_m", "w", "offset")}  # by the prefix of the metrics' names
UNIVERSE = {"omega_m": 0.28, "w": -1.0, "offset": 0.0}  # of the test surveys
MARGIN = 0.08  # of the prior's width, kept between its edges and the universes drawn from it
CPU_CHUNK, GPU_CHUNK = 2**15, 2**18  # rows evaluated at once: what fits the cache, and what fills a GPU
ROOT_STEPS = 20  # of Fisher scoring with exact scores
COVERAGES = ((68, 1.0), (95, 2.0))  # per cent, roughly, within so many standard deviations of a normal


@dataclass(frozen=True)
class Training:
    """A network and how it is trained, on surveys of the simulator's own law."""

    width: int = 32
    depth: int = 2
    members: int = 4
    size: tuple[int, int] = (5, 100)
    steps: int = 20_000
    batch_data: int = 51_200
    learning_rate: float = 5e-3


@dataclass(frozen=True)
class Config:
    """What to train, on which table to use it, and how to test it.

    Args:
        preset: Name of the preset.
        protocol: ``"clean"``.
        table: The real survey.
        training: The network, once with and once without the equation of state.
        loss: Share of the information that the noise of the simulations behind an estimate may cost.
        surveys: Simulated surveys in one universe.
        surveys_with_w: The same for the network that infers w as well.
        prior_surveys: Simulated surveys in universes drawn from the prior.
        repeats: Estimates from the table, with other random numbers: their spread is the Monte Carlo error.
        points: Grid points along each parameter of the exact posteriors of simulated surveys.
        seed: Seed of everything random.
        device: Where to compute.
    """

    preset: str
    protocol: str
    table: Table
    training: Training = Training()
    loss: float = 0.004
    surveys: int = 500
    surveys_with_w: int = 200
    prior_surveys: int = 100
    repeats: int = 8
    points: int = 41
    seed: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; of the table, its name and hash."""
        fields = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("table", "training")}
        return fields | {"table": self.table.to_dict(), "training": asdict(self.training)}


@dataclass(frozen=True, eq=False)
class Fit:
    """What the real table says: the network's Gaussian posterior and the exact one."""

    simulator: Supernovae
    learned: Gaussian
    exact: GridPosterior | SupernovaPosterior


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name, and the fits of the real table by the prefix of their metrics, ``""`` and ``"w/"``."""

    config: Config
    metrics: dict[str, Metric]
    fits: dict[str, Fit]
    seconds: float


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu", *, table: Table) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (CPU minutes) or ``"paper"`` (a GPU).

    Args:
        preset: How much to compute.
        protocol: ``"clean"``; the paper has no such experiment, so there is nothing published to repeat.
        seed: Seed of everything random.
        device: Where to compute.
        table: The real survey, from :func:`read_union21`.
    """
    expect_clean(preset, protocol, "experiment with supernovae that could be repeated")
    config = Config(preset, protocol, table, seed=seed, device=device)
    if preset == "paper":
        return config
    if preset == "quick":
        quick = replace(config.training, members=1, steps=5_000, batch_data=3_200)
        return replace(config, training=quick, surveys=60, surveys_with_w=40, prior_surveys=0, repeats=4)
    smoke = Training(16, 2, 1, (5, 50), 250, 3_200, 1e-2)
    few: dict[str, Any] = {"surveys": 2, "surveys_with_w": 2, "prior_surveys": 2, "repeats": 2}
    return replace(config, training=smoke, loss=0.05, points=21, **few)


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Trains both networks, fits the table with them and measures them on simulated surveys.

    Args:
        config: What to do.
        checkpoints: Folder for checkpoints; an interrupted run continues from them.
        progress: Whether to show progress bars.

    Returns:
        Metrics and fits.
    """
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    fits: dict[str, Fit] = {}
    for prefix in PARAMETERS:
        simulator = Supernovae(dark_energy="w" in PARAMETERS[prefix])
        stem = f"{config.preset}-{config.protocol}-{prefix.strip('/') or 'lambda'}-seed{config.seed}"
        model, seconds = _trained(config, simulator, checkpoint_path(checkpoints, stem), progress)
        found = {"seconds/training": Metric(seconds, 0.0)}
        fits[prefix], of_table = _fit_table(config, simulator, model, PARAMETERS[prefix])
        found = of_table | found | _survey_metrics(config, simulator, model, PARAMETERS[prefix])
        metrics |= {prefix + name: entry for name, entry in found.items()}
    return Result(config, metrics, fits, time.monotonic() - started)


def _trained(
    config: Config, simulator: Supernovae, checkpoint: Path | None, progress: bool | None
) -> tuple[Fishnet, float]:
    """A trained network and the seconds that took, over all resumed parts."""
    how = config.training
    body = Gated(how.width, how.depth)
    model = Fishnet(3, simulator.prior, body, how.members, config.seed, shared=True, refine=True).to(config.device)
    history = model.fit(
        simulator,
        size=how.size,
        steps=how.steps,
        batch_data=how.batch_data,
        learning_rate=how.learning_rate,
        checkpoint=checkpoint,
        progress=progress,
    )
    return model, history.seconds


def _estimate(config: Config, model: Fishnet, sets: Sets, simulator: Supernovae | None, seed: int = 0) -> Estimate:
    """Refined estimates, centred where there is a simulator; those that are wanting are counted, not warned of."""
    chunk = GPU_CHUNK if torch.device(config.device).type == "cuda" else CPU_CHUNK
    generator = torch.Generator(config.device).manual_seed(2 * 10**6 + 100 * config.seed + seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.estimate(sets, simulator=simulator, loss=config.loss, generator=generator, chunk=chunk)


def _fit_table(
    config: Config, simulator: Supernovae, model: Fishnet, names: tuple[str, ...]
) -> tuple[Fit, dict[str, Metric]]:
    """The fit of the real table beside the exact one; errors are the spread over repeated simulations."""
    sets = _real(config, simulator)
    exact, began = simulator.posterior(sets), time.monotonic()
    rows = sets.to(config.device, torch.float32)
    repeats = [_estimate(config, model, rows, simulator, i + 1) for i in range(config.repeats)]
    seconds = (time.monotonic() - began) / config.repeats
    mean, spread = (
        torch.cat([getattr(e, name) for e in repeats]).cpu() for name in ("mean", "standard_deviation")
    )  # (R, p)
    widths = exact.covariance.diagonal().sqrt()
    found: dict[str, Metric] = {}
    for i, name in enumerate(names):
        centre, width = float(exact.mean[i]), float(widths[i])
        found[name] = Metric(float(mean[0, i]), float(mean[:, i].std()), bound=centre)
        found[f"{name}_sigma"] = Metric(float(spread[0, i]), float(spread[:, i].std()), bound=width)
        away = (mean[0, i] - centre).abs() / width
        found[f"distance-in-sigma/{name}"] = Metric(float(away), float(mean[:, i].std()) / width, bound=0.0)
        ratio = spread[:, i] / width
        found[f"sigma-ratio/{name}"] = Metric(float(ratio[0]), float(ratio.std()), bound=1.0)
    found["seconds/estimate"] = Metric(seconds, 0.0)
    first = repeats[0].posterior
    return Fit(simulator, Gaussian(first.mean[0].cpu(), first.precision[0].cpu()), exact), found


def _real(config: Config, simulator: Supernovae) -> Sets:
    """The table as a single set, float64, on the CPU."""
    return Sets.from_list([simulator.pack(config.table.z, config.table.mu, config.table.sigma)])


def _survey_metrics(config: Config, simulator: Supernovae, model: Fishnet, names: tuple[str, ...]) -> dict[str, Metric]:
    """Estimates against exact ones on simulated surveys with the table's redshifts and errors."""
    number = config.surveys_with_w if simulator.dark_energy else config.surveys
    theta = torch.tensor([UNIVERSE[name] for name in names], dtype=torch.float64).expand(number, -1)
    sets = _surveys(config, simulator, theta, 0)
    exact, fisher = _exact_means(config, simulator, sets), simulator.fisher(sets, theta)
    found = _estimate(config, model, sets.to(config.device), simulator)
    settled, simulated = (x.cpu().to(torch.float64) for x in (found.settled, found.num_simulated))
    estimates = {"": found.mean.cpu()} | _without_simulations(config, model, sets)
    roots = _exact_roots(config, simulator, sets, theta)
    bound = excess(roots, exact, fisher).value
    metrics = {
        f"excess{label}/union21": metric(excess(estimate, exact, fisher), bound=bound)
        for label, estimate in estimates.items()
    }
    metrics["excess-to-root/union21"] = metric(excess(estimates[""], roots, fisher), bound=0.0)
    metrics |= _calibration(found, theta, names)
    metrics["unsettled/union21"] = metric(mean_with_error(1 - settled), bound=0.0)
    metrics["simulated-data/union21"] = metric(mean_with_error(simulated))
    if config.prior_surveys:
        metrics["excess-over-prior/union21"] = _excess_over_prior(config, simulator, model)
    return metrics


def _excess_over_prior(config: Config, simulator: Supernovae, model: Fishnet) -> Metric:
    """The excess in universes drawn from the prior, a little away from its edges."""
    low, high = simulator.prior.low, simulator.prior.high
    generator = torch.Generator().manual_seed(3 * 10**6 + config.seed)
    unit = torch.rand((config.prior_surveys, len(low)), generator=generator, dtype=torch.float64)
    theta = low + (high - low) * (MARGIN + (1 - 2 * MARGIN) * unit)
    sets = _surveys(config, simulator, theta, 1)
    found, exact = _estimate(config, model, sets.to(config.device), simulator), _exact_means(config, simulator, sets)
    fisher, roots = simulator.fisher(sets, theta), _exact_roots(config, simulator, sets, theta)
    return metric(excess(found.mean.cpu(), exact, fisher), bound=excess(roots, exact, fisher).value)


def _surveys(config: Config, simulator: Supernovae, theta: Tensor, stream: int) -> Sets:
    """Surveys in universes (T, p) with the table's redshifts and errors, float32, on the CPU."""
    rows = _real(config, simulator).values.to(torch.float32)
    template = Sets.from_block(rows.expand(len(theta), -1, -1))
    return simulator.like(template, theta, torch.Generator().manual_seed(10**6 + 100 * config.seed + stream))


def _exact_means(config: Config, simulator: Supernovae, sets: Sets) -> Tensor:
    """Exact posterior means, shape (T, p), on the CPU."""
    rows = sets.to(config.device)
    return torch.stack([simulator.posterior(rows[i], config.points).mean for i in range(len(rows))]).cpu()


def _exact_roots(config: Config, simulator: Supernovae, sets: Sets, theta: Tensor) -> Tensor:
    """Estimates (T, p) that exact scores give: roots with the Gaussian prior, by Fisher scoring from the truth."""
    prior, at, rows = simulator.prior, theta.to(config.device), sets.to(config.device)
    low, high = (bound.to(config.device) for bound in (prior.low, prior.high))
    edge = 1e-3 * (high - low)
    for _ in range(ROOT_STEPS):
        information = Information(simulator.score(rows, at), simulator.fisher(rows, at), at, rows.sizes)
        at = information.posterior(prior).mean.clamp(low + edge, high - edge)
    return at.cpu()


def _without_simulations(config: Config, model: Fishnet, sets: Sets) -> dict[str, Tensor]:
    """Estimates (T, p) of the first networks, and of local steps that no simulation centres."""
    rows = sets.to(config.device)
    plain = model.compress(rows).posterior(model.prior).mean
    return {"/plain": plain.cpu(), "/onestep": _estimate(config, model, rows, None).mean.cpu()}


def _calibration(found: Estimate, theta: Tensor, names: tuple[str, ...]) -> dict[str, Metric]:
    """Squared errors in units of the estimates' own covariance, and how often their intervals hold the truth."""
    error = (found.mean.cpu() - theta).unsqueeze(-1)
    squared = (error.mT @ found.precision.cpu() @ error).flatten() / len(names)
    metrics = {"chi2/union21": metric(mean_with_error(squared), bound=1.0)}
    white = (error.squeeze(-1) / found.standard_deviation.cpu()).abs()
    for level, width in COVERAGES:
        share = math.erf(width / math.sqrt(2))
        noise = math.sqrt(share * (1 - share) / len(theta))
        for i, name in enumerate(names):
            held = float((white[:, i] < width).to(torch.float64).mean())
            metrics[f"coverage{level}/{name}/union21"] = Metric(held, noise, bound=share)
    return metrics
