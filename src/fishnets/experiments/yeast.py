"""Yeast: aggregations on a real protein graph, trained to convergence, with edges as measured and noisy.

The functions of yeast proteins (112 labels) are learned from eight scores of association on every edge by a DeeperGCN
of which the aggregation changes, and with it the width, so that all networks have about as many weights. Nodes start
from the logarithm of the sum of their edges' features. Under *noisy*, scores are seen through binomial counts
(:mod:`fishnets.graphs.noise`): training nodes see others in every epoch, validation and test nodes a realisation each
that stays; that of the test nodes has other numbers of trials, as in the paper.

Every aggregation has the same budget: three learning rates, constant after a short rise, each with the first seed until
validation nodes have not improved for 100 epochs; the best of them on validation nodes is used with all seeds. Reported
is the mean ROC-AUC on test nodes where that on validation nodes is best, and, to tell slow from poor, both scores where
networks have learned the training nodes equally well. Not equal is what went before. The form of
Fishnets' aggregation, and some ten variants of it that were dropped, were compared by validation nodes of this graph,
where the others came as they are. Trials of one or two seeds also set the learning rates, the number of epochs and the
noise in training: with a single realisation of it, Fishnets was further behind a sum than with new ones. The graph is a
miniature of ogbn-proteins and no official benchmark; there is one protocol, *clean*.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fishnets.experiments.candidates import expect_clean
from fishnets.experiments.graph_study import GraphStudy, Runs, StudyConfig, StudyResult, paired_difference, spread
from fishnets.experiments.protein_graph import ProteinGraph
from fishnets.experiments.records import Metric

if TYPE_CHECKING:
    from fishnets.graphs.noise import Laws

__all__ = ["CONDITIONS", "METHODS", "Config", "config_for", "run"]

EQUAL_LOSS = 0.13  # of training, which all networks reach with the best of the rates
METHODS = ("fishnets", "sum", "softmax", "mean", "pna")
CONDITIONS = ("clean", "noisy")


@dataclass(frozen=True)
class Config(StudyConfig):
    """What to train on which graph."""

    preset: str
    protocol: str
    table: ProteinGraph
    methods: tuple[str, ...] = METHODS
    conditions: tuple[str, ...] = CONDITIONS
    hidden: int = 64
    num_layers: int = 8
    num_params: int = 8
    dropout: float = 0.3
    learning_rates: tuple[float, ...] = (2e-3, 5e-3, 1e-2)
    epochs: int = 1_000
    patience: int = 100
    every: int = 10
    seeds: tuple[int, ...] = tuple(range(10))
    fewer_seeds: tuple[int, ...] = (0, 1, 2)
    with_fewer_seeds: tuple[str, ...] = ("mean", "pna")
    seed: int = 0
    device: str = "cpu"

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Seeds of the runs of an aggregation."""
        return self.fewer_seeds if method in self.with_fewer_seeds else self.seeds


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu", *, table: ProteinGraph) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU, an hour) or ``"paper"`` (a GPU)."""
    expect_clean(preset, protocol, "comparison on this graph")
    config = Config(preset, protocol, table, seed=seed, device=device)
    if preset == "paper":
        return config
    few: dict[str, Any] = {"seeds": (0, 1), "fewer_seeds": (0,)}
    if preset == "quick":
        return replace(config, hidden=32, num_layers=3, epochs=60, learning_rates=(3e-3, 1e-2), **few)
    small: dict[str, Any] = {"hidden": 8, "num_layers": 2, "num_params": 2, "epochs": 4, "every": 2}
    return replace(config, learning_rates=(1e-2,), methods=("fishnets", "sum", "pna"), **small, **few)


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> StudyResult:
    """Tunes, trains and tests every aggregation under every condition.

    Args:
        config: What to do.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        progress: Whether to print a line on stderr for every run; by default when that is a terminal.
    """
    study, found = study_of(config, checkpoints, progress), {}
    for condition in config.conditions:
        for method in config.methods:
            found[f"{method}/{condition}"] = runs_of(config, study, method, condition)
    metrics: dict[str, Metric] = {}
    for label, runs in found.items():
        metrics |= runs.metrics(label) | at_equal_loss(runs, label)
    for condition in config.conditions:
        for other in config.methods:
            if other != "fishnets" and "fishnets" in config.methods:
                pair = found[f"fishnets/{condition}"], found[f"{other}/{condition}"]
                metrics[f"difference/fishnets-{other}/{condition}"] = paired_difference(*pair)
                metrics[f"difference_valid/fishnets-{other}/{condition}"] = paired_difference(*pair, part="valid")
    if set(CONDITIONS) <= set(config.conditions):
        for method in config.methods:
            clean, noisy = found[f"{method}/clean"], found[f"{method}/noisy"]
            if clean.rate == noisy.rate:  # else rates are compared, not conditions
                metrics[f"difference/clean-noisy/{method}"] = paired_difference(clean, noisy)
    if "noisy" in config.conditions:
        metrics |= noise_shares(config)
    return StudyResult(config, metrics, study.parts.seconds, found)


def at_equal_loss(runs: Runs, label: str, loss: float = EQUAL_LOSS) -> dict[str, Metric]:
    """Epochs until the training loss is no larger than this, and scores there; none where some runs do not get there.

    They tell networks that learn more slowly from networks that generalise less. No choice is made by them.
    """
    found: dict[str, list[float]] = {"epochs": [], "valid": [], "test": []}
    for curve in runs.curves:
        place = next((i for i, one in enumerate(curve.loss) if one <= loss), None)
        if place is None:
            return {}
        for name, values in found.items():
            values.append(getattr(curve, name)[place])
    return {f"at_loss/{name}/{label}": spread(torch.tensor(values)) for name, values in found.items()}


def noise_shares(config: Config, laws: Laws | None = None) -> dict[str, Metric]:
    """How much of what differs between edges, and between nodes, is noise: its variance over theirs, mean over scores.

    ``noise/edges/<law>`` is of single scores, ``noise/nodes/<law>`` of what nodes start from; under the paper's laws or
    others.
    """
    from fishnets.graphs.datasets import sum_of_edges

    graph, found = config.table.by_target().data, {}
    scores, start = graph.edge_attr, sum_of_edges(graph).log1p()
    noisy = config.table.realisations(config.seed, laws)
    for law, seen_by in {"train": noisy["valid"], "test": noisy["test"]}.items():
        for what, seen, true in (("edges", seen_by.edge_attr, scores), ("nodes", seen_by.x.log1p(), start)):
            shares = (seen[:, : true.shape[1]] - true).var(0) / true.var(0)
            found[f"noise/{what}/{law}"] = spread(shares[shares.isfinite()])
    return found


def study_of(config: Config, checkpoints: Path | None, progress: bool | None = None) -> GraphStudy:
    """The study of a config; its runs depend on everything but the choice of runs."""
    seeds = ("seeds", "fewer_seeds", "with_fewer_seeds")
    choice = ("methods", "conditions", "learning_rates", "epochs", "patience", *seeds)
    return GraphStudy.of(config, checkpoints, choice, progress)


def runs_of(config: Config, study: GraphStudy, method: str, condition: str) -> Runs:
    """The runs of one aggregation under one condition."""
    from fishnets.graphs.selection import Recipe

    recipe = Recipe(config.epochs, 1.0, config.patience, config.every, config.epochs // 100, replay=True)
    make, task = partial(make_model, config, method, condition), partial(task_of, config, condition)
    return study.runs(f"{method}/{condition}", make, task, recipe, config.learning_rates, config.seeds_of(method))


def task_of(config: Config, condition: str, seed: int) -> Any:
    """What the run of a seed is trained for under a condition."""
    given = (config.seed, seed, config.device)
    return config.table.noisy_task(*given) if condition == "noisy" else config.table.by_target().clean_task(*given)


def make_model(config: Config, method: str, condition: str) -> Any:
    """A network with this aggregation, of about as many weights as that of Fishnets."""
    of_width = partial(_of_width, config, condition)
    if method == "fishnets":
        return of_width(method, config.hidden)
    with torch.random.fork_rng(devices=[]):  # networks that are counted leave no trace
        target = _weights(of_width("fishnets", config.hidden))
        width = bisect(range(3 * config.hidden), target, lo=1, key=lambda one: _weights(of_width(method, one)))
        around = (max(1, width - 1), width)
        width = min(around, key=lambda one: abs(_weights(of_width(method, one)) - target))
    return of_width(method, width)


def _of_width(config: Config, condition: str, method: str, hidden: int) -> Any:
    from fishnets.graphs import DeeperGCN, FishnetsAggregation
    from fishnets.graphs.pna import PNAAggregation

    graph = config.table.data
    degrees = torch.bincount(torch.bincount(graph.edge_index[1], minlength=graph.num_nodes))
    makers = {
        "fishnets": partial(FishnetsAggregation, num_params=config.num_params),
        "pna": partial(PNAAggregation, degrees=degrees),
    }
    features = graph.edge_attr.shape[1] + (condition == "noisy")  # with the number of trials
    options: dict[str, Any] = {"num_layers": config.num_layers, "dropout": config.dropout}
    aggregation = makers.get(method, method)
    return DeeperGCN(features, features, graph.y.shape[1], hidden=hidden, aggregation=aggregation, **options)


def _weights(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())
