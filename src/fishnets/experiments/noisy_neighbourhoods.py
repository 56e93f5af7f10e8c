r"""Noisy neighbourhoods: aggregations compared where the right answer is known for every node.

Nodes of a generated graph are seen through messages of very unequal precision, a nonlinear function of what a message
brings and never itself an input (:mod:`fishnets.simulators.neighbourhoods`). One network, the same but for its
aggregation, is trained on fresh graphs to estimate the parameters of every node, with the mean squared error as its
loss. Each aggregation has the same tuning budget: every learning rate is tried in a short run and the one with the
lowest validation error is used for the long one.

The metric is the squared error of a node over the least possible one, the trace of its exact posterior covariance,
averaged over nodes and paired with the exact posterior mean: 1 is optimal. Networks are tested on the law they were
trained on (*train*), at twenty times the degree (*degree-x20*) and under another law of covariates (*noise-shift*).
The paper has no such experiment: there is one protocol, *clean*.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import NonFiniteLossError
from fishnets.experiments.candidates import expect_clean
from fishnets.experiments.parts import Parts
from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import mean_with_error
from fishnets.simulators.neighbourhoods import Neighbourhood, Neighbourhoods

__all__ = ["LAWS", "Config", "Result", "config_for", "run"]

LAWS = {
    "train": Neighbourhoods(),
    "degree-x20": Neighbourhoods(degree=(20, 600)),
    "noise-shift": Neighbourhoods(noise="shifted"),
}
METHODS = ("fishnets", "fishnets-paper", "sum", "mean", "max", "softmax", "pna")


@dataclass(frozen=True)
class Config:
    """What to train and how to test it; ``test_nodes`` belongs to the laws in order."""

    preset: str
    protocol: str
    methods: tuple[str, ...] = METHODS
    width: int = 64
    depth: int = 2
    num_params: int = 8
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    tuning_steps: int = 4_000
    steps: int = 30_000
    batch_nodes: int = 2_000
    validation_nodes: int = 20_000
    test_nodes: tuple[int, int, int] = (40_000, 10_000, 40_000)
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name."""

    config: Config
    metrics: dict[str, Metric]
    seconds: float


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu") -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU core, an hour) or ``"paper"`` (a GPU).

    Example:
        >>> config_for("quick", "clean").seeds
        (0, 1, 2)
    """
    expect_clean(preset, protocol, "such experiment")
    config = Config(preset, protocol, seed=seed, device=device)
    if preset == "paper":
        return config
    quick = replace(
        config,
        width=32,
        tuning_steps=1_000,
        steps=6_000,
        batch_nodes=500,
        validation_nodes=5_000,
        test_nodes=(20_000, 2_000, 20_000),
        num_params=4,
    )
    if preset == "quick":
        return quick
    return replace(
        quick,
        methods=("fishnets", "mean"),
        width=8,
        learning_rates=(1e-2,),
        tuning_steps=5,
        steps=40,
        batch_nodes=50,
        validation_nodes=50,
        test_nodes=(50, 20, 50),
        num_params=2,
        seeds=(0, 1),
    )


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Tunes, trains and tests every aggregation.

    Args:
        config: What to do.
        checkpoints: Folder for finished trainings, from which an interrupted run continues.
        progress: Unused: there is nothing to show but the end.

    Returns:
        Metrics.
    """
    study = _Study(config, checkpoints)
    metrics: dict[str, Metric] = {}
    for method in config.methods:
        metrics |= study.of(method)
    return Result(config, metrics, study.parts.seconds)


class _Study:
    """The graphs of validation and test, and what is measured on them."""

    def __init__(self, config: Config, checkpoints: Path | None) -> None:
        self.config, self.parts = config, Parts(checkpoints)
        self.validation = _graph(config, LAWS["train"], config.validation_nodes, 1)
        self.tests = {
            law: _graph(config, simulator, nodes, 10 + i)
            for i, ((law, simulator), nodes) in enumerate(zip(LAWS.items(), config.test_nodes, strict=True))
        }

    def of(self, method: str) -> dict[str, Metric]:
        """One aggregation: its rate, its cost, and its errors over the bound as a mean over seeds."""
        config = self.config
        errors = {rate: self._tuning_error(method, rate) for rate in config.learning_rates}
        rate = min(errors, key=lambda one: errors[one])
        runs = [self._part(method, rate, config.steps, seed) for seed in config.seeds]
        metrics = {}
        for law in self.tests:
            values = torch.tensor([one[law].value for one in runs], dtype=torch.float64)
            several = metric(mean_with_error(values), bound=1.0)  # the error is that of seeds
            metrics[f"mse_over_bound/{method}/{law}"] = several if len(runs) > 1 else runs[0][law]
            metrics[f"mse_over_bound-worst/{method}/{law}"] = Metric(float(values.max()), 0.0, bound=1.0)
            noise = max(one[law].error for one in runs)
            metrics[f"mse_over_bound-test-noise/{method}/{law}"] = Metric(noise, 0.0)
        seconds = sum(one["seconds"].value for one in runs) / len(runs)
        cost = {f"seconds/training/{method}": Metric(seconds, 0.0), f"weights/{method}": runs[0]["weights"]}
        return metrics | cost | {f"learning-rate/{method}": Metric(rate, 0.0)}

    def _tuning_error(self, method: str, rate: float) -> float:
        """Squared error on validation nodes after a short run; infinite where it diverges."""
        try:
            return self._part(method, rate, self.config.tuning_steps, self.config.seeds[0])["validation"].value
        except NonFiniteLossError:
            return math.inf

    def _part(self, method: str, rate: float, steps: int, seed: int) -> dict[str, Metric]:
        chosen = {"methods": None, "learning_rates": None, "tuning_steps": None, "seeds": None}
        depends = self.config.to_dict() | chosen | {"method": method, "rate": rate, "steps": steps, "run": seed}
        name = f"{method}-{rate:g}-{steps}-{seed}"
        return self.parts.measured(name, depends, partial(self._measured, method, rate, steps, seed))

    def _measured(self, method: str, rate: float, steps: int, seed: int) -> dict[str, Metric]:
        """One training: its cost, its error on validation nodes and those on test nodes over the bound."""
        model, seconds, weights = _trained(self.config, method, rate, steps, seed)
        error = (_estimate(model, self.validation) - self.validation.theta).square().mean()
        found = {law: graph.mse_over_bound(_estimate(model, graph)) for law, graph in self.tests.items()}
        metrics = {law: Metric(ratio.value, ratio.error, bound=1.0) for law, ratio in found.items()}
        cost = {"seconds": Metric(seconds, 0.0), "weights": Metric(float(weights), 0.0)}
        return metrics | cost | {"validation": Metric(float(error), 0.0)}


def _trained(config: Config, method: str, rate: float, steps: int, seed: int) -> tuple[Any, float, int]:
    """A network, the seconds its training took and the number of its weights."""
    from fishnets.graphs.regression import NodeRegressor, make_aggregation
    from fishnets.graphs.training import train

    law, generator = LAWS["train"], _generator(config, 100 + seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000 * config.seed + seed)
        degrees = torch.zeros(law.degree[1] + 1)
        degrees[law.degree[0] :] = 1.0  # in-degrees are uniform
        aggregation = make_aggregation(method, config.width, degrees, config.num_params)
        model = NodeRegressor(2, 3, 2, aggregation, config.width, config.depth, 1_000 * config.seed + seed)
    model.to(config.device)
    first = law(config.batch_nodes, generator)
    model.standardise(first.node_features, first.edge_index, first.edge_features)

    def loss(step: int) -> Tensor:
        graph = law(config.batch_nodes, generator)
        error: Tensor = model(graph.node_features, graph.edge_index, graph.edge_features) - graph.theta
        return error.square().mean()

    began = time.monotonic()
    train(model, loss, steps, rate)
    return model, time.monotonic() - began, sum(p.numel() for p in model.parameters())


@torch.no_grad()
def _estimate(model: Any, graph: Neighbourhood) -> Tensor:
    """Estimates of the nodes of a graph, shape (N, 2)."""
    estimate: Tensor = model(graph.node_features, graph.edge_index, graph.edge_features)
    return estimate


def _graph(config: Config, simulator: Neighbourhoods, num_nodes: int, stream: int) -> Neighbourhood:
    return simulator(num_nodes, _generator(config, stream))


def _generator(config: Config, stream: int) -> torch.Generator:
    return torch.Generator(config.device).manual_seed(4_000_000 + 10_000 * config.seed + stream)
