"""String-yeast: aggregations on a real protein graph, at equal epochs and at equal time.

The functions of yeast proteins (112 labels) are learned from eight scores of association on every edge, by a DeeperGCN
of which only the aggregation changes: the softmax and the sum that are in use, the paper's Fishnets drop-in (*naive*)
and this library's default (*fishnets*). Nodes have no features of their own; they start from the logarithm of the sum
of their edges' scores. Every aggregation has the same tuning budget: each learning rate is tried in a short run, and
the one with the best validation ROC-AUC is used in the long ones, of equal numbers of epochs and of equal time.

Reported are the loss on the training nodes at the end, evaluated as it is and with dropout as in the last epochs of
training, and the mean ROC-AUC on validation and test nodes, over seeds. Where the two losses differ by more than
dropout's own noise, an aggregation is not the same function in training and in use.
The graph is a miniature of ogbn-proteins and no official benchmark; there is one protocol, *clean*.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fishnets.errors import NonFiniteLossError
from fishnets.experiments.candidates import expect_clean
from fishnets.experiments.graph_study import StudyConfig
from fishnets.experiments.parts import Parts
from fishnets.experiments.protein_graph import ProteinGraph
from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import mean_with_error

__all__ = ["MEASURES", "METHODS", "Config", "Result", "config_for", "run"]

METHODS = ("fishnets", "naive", "softmax", "sum")
MEASURES = ("loss", "loss_with_dropout", "valid_auc", "test_auc")
LAST = 10  # epochs that the loss with dropout is a mean of


@dataclass(frozen=True)
class Config(StudyConfig):
    """What to train on which graph."""

    preset: str
    protocol: str
    table: ProteinGraph
    methods: tuple[str, ...] = METHODS
    hidden: int = 64
    num_layers: int = 8
    num_params: int = 8
    dropout: float = 0.3
    learning_rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    tuning_epochs: int = 100
    epochs: int = 250
    seconds: float = 8.0
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics by name."""

    config: Config
    metrics: dict[str, Metric]
    seconds: float


def config_for(
    preset: str, protocol: str, seed: int = 0, device: str = "cpu", *, table: ProteinGraph
) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU, an hour) or ``"paper"`` (a GPU)."""
    expect_clean(preset, protocol, "experiment with this graph")
    config = Config(preset, protocol, table, seed=seed, device=device)
    if preset == "paper":
        return config
    if preset == "quick":
        return replace(config, hidden=32, num_layers=3, tuning_epochs=10, epochs=40, seconds=60.0, seeds=(0,))
    return replace(
        config,
        methods=("fishnets", "sum"),
        hidden=8,
        num_layers=2,
        num_params=2,
        learning_rates=(1e-2,),
        tuning_epochs=2,
        epochs=3,
        seconds=0.2,
        seeds=(0, 1),
    )


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> Result:
    """Tunes, trains and tests every aggregation.

    Args:
        config: What to do.
        checkpoints: Folder for finished parts, from which an interrupted run continues.
        progress: Unused.

    Returns:
        Metrics.
    """
    study = _Study(config, checkpoints)
    metrics: dict[str, Metric] = {}
    for method in config.methods:
        metrics |= study.of(method)
    return Result(config, metrics, study.parts.seconds)


class _Study:
    """The graph on its device, and what is measured on it."""

    def __init__(self, config: Config, checkpoints: Path | None) -> None:
        self.config, self.parts = config, Parts(checkpoints)
        self.data = config.table.data.to(config.device)
        self.labels = self.data.y.float()

    def of(self, method: str) -> dict[str, Metric]:
        """Everything about one aggregation."""
        config = self.config
        tried = self._tried(method)
        rate = max(tried, key=lambda one: tried[one]["valid_auc"].value)
        metrics = {
            f"tuning/{method}/rate={one:g}/{name}": tried[one][name] for one in tried for name in ("loss", "valid_auc")
        }
        per_epoch = tried[rate]["seconds"].value / config.tuning_epochs
        budgets = {"epochs": config.epochs, "time": max(1, round(config.seconds / per_epoch))}
        for kind, epochs in budgets.items():
            runs = [self._part(method, rate, epochs, seed) for seed in config.seeds]
            for name in MEASURES:
                values = torch.tensor([one[name].value for one in runs], dtype=torch.float64)
                metrics[f"{name}/{method}/equal-{kind}"] = metric(mean_with_error(values))
            metrics[f"epochs/{method}/equal-{kind}"] = Metric(float(epochs), 0.0)
            metrics[f"seconds/{method}/equal-{kind}"] = Metric(sum(o["seconds"].value for o in runs) / len(runs), 0.0)
        return metrics | {f"learning-rate/{method}": Metric(rate, 0.0), f"weights/{method}": tried[rate]["weights"]}

    def _tried(self, method: str) -> dict[float, dict[str, Metric]]:
        """A short run at each learning rate; one that diverges is left out."""
        found = {}
        for rate in self.config.learning_rates:
            try:
                found[rate] = self._part(method, rate, self.config.tuning_epochs, self.config.seeds[0])
            except NonFiniteLossError:
                continue
        if not found:
            raise NonFiniteLossError(f"{method} diverges at every rate of {self.config.learning_rates}.")
        return found

    def _part(self, method: str, rate: float, epochs: int, seed: int) -> dict[str, Metric]:
        config = self.config.to_dict() | {"methods": None, "tuning_epochs": None, "epochs": epochs, "seeds": None}
        depends = config | {"method": method, "rate": rate, "run": seed, "learning_rates": None, "seconds": None}
        name = f"{method}-{rate:g}-{epochs}-{seed}"
        return self.parts.measured(name, depends, partial(self._trained, method, rate, epochs, seed))

    def _trained(self, method: str, rate: float, epochs: int, seed: int) -> dict[str, Metric]:
        """One training: its loss at the end, its ROC-AUC, and its time."""
        from fishnets.graphs.training import train

        with torch.random.fork_rng(devices=[0] if self.data.x.is_cuda else []):
            torch.manual_seed(1_000 * self.config.seed + seed)  # of weights and dropout
            model = self._model(method)

            def loss(step: int) -> Tensor:
                return self._loss(self._logits(model))

            loss(0).backward()  # a first pass loads what is needed, which is not training's time
            self._wait()
            began = time.monotonic()
            losses = train(model, loss, epochs, rate)[-LAST:]
            self._wait()
            seconds = time.monotonic() - began
        weights = Metric(float(sum(p.numel() for p in model.parameters())), 0.0)
        found = self._tested(model) | {"loss_with_dropout": Metric(sum(losses) / len(losses), 0.0)}
        return found | {"seconds": Metric(seconds, 0.0), "weights": weights}

    def _wait(self) -> None:
        if self.data.x.is_cuda:
            torch.cuda.synchronize()

    @torch.no_grad()
    def _tested(self, model: Any) -> dict[str, Metric]:
        from fishnets.graphs.metrics import roc_auc

        logits = self._logits(model)
        found = {"loss": Metric(float(self._loss(logits)), 0.0)}
        for part in ("valid", "test"):
            mask = self.data[f"{part}_mask"]
            found[f"{part}_auc"] = Metric(float(roc_auc(logits[mask], self.labels[mask])), 0.0)
        return found

    def _logits(self, model: Any) -> Tensor:
        logits: Tensor = model(self.data.x, self.data.edge_index, self.data.edge_attr)
        return logits

    def _loss(self, logits: Tensor) -> Tensor:
        mask = self.data.train_mask
        return binary_cross_entropy_with_logits(logits[mask], self.labels[mask])

    def _model(self, method: str) -> Any:
        from fishnets.graphs import DeeperGCN, FishnetsAggregation

        config = self.config
        makers = {
            "fishnets": partial(FishnetsAggregation, num_params=config.num_params),
            "naive": partial(FishnetsAggregation, num_params=config.num_params, form="paper"),
        }
        model = DeeperGCN(
            self.data.x.shape[1],
            self.data.edge_attr.shape[1],
            self.labels.shape[1],
            hidden=config.hidden,
            num_layers=config.num_layers,
            aggregation=makers.get(method, method),
            dropout=config.dropout,
        )
        return model.to(config.device)
