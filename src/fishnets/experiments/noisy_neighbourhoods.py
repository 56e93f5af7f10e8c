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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import NonFiniteLossError
from fishnets.experiments.candidates import expect_clean
from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import mean_with_error
from fishnets.simulators.neighbourhoods import Neighbourhood, Neighbourhoods

__all__ = ["LAWS", "Config", "Result", "config_for", "run"]

LAWS = {
    "train": Neighbourhoods(),
    "degree-x20": Neighbourhoods(degree=(20, 600)),
    "noise-shift": Neighbourhoods(noise="shifted"),
}
METHODS = ("fishnets", "fishnets-location", "fishnets-paper", "sum", "mean", "max", "softmax", "pna")


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
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (two CPU cores, minutes) or ``"paper"`` (a GPU).

    Example:
        >>> config_for("quick", "clean").seeds
        (0,)
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
        seeds=(0,),
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
        checkpoints: Unused: a run is short.
        progress: Unused: there is nothing to show but the end.

    Returns:
        Metrics.
    """
    started, metrics = time.monotonic(), dict[str, Metric]()
    tests = {
        law: _graph(config, simulator, nodes, 10 + i)
        for i, ((law, simulator), nodes) in enumerate(zip(LAWS.items(), config.test_nodes, strict=True))
    }
    for method in config.methods:
        metrics |= _measured(config, method, tests)
    return Result(config, metrics, time.monotonic() - started)


def _measured(config: Config, method: str, tests: dict[str, Neighbourhood]) -> dict[str, Metric]:
    """One aggregation: its rate, its cost, and its errors over the bound as a mean over seeds."""
    validation = _graph(config, LAWS["train"], config.validation_nodes, 1)
    errors = {rate: _tuning_error(config, method, rate, validation) for rate in config.learning_rates}
    rate = min(errors, key=lambda one: errors[one])
    found: dict[str, list[float]] = {law: [] for law in tests}
    noise: dict[str, list[float]] = {law: [] for law in tests}
    seconds = []
    for seed in config.seeds:
        model, spent, weights = _trained(config, method, rate, config.steps, seed)
        seconds.append(spent)
        for law, graph in tests.items():
            ratio = graph.mse_over_bound(_estimate(model, graph))
            found[law].append(ratio.value)
            noise[law].append(ratio.error)
    metrics = {}
    for law in tests:
        values = torch.tensor(found[law], dtype=torch.float64)
        one = mean_with_error(values)  # over seeds, where there are several
        single = Metric(found[law][0], noise[law][0], bound=1.0)
        metrics[f"mse_over_bound/{method}/{law}"] = metric(one, bound=1.0) if len(values) > 1 else single
        metrics[f"mse_over_bound-test-noise/{method}/{law}"] = Metric(max(noise[law]), 0.0)
    metrics[f"learning-rate/{method}"] = Metric(rate, 0.0)
    metrics[f"seconds/training/{method}"] = Metric(sum(seconds) / len(seconds), 0.0)
    metrics[f"weights/{method}"] = Metric(float(weights), 0.0)
    return metrics


def _tuning_error(config: Config, method: str, rate: float, validation: Neighbourhood) -> float:
    """Squared error on validation nodes after a short run; infinite where it diverges."""
    try:
        model, _, _ = _trained(config, method, rate, config.tuning_steps, config.seeds[0])
    except NonFiniteLossError:
        return math.inf
    return float((_estimate(model, validation) - validation.theta).square().mean())


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
