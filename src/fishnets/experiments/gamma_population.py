r"""The gamma population: posteriors beside exact ones, calibrated at every set size (paper, section 4.3, Figs. 4, 5).

Networks are trained on sets of 500 and used on sets of 10 to 10^4. A density estimator turns their summaries into
posteriors; an exact grid, which the paper did not have, says what the data allow. Data for the compressor, for the
density estimator and for the tests are separate. Two protocols:

* *clean*: the paper's network (twin perceptrons of 3 x 256 ELU units) and the recommended one, on fresh simulations,
  with the prior's own moments; one neural spline flow for all set sizes, given the estimate, its Fisher matrix and n;
* *published*: the paper's network on ten thousand stored sets, with the authors' constants (fiducial (5, 0.8) but prior
  mean 0 and covariance 1), beside the same network with the prior's own moments; a mixture density network of the
  estimate alone, fitted at each set size on 5,000 sets. The authors' schedule of learning rates is kept, over half its
  epochs (350, 510 in the censored case); their run on a hundred thousand stored sets is not repeated. What else differs
  from their code: our initial weights, gradients clipped to norm 1, products in bfloat16 until the last fiftieth of the
  steps, independent members in a censored set (theirs repeat), and members pooled by natural parameters.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from fishnets.errors import ConfigError
from fishnets.experiments import linear_scaling
from fishnets.experiments.candidates import Candidate, checkpoint_path, expect_choices, scaled_stairs, train
from fishnets.experiments.gamma_measures import Laboratory, TargetPosterior, Tested
from fishnets.experiments.records import Metric
from fishnets.inference import Posterior
from fishnets.networks import MLP, Gated, NetworkRecipe
from fishnets.priors import Prior
from fishnets.sets import Fishnet, History
from fishnets.simulators import GammaPopulation
from fishnets.simulators.gamma_population import GammaFeatures

__all__ = ["Config", "Estimator", "PublishedPrior", "Result", "Trained", "config_for", "run", "simulator_of"]

THRESHOLD = 25  # counts below it are never seen in the censored case
TARGETS = ((5.1, 0.82), (3.0, 0.5), (2.0, 0.8), (8.0, 1.0))  # of the authors' code; the paper names none
# the authors' schedules, epochs at each rate, uncensored and censored; 20 steps of 512 sets make an epoch of 10^4
EPOCHS = {
    None: ((100, 5e-4), (100, 1e-4), (100, 5e-5), (200, 1e-6), (200, 5e-7)),
    THRESHOLD: ((20, 1e-3), (200, 5e-4), (200, 1e-4), (200, 5e-5), (200, 1e-6), (200, 5e-7)),
}
STEPS_PER_EPOCH = 20
PUBLISHED_SHARE = 0.5  # of these epochs, in the same proportions


@dataclass(frozen=True)
class PublishedPrior:
    """The authors' constants: parameters drawn from a box (or any prior), algebra with mean 0 and covariance 1."""

    source: Prior

    @property
    def mean(self) -> Tensor:
        """Zero, shape (p,)."""
        return torch.zeros_like(self.source.mean)

    @property
    def covariance(self) -> Tensor:
        """The identity, shape (p, p)."""
        return torch.eye(len(self.source.mean), dtype=torch.float64)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws from the box, shape (num_samples, p)."""
        return self.source.sample(num_samples, generator)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density in the box, shape (*)."""
        return self.source.log_prob(theta)


@dataclass(frozen=True)
class Estimator:
    """How summaries become posteriors.

    Args:
        kind: ``"nsf"`` or ``"gmm"``.
        direction: ``"posterior"`` or ``"likelihood"``.
        hidden: Widths of the hidden layers.
        pairs: Simulated sets it is fitted on.
        sizes: Range of their sizes, spaced evenly in the logarithm; None fits one estimator per test size.
        whole: Whether it is given the whole summary or, as in the paper, the estimate alone.
        steps: Updates.
        batch_size: Pairs in a step.
    """

    kind: Literal["nsf", "gmm"]
    direction: Literal["posterior", "likelihood"]
    hidden: tuple[int, ...]
    pairs: int
    sizes: tuple[int, int] | None
    whole: bool
    steps: int
    batch_size: int


@dataclass(frozen=True)
class Config:
    """What to train and how to test it.

    Args:
        preset: ``"smoke"``, ``"quick"`` or ``"paper"``.
        protocol: ``"clean"`` or ``"published"``.
        threshold: Smallest count that is kept; None for the uncensored population.
        candidates: The networks; metrics without a network's name are of the first.
        estimator: The density estimator.
        test_sizes: Set sizes whose calibration is measured.
        test_sets: Fresh sets of each size.
        num_samples: Posterior samples per test set.
        exact_sizes: Set sizes at which posteriors are compared with exact ones.
        exact_sets: Number of test sets compared.
        targets: Parameters of the data sets shown in corner plots.
        hmc_size: Size of the first target's set that HMC samples as well; None leaves HMC out.
        seed: Seed of everything random.
        device: Where to compute.
    """

    preset: str
    protocol: str
    threshold: int | None
    candidates: tuple[Candidate, ...]
    estimator: Estimator
    test_sizes: tuple[int, ...] = (10, 100, 500, 2_000, 10_000)
    test_sets: int = 1_000
    num_samples: int = 1_000
    exact_sizes: tuple[int, ...] = (500, 10_000)
    exact_sets: int = 200
    targets: tuple[tuple[float, float], ...] = TARGETS
    hmc_size: int | None = 500
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.threshold is not None and self.hmc_size is not None:
            raise ConfigError(
                f"`hmc_size` is {self.hmc_size} with `threshold` {self.threshold}, but HMC samples the uncensored "
                "population; leave one of them None."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("candidates", "estimator")}
        return fields | {
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "estimator": asdict(self.estimator),
        }


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained candidate, its posteriors by set size, and what figures need of its tests."""

    candidate: Candidate
    model: Fishnet
    history: History
    posteriors: dict[int, Posterior]
    tested: dict[int, Tested]


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name, the trained candidates, and every posterior of every target."""

    config: Config
    metrics: dict[str, Metric]
    trained: list[Trained]
    targets: list[TargetPosterior]
    seconds: float


# the networks of the linear-regression study, as in the paper, at the one size it trains on
RECOMMENDED = replace(linear_scaling.RECOMMENDED, size=(500, 500), steps=20_000)
PAPER = replace(linear_scaling.PAPER, size=(500, 500), members=3)
FLOW = Estimator("nsf", "posterior", (128, 128, 128), 300_000, (5, 20_000), True, 20_000, 4_096)
MIXTURE = Estimator("gmm", "posterior", (50, 50, 50), 5_000, None, False, 4_000, 512)


def simulator_of(candidate: Candidate, threshold: int | None) -> GammaPopulation:
    """The simulator of the data a candidate reads."""
    return GammaPopulation(threshold, cast(GammaFeatures, candidate.features))


def config_for(
    preset: str, protocol: str, seed: int = 0, device: str = "cpu", threshold: int | None = None
) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (CPU minutes) or ``"paper"`` (a GPU).

    Example:
        >>> config_for("paper", "published").candidates[0].steps
        7000
    """
    expect_choices(preset, protocol)
    if threshold not in EPOCHS:
        raise ConfigError(f"`threshold` is {threshold} but None or {THRESHOLD}, the paper's, was expected.")
    common: dict[str, Any] = {"threshold": threshold, "seed": seed, "device": device}
    if threshold is not None:
        common["hmc_size"] = None  # the paper samples the uncensored population alone
    if protocol == "clean":
        full = Config(preset, protocol, candidates=(RECOMMENDED, PAPER), estimator=FLOW, **common)
    else:
        stairs = tuple((round(PUBLISHED_SHARE * STEPS_PER_EPOCH * epochs), rate) for epochs, rate in EPOCHS[threshold])
        published = replace(
            PAPER,
            stored_sets=10_000,
            steps=sum(length for length, _ in stairs),
            learning_rate=stairs,
            fiducial=(5.0, 0.8),
            prior="published",
        )
        matched = replace(published, label="matched-prior", prior="own")
        common |= {"test_sizes": (500, 10_000), "hmc_size": None}
        full = Config(preset, protocol, candidates=(published, matched), estimator=MIXTURE, **common)
    return full if preset == "paper" else _shrunk(full)


def _shrunk(config: Config) -> Config:
    """A config for machines without a GPU: fewer members, rows, steps and tests; never another method."""
    smoke = config.preset == "smoke"
    candidates = tuple(_small_candidate(candidate, smoke) for candidate in config.candidates)
    estimator = replace(
        config.estimator,
        pairs=400 if smoke else 5_000,
        hidden=(16,) if smoke else config.estimator.hidden,
        sizes=config.estimator.sizes and ((10, 100) if smoke else (10, 2_000)),
        steps=40 if smoke else 3_000,
        batch_size=100 if smoke else 512,
    )
    sizes = tuple(n for n in config.test_sizes if n <= (100 if smoke else 2_000)) or (100,)
    return replace(
        config,
        candidates=candidates,
        estimator=estimator,
        test_sizes=sizes,
        test_sets=20 if smoke else 300,
        num_samples=50 if smoke else 500,
        exact_sizes=(100,) if smoke else (500,),
        exact_sets=2 if smoke else 30,
        targets=config.targets[:1] if smoke else config.targets,
        hmc_size=None if smoke else config.hmc_size,
    )


def _small_candidate(candidate: Candidate, smoke: bool) -> Candidate:
    gated = isinstance(candidate.body, Gated)
    steps = 20 if smoke else (6_000 if gated else 1_000)
    body: NetworkRecipe = candidate.body
    if smoke:
        body = Gated(8, 1) if gated else MLP(8, 3, "elu")
    return replace(
        candidate,
        body=body,
        members=2 if smoke else 1,
        steps=steps,
        batch_data=1_000 if smoke else 12_800,
        size=(100, 100) if smoke else ((20, 500) if gated else (500, 500)),
        learning_rate=scaled_stairs(candidate.learning_rate, steps),
        stored_sets=None if candidate.stored_sets is None else (40 if smoke else 2_000),
    )


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Trains every candidate, fits its posteriors and measures them against exact ones.

    Args:
        config: What to do.
        checkpoints: Folder for checkpoints; an interrupted run continues from them.
        progress: Whether to show progress bars.

    Returns:
        Metrics, models and posteriors.
    """
    laboratory = Laboratory.of(config)
    metrics: dict[str, Metric] = {}
    trained, targets = [], laboratory.exact_targets()
    if config.hmc_size is not None:
        found = laboratory.hmc_target(config.hmc_size)
        targets.append(found.posterior)
        metrics |= found.metrics
    for position, candidate in enumerate(config.candidates):
        one = _train(candidate, config, laboratory, checkpoints, progress)
        trained.append(one)
        prefix = "" if position == 0 else f"-{candidate.label}"
        metrics |= laboratory.metrics(one.candidate.label, prefix, one.tested)
        metrics[f"seconds/training/{candidate.label}"] = Metric(one.history.seconds, 0.0)
        targets += laboratory.learned_targets(candidate.label, simulator_of(candidate, config.threshold), one)
    for target in targets:
        metrics |= target.metrics()
    return Result(config, metrics, trained, targets, laboratory.seconds())


def _train(
    candidate: Candidate, config: Config, laboratory: Laboratory, checkpoints: Path | None, progress: bool | None
) -> Trained:
    simulator = simulator_of(candidate, config.threshold)
    stem = f"{config.preset}-{config.protocol}-{candidate.label}-seed{config.seed}"
    path = checkpoint_path(checkpoints, stem)
    prior: Prior = PublishedPrior(simulator.prior) if candidate.prior == "published" else simulator.prior
    started = time.monotonic()
    model, history = train(candidate, simulator, config.seed, config.device, path, progress, prior)
    laboratory.earlier += max(0.0, history.seconds - (time.monotonic() - started))  # by a process before this one
    posteriors = laboratory.fit(simulator, model, progress)
    tested = {n: laboratory.test(simulator, model, posteriors[n], n) for n in config.test_sizes}
    return Trained(candidate, model, history, posteriors, tested)
