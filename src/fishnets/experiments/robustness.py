r"""Robustness: trained on one law of the noise, tested on another (paper, section 4.2, Fig. 3 and Table 2).

Networks learn linear regression at n = 500 with :math:`x \sim \mathcal U(0, 10)`, :math:`\sigma \sim \mathcal U(1, 10)`
and meet sets of 850 with :math:`x \sim \mathcal U(0, 3)` and noise of another law. The paper's words ("Exp(1), centred
at 3.5, truncated at 10") name no single law; two readings are run:

* *A*, literal: :math:`\sigma = 3.5 + \mathrm{Exp}(1)`, cut at 10;
* *C*, with the support of the training law: :math:`\sigma = 1 + \mathrm{Exp}(2.5)`, cut at 10, so of mean 3.5 or so.

The exact posterior mean on the same sets is the floor; a squared error over its own is comparable between readings, the
absolute one is not. Every network, ours and the baselines, sees the same number of rows per step and steps, and has its
learning rate picked from the same three by the same short trial on validation sets. The recommended Fishnet is there
twice: on these equal data, and trained as it is recommended, on small sets and more of them. Protocols:

* *clean*: fresh simulations, five initialisations of the paper's three networks, two of the Set Transformer and of
  PAIRS-style pre-aggregation, all on the same batches, and the recommended Fishnet;
* *published*: the paper's three networks, one initialisation, on ten thousand stored sets of raw features, with the
  staircase of learning rates of the paper's linear regression over 100 epochs; the paper states neither optimiser nor
  epochs.

The prior-shift toy of the paper's appendix on deep sets is in both.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fishnets.experiments.candidates import checkpoint_path, expect_choices, scaled_stairs, stored_sets
from fishnets.experiments.prior_shift import prior_shift
from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import Measured, mean_with_error, ratio_of_means
from fishnets.networks import MLP, DeepSet, Gated, SetTransformer
from fishnets.ragged import Sets
from fishnets.sets import Fishnet, Regressor, fit_pairs
from fishnets.sets.training import Schedule
from fishnets.simulators import LinearRegression
from fishnets.simulators.linear_regression import Features

__all__ = ["LAWS", "Config", "Contestant", "Result", "config_for", "run"]

LAWS = {
    "training": LinearRegression(),
    "A": LinearRegression(x_range=(0.0, 3.0), sigma_range=(3.5, 10.0), sigma_decay=1.0),
    "C": LinearRegression(x_range=(0.0, 3.0), sigma_range=(1.0, 10.0), sigma_decay=2.5),
}
SIZES = {"training": 500, "A": 850, "C": 850}
PAPER_MSE = {"fishnets": (0.007, 0.046), "deepset": (0.120, 0.285), "softmax": (0.042, 0.482)}
PAPER_SPREAD = {"fishnets": (0.017, 0.078), "deepset": (0.178, 0.406), "softmax": (0.069, 0.347)}
PUBLISHED_EPOCHS = ((25, 5e-4), (25, 1e-4), (25, 5e-5), (13, 1e-6), (12, 5e-6))  # 5 % of the schedule of section 4.1
STEPS_PER_EPOCH = 20  # of 512 sets out of ten thousand

Kind = Literal[
    "fishnets", "recommended", "recommended-equal-data", "deepset", "softmax", "set-transformer", "pairs"
]
Model = Fishnet | Regressor


@dataclass(frozen=True)
class Contestant:
    """A network under test.

    Args:
        kind: Which network.
        members: Initialisations, trained side by side on the same batches.
        size: Set size, or range of sizes, trained on.
        pooled: Whether members are one estimator or repetitions.
        budget: Steps, and rows in each, of its own; None takes the common ones.
    """

    kind: Kind
    members: int
    size: tuple[int, int] = (500, 500)
    pooled: bool = False
    budget: tuple[int, int] | None = None


@dataclass(frozen=True)
class Config:
    """What to train and how to test it; contestants without a budget of their own share rows per step and steps."""

    preset: str
    protocol: str
    contestants: tuple[Contestant, ...]
    steps: int = 5_000
    batch_data: int = 32_000
    rates: tuple[float, ...] = (1.5e-3, 5e-3, 1.5e-2)
    trial_share: float = 0.1
    stored_sets: int | None = None
    test_sets: int = 10_000
    small: bool = False
    toy_steps: int = 3_000
    seed: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "contestants"}
        return fields | {"contestants": [asdict(contestant) for contestant in self.contestants]}


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name, and residuals (K, T, 2) by network and law; the exact estimate is one of the networks."""

    config: Config
    metrics: dict[str, Metric]
    residuals: dict[tuple[str, str], Tensor]
    seconds: float


CLEAN = (
    Contestant("fishnets", 5),
    Contestant("recommended", 4, (10, 1_000), pooled=True, budget=(60_000, 200_000)),
    Contestant("recommended-equal-data", 4, (10, 1_000), pooled=True),
    Contestant("deepset", 5),
    Contestant("softmax", 5),
    Contestant("set-transformer", 2),
    Contestant("pairs", 2),
)


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu") -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (CPU minutes) or ``"paper"`` (a GPU).

    Example:
        >>> [contestant.kind for contestant in config_for("paper", "published").contestants]
        ['fishnets', 'deepset', 'softmax']
    """
    expect_choices(preset, protocol)
    config = Config(preset, protocol, CLEAN, seed=seed, device=device)
    if protocol == "published":
        three = tuple(Contestant(kind, 1) for kind in ("fishnets", "deepset", "softmax"))
        steps = STEPS_PER_EPOCH * sum(epochs for epochs, _ in PUBLISHED_EPOCHS)
        config = replace(config, contestants=three, steps=steps, batch_data=256_000, stored_sets=10_000)
    if preset == "paper":
        return config
    smoke = preset == "smoke"
    return replace(
        config,
        contestants=tuple(
            replace(c, members=2, size=(20, 20), budget=c.budget and (30, 400))
            if smoke
            else replace(c, members=1, size=(5, 100) if c.budget else c.size, budget=c.budget and (16_000, 3_200))
            for c in config.contestants
        ),
        steps=20 if smoke else 1_500,
        batch_data=400 if smoke else 16_000,
        stored_sets=config.stored_sets and (40 if smoke else 2_000),
        test_sets=30 if smoke else 2_000,
        small=smoke,
        toy_steps=30 if smoke else 2_000,
    )


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Trains every contestant and measures it under the training law and both readings of the shift.

    Args:
        config: What to do.
        checkpoints: Folder for checkpoints; an interrupted run continues from them.
        progress: Whether to show progress bars.

    Returns:
        Metrics and residuals.
    """
    started = time.monotonic()
    exact = {law: _exact_residuals(config, law) for law in LAWS}
    residuals: dict[tuple[str, str], Tensor] = {("exact", law): found for law, found in exact.items()}
    metrics: dict[str, Metric] = {}
    for law, found in exact.items():
        for i, parameter in enumerate("mc"):
            metrics[f"floor/{parameter}/{law}"] = metric(mean_with_error(found[0, :, i].square()))
    for contestant in config.contestants:
        path = checkpoint_path(checkpoints, f"{config.preset}-{config.protocol}-{contestant.kind}-seed{config.seed}")
        began = time.monotonic()
        model, rate = _train(contestant, config, path, progress)
        metrics[f"seconds/{contestant.kind}"] = Metric(time.monotonic() - began, 0.0)
        metrics[f"weights/{contestant.kind}"] = Metric(float(model.num_weights), 0.0)
        metrics[f"learning-rate/{contestant.kind}"] = Metric(rate, 0.0)
        for law in LAWS:
            found = _residuals(contestant, model, config, law)
            residuals[contestant.kind, law] = found
            metrics |= _errors(contestant.kind, law, found, exact[law])
    metrics |= prior_shift(config.toy_steps, config.seed, config.device, progress)
    return Result(config, metrics, {k: v.cpu() for k, v in residuals.items()}, time.monotonic() - started)


def _features(contestant: Contestant) -> Features:
    return "log" if contestant.kind.startswith("recommended") else "paper"


def _untrained(contestant: Contestant, config: Config) -> Model:
    """The contestant's model before training; tiny ones in smoke runs."""
    law, kind, small = LAWS["training"], contestant.kind, config.small
    common: dict[str, Any] = {"members": contestant.members, "seed": config.seed}
    common["standardise"] = config.stored_sets is None
    if kind == "fishnets":
        body = MLP(8 if small else 50, 3, "swish")
        return Fishnet(law.num_features, law.prior, body, **common).to(config.device)
    if kind.startswith("recommended"):
        gated = Gated(8, 1) if small else Gated(32, 2)
        return Fishnet(law.num_features, law.prior, gated, shared=True, factor="rank-2", **common).to(config.device)
    if kind == "set-transformer":
        network: Any = SetTransformer(8, 2, 2, 1) if small else SetTransformer()
    else:
        width, hidden = (8, 8) if small else (128, 64)
        network = DeepSet("softmax" if kind == "softmax" else "mean", width, hidden)
    return Regressor(law.num_features, law.prior, network, **common).to(config.device)


def _train(
    contestant: Contestant, config: Config, checkpoint: Path | None, progress: bool | None
) -> tuple[Model, float]:
    """Trains with the best of a few learning rates, or with the published staircase; returns the rate as well."""
    if config.stored_sets is not None:
        model = _untrained(contestant, config)
        stairs = scaled_stairs(PUBLISHED_EPOCHS, config.steps)
        _fit(model, contestant, config, stairs, config.steps, checkpoint, progress)
        return model, PUBLISHED_EPOCHS[0][1]
    rate = _best_rate(contestant, config, checkpoint, progress)
    model = _untrained(contestant, config)
    steps = config.steps if contestant.budget is None else contestant.budget[0]
    _fit(model, contestant, config, rate, steps, checkpoint, progress)
    return model, rate


def _best_rate(contestant: Contestant, config: Config, checkpoint: Path | None, progress: bool | None) -> float:
    """The learning rate with the lowest validation loss after a short trial; kept beside the checkpoint."""
    kept = None if checkpoint is None else checkpoint.with_suffix(".rate")
    trial = f"{contestant} {replace(config, contestants=())}"
    if kept is not None and kept.exists() and kept.read_text().startswith(trial):
        return float(kept.read_text().removeprefix(trial))
    trials: dict[float, float] = {}
    for rate in config.rates:
        model = _untrained(replace(contestant, members=1), config)
        steps = max(1, round(config.trial_share * config.steps))
        trials[rate] = _fit(model, contestant, config, rate, steps, None, progress)
    best = min(trials, key=lambda rate: trials[rate])
    if kept is not None:
        kept.write_text(f"{trial} {best!r}")
    return best


def _fit(
    model: Model,
    contestant: Contestant,
    config: Config,
    rate: Schedule,
    steps: int,
    checkpoint: Path | None,
    progress: bool | None,
) -> float:
    """Trains a model and returns its validation loss, averaged over members."""
    simulator = replace(LAWS["training"], features=_features(contestant))
    common: dict[str, Any] = {
        "steps": steps,
        "batch_data": config.batch_data if contestant.budget is None else contestant.budget[1],
        "learning_rate": rate,
        "checkpoint": checkpoint,
        "progress": progress,
    }
    if contestant.kind == "pairs" and isinstance(model, Regressor):
        # as many rows in all: half the steps on pairs, and the other half's rows pre-aggregated
        del common["checkpoint"]
        half = max(1, steps // 2)
        sets = max(10, half * config.batch_data // contestant.size[1])
        common |= {"steps": half, "head_steps": half, "num_sets": sets, "head_learning_rate": rate}
        losses = fit_pairs(model, simulator, size=contestant.size, **common).head.best_loss
    elif config.stored_sets is not None:
        stored, theta = stored_sets(simulator, config.stored_sets, contestant.size[1], config.seed, config.device)
        losses = model.fit(stored, theta, validation_fraction=0.0, keep_best=False, **common).best_loss
    else:
        losses = model.fit(simulator, size=contestant.size, **common).best_loss
    return sum(losses) / len(losses)


def _tests(config: Config, law: str, features: Features) -> tuple[Sets, Tensor]:
    """Test sets of one law, the same draws whatever the features, and their parameters (T, 2)."""
    simulator = replace(LAWS[law], features=features)
    generator = torch.Generator(config.device).manual_seed(10**6 + config.seed)
    theta = simulator.prior.sample(config.test_sets, generator).to(torch.float32)
    size = 40 if config.small else SIZES[law]
    return simulator(theta, torch.full((len(theta),), size, device=theta.device), generator), theta.to(torch.float64)


def _exact_residuals(config: Config, law: str) -> Tensor:
    sets, theta = _tests(config, law, "paper")
    return (LAWS[law].posterior(sets).mean - theta).unsqueeze(0)


def _residuals(contestant: Contestant, model: Model, config: Config, law: str) -> Tensor:
    """Estimates minus truth of each repetition, shape (K, T, 2)."""
    sets, theta = _tests(config, law, _features(contestant))
    if isinstance(model, Regressor):
        return model.estimate(sets, members="separate") - theta
    if contestant.pooled:
        return (model.estimate(sets).mean - theta).unsqueeze(0)
    separate = model.compress(sets, members="separate")
    return torch.stack([info.posterior(model.prior).mean - theta for info in separate])


def _errors(kind: str, law: str, residuals: Tensor, exact: Tensor) -> dict[str, Metric]:
    """Mean squared errors (as in Table 2, with their spread over sets), and over the floor.

    Errors of all are standard errors, over the initialisations and over the sets, which initialisations share.
    """
    found: dict[str, Metric] = {}
    for i, parameter in enumerate("mc"):
        squared, floor = residuals[..., i].square(), exact[0, :, i].square()
        mean = squared.mean(1)  # (K,)
        name = f"{kind}/{parameter}/{law}"
        published = law != "training" and kind in PAPER_MSE
        paper = PAPER_MSE[kind][i] if published else None
        spread = PAPER_SPREAD[kind][i] if published else None
        found[f"mse/{name}"] = Metric(
            float(mean.mean()), _error(mean, mean_with_error(squared.mean(0))), paper, float(floor.mean())
        )
        found[f"mse-std-over-sets/{name}"] = metric(_standard_deviation(squared.flatten()), spread)
        ratio = ratio_of_means(squared.mean(0), floor)
        found[f"mse_over_floor/{name}"] = Metric(ratio.value, _error(mean / floor.mean(), ratio), bound=1.0)
        bias = mean_with_error(residuals[..., i].mean(0))
        found[f"bias/{name}"] = Metric(bias.value, _error(residuals[..., i].mean(1), bias), bound=0.0)
    return found


def _error(values: Tensor, over_sets: Measured) -> float:
    """Standard error from the spread over initialisations (K,) and the Monte Carlo error over the sets."""
    between = float(values.var() / len(values)) if len(values) > 1 else 0.0
    return math.hypot(math.sqrt(between), over_sets.error)


def _standard_deviation(samples: Tensor) -> Measured:
    """Standard deviation of samples (T,), with the error that their fourth moment gives it."""
    centred = samples - samples.mean()
    spread = float(samples.std())
    excess = float(centred.pow(4).mean()) - spread**4
    return Measured(spread, math.sqrt(max(excess, 0.0) / len(samples)) / (2 * spread) if spread > 0 else 0.0)
