r"""Saturation: how much of the information an estimate keeps as sets grow, from ten data to a million.

Four problems with exact answers: linear regression, a normal sample of unknown mean and variance, the gamma population
and the censored one. Three estimators: *plain*, the paper's method (one global expansion, trained at the set size that
suits it best); *onestep*, local networks stepped to their root; *centred*, the same with the score centred by
simulation. Test sets come from sixteen fixed parameters, a grid that keeps 8 % of the box away from its edges, or ends
1.2 standard deviations from the mean of a normal prior. With the exact Fisher matrix :math:`n F_1(\theta)`,

.. math::
    \chi^2 = 1 + \left\langle (\hat\theta-\theta)^\top [n F_1] (\hat\theta-\theta) - t^\top [n F_1]^{-1} t
    \right\rangle / p, \qquad
    \text{efficiency} = \frac{1}{1 + \langle \delta^\top [n F_1]\, \delta \rangle / p},

where :math:`t` is the exact score at the truth and :math:`\delta` the distance from the exact posterior mean or, in
sets of more than 500, from the exact step :math:`\theta + [n F_1]^{-1} t`. One is the Cramér-Rao bound; at small n a
prior can push :math:`\chi^2` below it, so there the exact posterior mean stands beside. The networks of linear
regression also meet the shifted laws of noise and covariates of the robustness study. There is one protocol, *clean*;
the paper has no such experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fishnets.experiments.candidates import checkpoint_path, expect_clean
from fishnets.experiments.parts import Parts
from fishnets.experiments.records import Metric
from fishnets.experiments.robustness import LAWS, SIZES
from fishnets.experiments.saturation_measures import Tested, compared, said
from fishnets.networks import Gated
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.sets import Estimate, Fishnet, load
from fishnets.simulators import GammaPopulation, LinearRegression, NormalSample

__all__ = ["METHODS", "Config", "Problem", "Result", "config_for", "fixed_parameters", "run"]

Name = Literal["linear", "normal", "gamma", "censored"]
Simulator = LinearRegression | NormalSample | GammaPopulation
METHODS = ("plain", "onestep", "centred")
MARGIN = 0.08  # of the box, at either edge
FAR = 1.2  # prior standard deviations, of the outermost parameters under a Normal prior
GRID = 4  # parameters along each axis


@dataclass(frozen=True)
class Problem:
    """A problem and how its networks are trained.

    Args:
        name: Which problem.
        size: Range of set sizes that the local networks are trained on.
        plain_size: That of the plain method.
        loss: Share of the information that simulations may cost.
        times: Times as many test sets as the config says, where they are cheap.
    """

    name: Name
    size: tuple[int, int] = (5, 100)
    plain_size: tuple[int, int] = (500, 500)
    loss: float = 0.01
    times: int = 1


@dataclass(frozen=True)
class Config:
    """What to train and where to test it; ``sets_per_parameter`` holds pairs of a set size and a number of sets."""

    preset: str
    protocol: str
    problems: tuple[Problem, ...]
    sets_per_parameter: tuple[tuple[int, int], ...]
    width: int = 32
    members: int = 4
    steps: int = 30_000
    plain_steps: int = 30_000
    batch_data: int = 100_000
    learning_rate: float = 5e-3
    exact_up_to: int = 500
    pilot: tuple[int, int] = (100_000, 20_000)
    shift: bool = True
    half: bool = True
    seed: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "problems"}
        return fields | {"problems": [asdict(problem) for problem in self.problems]}


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name."""

    config: Config
    metrics: dict[str, Metric]
    seconds: float


PROBLEMS = (
    Problem("gamma"),
    Problem("linear", plain_size=(10, 1_000), loss=0.005),
    Problem("censored"),
    Problem("normal", times=2),
)


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu") -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (two CPU cores, minutes) or ``"paper"`` (a GPU).

    Example:
        >>> [problem.name for problem in config_for("paper", "clean").problems]
        ['gamma', 'linear', 'censored', 'normal']
    """
    expect_clean(preset, protocol, "experiment on saturation")
    sizes = ((10, 64), (100, 24), (500, 32), (2_000, 24), (10_000, 24), (100_000, 16), (1_000_000, 12))
    config = Config(preset, protocol, PROBLEMS, sizes, seed=seed, device=device)
    if preset == "paper":
        return config
    if preset == "quick":
        return replace(
            config,
            problems=tuple(replace(problem, plain_size=(10, 200), loss=0.02, times=1) for problem in PROBLEMS),
            sets_per_parameter=((10, 8), (500, 8), (10_000, 8)),
            width=16,
            members=1,
            steps=4_000,
            plain_steps=3_000,
            batch_data=3_200,
            half=False,
        )
    return replace(
        config,
        problems=tuple(replace(problem, size=(5, 20), plain_size=(5, 20), loss=0.4) for problem in PROBLEMS[1:2]),
        sets_per_parameter=((5, 1), (30, 1)),
        width=8,
        members=1,
        steps=800,
        plain_steps=100,
        batch_data=1_600,
        exact_up_to=5,
        pilot=(30, 10),
        half=False,
    )


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Trains the networks of every problem and measures the three estimators at every size.

    Args:
        config: What to do.
        checkpoints: Folder for trained networks and finished measurements, from which an interrupted run continues.
        progress: Whether to show progress bars.

    Returns:
        Metrics.
    """
    metrics, seconds = dict[str, Metric](), 0.0
    for problem in config.problems:
        study = _Study(config, problem, checkpoints, progress)
        metrics |= study.training()
        for size, number in config.sets_per_parameter:
            metrics |= study.measured(problem.name, study.simulator, size, problem.times * number)
        if problem.name == "linear" and config.shift:
            number = max(number for _, number in config.sets_per_parameter)
            for law in ("A", "C"):
                size = SIZES[law] if config.preset != "smoke" else 30
                shifted = replace(LAWS[law], features="log")
                metrics |= study.measured(f"linear-{law}", shifted, size, number)
        seconds += study.parts.seconds
    return Result(config, metrics, seconds)


def simulator_of(name: Name) -> Simulator:
    """The simulator of a problem, with the features that networks learn from best."""
    simulators: dict[Name, Simulator] = {
        "linear": LinearRegression("log"),
        "normal": NormalSample(),
        "gamma": GammaPopulation(None, "log"),
        "censored": GammaPopulation(25, "log"),
    }
    return simulators[name]


def fixed_parameters(simulator: Simulator) -> Tensor:
    """The sixteen test parameters of a problem, shape (16, 2), float64.

    Example:
        >>> fixed_parameters(LinearRegression())[:2]
        tensor([[-1.2000, -1.2000],
                [-1.2000, -0.4000]], dtype=torch.float64)
    """
    prior = simulator.prior
    if isinstance(prior, Box):
        low, high = prior.low + MARGIN * (prior.high - prior.low), prior.high - MARGIN * (prior.high - prior.low)
    else:
        spread = prior.covariance.diagonal().sqrt()
        low, high = prior.mean - FAR * spread, prior.mean + FAR * spread
    shares = torch.linspace(0, 1, GRID, dtype=torch.float64)
    return low + torch.cartesian_prod(shares, shares) * (high - low)


class _Study:
    """One problem: its networks and its measurements."""

    def __init__(self, config: Config, problem: Problem, checkpoints: Path | None, progress: bool | None) -> None:
        self.config, self.problem, self.checkpoints, self.progress = config, problem, checkpoints, progress
        self.simulator = simulator_of(problem.name)
        self.models: dict[str, Fishnet] = {}
        self.parts = Parts(checkpoints)

    def training(self) -> dict[str, Metric]:
        """Trains both models, unless an earlier start has, and says what it took."""
        refined = self.remembered(self.problem.name, "refined", partial(self._train, "refined"))
        return refined | self.remembered(self.problem.name, "plain", partial(self._train, "plain"))

    def model(self, kind: str) -> Fishnet:
        """A trained model, of this start or an earlier one."""
        if kind not in self.models:
            path = self._path(f"{self.problem.name}-{kind}.fishnet")
            assert path is not None
            self.models[kind] = load(path, device=self.config.device)
        return self.models[kind]

    def _train(self, kind: str) -> dict[str, Metric]:
        config, problem, refine = self.config, self.problem, kind == "refined"
        simulator = self.simulator
        model = Fishnet(
            simulator.num_features,
            simulator.prior,
            Gated(config.width, 2),
            config.members,
            config.seed,
            shared=True,
            refine=refine,
        )
        size = problem.size if refine else problem.plain_size
        history = model.fit(
            simulator,
            size=size,
            steps=config.steps if refine else config.plain_steps,
            batch_data=max(config.batch_data, 32 * size[1]),  # few sets make a poor gradient
            learning_rate=config.learning_rate,
            checkpoint=checkpoint_path(self.checkpoints, f"{problem.name}-{kind}"),
            device=config.device,
            progress=self.progress,
        )
        self.models[kind] = model
        path = self._path(f"{problem.name}-{kind}.fishnet")
        if path is not None:
            model.save(path)
        stem = f"{problem.name}/{kind}"
        return {
            f"seconds/training/{stem}": Metric(history.seconds, 0.0),
            f"data/training/{stem}": Metric(float(history.num_data), 0.0),
            f"weights/{stem}": Metric(float(model.num_weights), 0.0),
        }

    def measured(self, label: str, simulator: Simulator, size: int, number: int) -> dict[str, Metric]:
        """All estimators on sets of one size."""
        tested = cache(partial(self._test_sets, simulator, size, number))
        name = f"{label}-{size}"
        refined = self.remembered(name, "refined", lambda: self._refined(label, simulator, size, tested()))
        return refined | self.remembered(name, "plain", lambda: self._plain(label, size, tested()))

    def _refined(self, label: str, simulator: Simulator, size: int, tested: list[Tested]) -> dict[str, Metric]:
        began = time.monotonic()
        refined = [self._centred(simulator, one.sets, size) for one in tested]
        seconds = time.monotonic() - began
        means = {
            "onestep": torch.cat([self._local(one.sets).mean.cpu() for one in tested]),
            "centred": torch.cat([one.mean.cpu() for one in refined]),
        }
        if size <= self.config.exact_up_to:
            means["exact"] = torch.cat([one.exact for one in tested]).cpu()
        return compared(label, size, tested, means) | said(label, size, refined, tested, seconds)

    def _plain(self, label: str, size: int, tested: list[Tested]) -> dict[str, Metric]:
        mean = torch.cat([self.model("plain").estimate(one.sets).mean.cpu() for one in tested])
        return compared(label, size, tested, {"plain": mean})

    def _centred(self, simulator: Simulator, sets: Sets, size: int) -> Estimate:
        above, pilot = self.config.pilot
        return self.model("refined").estimate(
            sets,
            simulator=simulator,
            loss=self.problem.loss,
            pilot=pilot if size >= above else None,
            generator=torch.Generator(sets.device).manual_seed(self.config.seed + size),
            **self._how(),
        )

    def _local(self, sets: Sets) -> Estimate:
        return self.model("refined").estimate(sets, **self._how())

    def _how(self) -> dict[str, Any]:
        on_gpu = torch.device(self.config.device).type == "cuda"
        return {"chunk": 2**21 if on_gpu else 2**15, "precision": "bfloat16" if self.config.half else "input"}

    def _test_sets(self, simulator: Simulator, size: int, number: int) -> list[Tested]:
        parameters = fixed_parameters(simulator)
        return [self._tested(simulator, theta, size, number, 1_000 * size + i) for i, theta in enumerate(parameters)]

    def _tested(self, simulator: Simulator, theta: Tensor, size: int, number: int, seed: int) -> Tested:
        device = self.config.device
        generator = torch.Generator(device).manual_seed(3_000_000 + seed + self.config.seed)
        rows = theta.float().expand(number, -1).to(device)
        sets = simulator(rows, torch.full((number,), size, device=device), generator)
        truth = rows.double()
        fisher = (size * simulator.fisher_per_datum(theta.float())).to(device).expand(number, -1, -1)
        if isinstance(simulator, LinearRegression):
            at_truth = simulator.information(sets, truth[0])
            score, exact = at_truth.score, simulator.posterior(sets).mean
        else:
            score = simulator.score(sets, truth)
            exact = truth + torch.linalg.solve(fisher, score)
            if size <= self.config.exact_up_to:
                exact = torch.stack([simulator.posterior(sets[i]).mean for i in range(number)])
        return Tested(truth, sets, fisher, score, exact)

    def remembered(self, name: str, kind: str, measure: Callable[[], dict[str, Metric]]) -> dict[str, Metric]:
        """What was measured of one kind of network, now or in an interrupted run of the same config."""
        return self.parts.measured(f"{name}-{kind}", self._config_of(kind), measure)

    def _config_of(self, kind: str) -> dict[str, Any]:
        """The config as far as this problem and this kind of network depend on it."""
        config = self.config.to_dict() | {"problems": None, "problem": asdict(self.problem)}
        if kind == "refined":
            config |= {"plain_steps": None, "problem": config["problem"] | {"plain_size": None}}
        return config

    def _path(self, name: str) -> Path | None:
        if self.checkpoints is None:
            return None
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return self.checkpoints / name
