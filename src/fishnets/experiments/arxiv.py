"""arXiv: three layers of Fishnets against a 28-layer DeeperGCN on citation graphs (Table 1).

The field of a paper is learned from its features and from the papers it cites or that cite it: edges have both
directions, every node has one to itself, the whole graph is one batch, and the score is the share of test nodes whose
field is found, where that of validation nodes is best. Two networks, of the same width and both with batch
normalisation:

* ``gcn-28``: DeeperGCN's ResGEN, a softmax of fixed temperature, as its authors published it.
* ``fishnets-3``: three layers with :class:`fishnets.graphs.FishnetsAggregation`, p = 9; in the paper's form where the
  protocol is not *clean*.

They run on ogbn-arxiv with its own split or, as stand-ins, on smaller citation graphs, of whose classes each seed draws
60 % for training and 20 % for validation. Features go in as they are stored: of the stand-ins a bag of words, a weight
for each word of a paper; nothing is rescaled or left out.

Protocols:

* *clean*: the same learning rates for every network, tried on the validation nodes of the first seed in 250
  epochs; training ends when validation nodes have not improved for 100 epochs.
* *published*: as the paper states it, Adam at 0.01, 500 epochs, one seed. Which epoch it reports, it does not say.
* *original*: as DeeperGCN's authors train theirs, Adam at 0.001, 500 epochs.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError
from fishnets.experiments.candidates import expect_choices
from fishnets.experiments.graph_study import (
    GraphStudy,
    NamedGraph,
    Runs,
    StudyConfig,
    StudyResult,
    naming,
    paired_difference,
)
from fishnets.experiments.records import Metric

__all__ = ["MODELS", "PAPER", "Config", "config_for", "make_model", "read_graphs", "run"]

MODELS = ("gcn-28", "fishnets-3")
ARXIV = "ogbn-arxiv"
PAPER = {"gcn-28": 0.7100, "fishnets-3": 0.7062}  # test accuracy on ogbn-arxiv, Table 1


@dataclass(frozen=True)
class Config(StudyConfig):
    """What to train on which graphs."""

    preset: str
    protocol: str
    table: tuple[NamedGraph, ...]
    models: tuple[str, ...] = MODELS
    hidden: int = 128
    deep_layers: int = 28
    num_layers: int = 3
    num_params: int = 9
    dropout: float = 0.5
    learning_rates: tuple[float, ...] = (1e-3, 1e-2)
    tuning_epochs: int = 250
    epochs: int = 500
    patience: int | None = 100
    every: int = 5
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    seed: int = 0
    device: str = "cpu"


def config_for(
    preset: str, protocol: str, seed: int = 0, device: str = "cpu", *, table: tuple[NamedGraph, ...]
) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU, minutes) or ``"paper"`` (a GPU)."""
    expect_choices(preset, protocol, ("clean", "published", "original"))
    config = Config(preset, protocol, table, seed=seed, device=device)
    if protocol == "published":
        config = replace(config, learning_rates=(1e-2,), patience=None, every=1, seeds=(0,))
    if protocol == "original":
        config = replace(config, learning_rates=(1e-3,), patience=None, every=1)
    if preset == "paper":
        return config
    config = replace(config, seeds=config.seeds[:2])
    if preset == "quick":
        return replace(config, hidden=64, deep_layers=6, epochs=30, learning_rates=config.learning_rates[-1:])
    small: dict[str, Any] = {"hidden": 8, "deep_layers": 3, "num_layers": 2, "num_params": 2}
    return replace(config, epochs=4, every=2, **small)


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> StudyResult:
    """Tunes, trains and tests every network on every graph.

    Args:
        config: What to do.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        progress: Whether to print a line on stderr for every run; by default when that is a terminal.
    """
    study, found = study_of(config, checkpoints, progress), {}
    metrics: dict[str, Metric] = {}
    for graph in config.table:
        for name in config.models:
            label = f"{name}/{graph.name}"
            found[label] = runs_of(config, study, name, graph)
            metrics |= found[label].metrics(label, score="accuracy")
            if graph.name == ARXIV:
                metrics[f"accuracy/{label}"] = replace(metrics[f"accuracy/{label}"], paper=PAPER.get(name))
        if {"fishnets-3", "gcn-28"} <= set(config.models):
            pair = found[f"fishnets-3/{graph.name}"], found[f"gcn-28/{graph.name}"]
            metrics[f"difference/fishnets-3-gcn-28/{graph.name}"] = paired_difference(*pair)
    return StudyResult(config, metrics, study.parts.seconds, found)


def study_of(config: Config, checkpoints: Path | None, progress: bool | None = None) -> GraphStudy:
    """The study of a config; its runs depend on everything but the choice of runs."""
    choice = ("models", "learning_rates", "tuning_epochs", "epochs", "patience", "seeds")
    return GraphStudy.of(config, checkpoints, choice, progress)


def runs_of(config: Config, study: GraphStudy, name: str, graph: NamedGraph) -> Runs:
    """The runs of one network on one graph."""
    from fishnets.graphs.selection import Recipe

    data = graph.data
    clip = 1.0 if config.protocol == "clean" else None
    recipe = Recipe(config.epochs, 1.0, config.patience, config.every, clip=clip)
    make = partial(make_model, config, name, data.x.shape[1], int(data.y.max()) + 1)
    task = partial(task_of, config, data)
    budget: dict[str, Any] = {"rates": config.learning_rates, "seeds": config.seeds}
    budget["tuning_recipe"] = replace(recipe, epochs=min(config.epochs, config.tuning_epochs))
    return study.runs(f"{name}/{graph.name}", make, task, recipe, **budget)


def make_model(config: Config, name: str, num_features: int, num_classes: int) -> Any:
    """A network by name, drawn by PyTorch's global generator."""
    from fishnets.graphs import DeeperGCN, FishnetsAggregation

    form: Any = "regression" if config.protocol == "clean" else "paper"
    fishnets = partial(FishnetsAggregation, num_params=config.num_params, form=form)
    choices: dict[str, dict[str, Any]] = {
        "gcn-28": {"num_layers": config.deep_layers, "aggregation": "softmax_sg", "temperature": 0.1},
        "fishnets-3": {"num_layers": config.num_layers, "aggregation": fishnets},
    }
    shared: dict[str, Any] = {"hidden": config.hidden, "dropout": config.dropout}
    shared |= {"norm": "batch", "mlp_layers": 1, "bias": True}
    return DeeperGCN(num_features, None, num_classes, **shared, **choices[name])


def task_of(config: Config, data: Any, seed: int) -> Any:
    """What a network is trained for with a seed, which draws the split of a graph that has none."""
    from fishnets.graphs.citation import random_split
    from fishnets.graphs.tasks import NodeTask

    split = copy(data) if "train_mask" in data else random_split(data, 1_000 * config.seed + seed)
    return NodeTask(split.to(config.device), score="accuracy")


def read_graphs(folder: Path | None) -> tuple[NamedGraph, ...]:
    """Reads ogbn-arxiv or the citation graphs in a folder, and says where they come from where they are missing.

    Args:
        folder: A folder named ``ogbn_arxiv`` in OGB's layout; or one that holds ``.npz`` files, the stand-ins, in the
            layout of :mod:`fishnets.graphs.citation`, or that folder, or both.

    Returns:
        The graphs, stand-ins first, by name.
    """
    paths = [] if folder is None else _graphs_in(Path(folder))
    if not paths:
        given = "no folder was given" if folder is None else _nothing_at(Path(folder))
        raise ConfigError(
            f"This experiment needs citation graphs, but {given}. Give `--data FOLDER`, a folder that holds stand-ins, "
            "such as dblp.npz and cora_ml.npz, or ogbn-arxiv, which is at https://ogb.stanford.edu "
            "(http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip, 0.1 GB): unpack it to a folder named "
            "ogbn_arxiv and give `--data ogbn_arxiv`."
        )
    return tuple(map(_read, paths))


def _graphs_in(folder: Path) -> list[Path]:
    """The folder itself where that is ogbn-arxiv, else the graphs in it."""
    if folder.resolve().name == "ogbn_arxiv" and folder.is_dir():
        return [folder]
    return [*sorted(folder.glob("*.npz")), *(path for path in folder.glob("ogbn_arxiv") if path.is_dir())]


def _nothing_at(folder: Path) -> str:
    """Why no graph is found there."""
    if not folder.exists():
        return f"{folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is a file, where the folder that holds it was expected"
    if (folder / "raw").is_dir():
        return f"{folder} is in OGB's layout, but not named ogbn_arxiv"
    return f"there are none at {folder}"


def _read(path: Path) -> NamedGraph:
    from fishnets.graphs.citation import read_citation

    data = _read_arxiv(path) if path.is_dir() else read_citation(path)
    data.edge_index = _both_directions_and_loops(data.edge_index, data.num_nodes)
    digest = hashlib.sha256()
    for part in ("x", "edge_index", "y", "train_mask", "valid_mask", "test_mask"):
        if part in data:
            digest.update(data[part].contiguous().numpy().data)
    return NamedGraph(ARXIV if path.is_dir() else path.stem, digest.hexdigest(), data)


def _read_arxiv(folder: Path) -> Any:
    """A graph in OGB's layout whose nodes have features and a class each."""
    from fishnets.graphs.datasets import read_node_dataset
    from fishnets.graphs.tasks import NodeTask

    data = read_node_dataset(folder)
    if data.x is None or data.y.shape[1] != 1 or data.y.is_floating_point():
        features = "no features" if data.x is None else f"{data.x.shape[1]} features"
        raise DataError(
            f"{folder} has {features} of its nodes and labels of shape {tuple(data.y.shape)}, {data.y.dtype}, but "
            "features and one class for each node were expected, as ogbn-arxiv has them."
        )
    data.y, data.edge_attr = data.y.flatten(), None
    with naming(folder):
        NodeTask(data, score="accuracy")  # looks at labels and split
    return data


def _both_directions_and_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Edges (2, E) in both directions and from every node to itself, each once, by target and then source."""
    loops = torch.arange(num_nodes).expand(2, -1)
    source, target = torch.cat([edge_index, edge_index.flip(0), loops], dim=1)
    edge = (target * num_nodes + source).unique()
    return torch.stack([edge % num_nodes, edge // num_nodes])
