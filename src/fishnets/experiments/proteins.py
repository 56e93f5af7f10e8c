"""Proteins: the paper's networks by name, on ogbn-proteins or a graph in its layout.

Three studies, which differ in their networks and their edges:

* ``proteins`` (Table 1): 112, 8 and 16 layers that know the species; it needs ogbn-proteins itself.
* ``proteins-focus`` (Table 4): five networks of 14 to 28 layers, without species.
* ``noisy-proteins`` (Table 4): two networks on edges that were measured by counting (:mod:`fishnets.graphs.noise`).

Protocols:

* *clean*: 10 random parts in training, drawn anew in each epoch, and the whole graph in tests; the same learning rates
  for every network, tried on validation nodes with the first seed, that rise over the first fiftieth of the epochs and
  fall to zero along half a cosine, and gradients clipped at norm 1; scored by test nodes where validation nodes are
  best, over seeds. Fishnets are in the paper's form. In the end the networks of Table 4 are tested on 40, 10 and 5
  random blocks too (``at_end/``). Noisy edges are measured once for both directions, anew in every epoch of training,
  once for validation and once for test nodes, and nodes sum them over the whole graph. Single runs of `gcn-28` on clean
  edges, by validation nodes, chose 10 parts before 4; one of `fishnets-20` agreed. The focus networks have a third,
  larger rate, which was added when the small ones had chosen the larger of two.
* *published*: as the authors' code does. Fishnets with its fill of the triangle, 40 random parts, one learning rate,
  one seed, dropout in the first epoch alone; predictions on 5 blocks of nodes, or 10 for the large Fishnets; the mean
  of test scores over the last ten evaluations. Training ends when validation nodes have not improved for 250 epochs, as
  the paper says and its code does not, and after 1,200 epochs, on noisy edges after 1,000. A network that overfits is
  past its best in the last evaluations: ``at_best/`` is the test score where validation nodes are best. In the end all
  are tested on 40, 10, 5 blocks of consecutive nodes and the whole (``at_end/``). Noisy edges are measured anew in
  every part, each direction on its own, and nodes sum what is in their part; validation nodes are tested as test nodes
  are. For noisy proteins the same is run once more with that mended (``<network>/mended``): all networks on 5 blocks,
  edges measured as under *clean*, halves drawn, sums over the whole graph; ``gap/published`` and ``gap/mended`` are
  what is between the two networks in the last evaluations, ``gap_at_best/`` where validation nodes are best.
* *original*: DeeperGCN's own recipe: 10 random parts, Adam at 0.001, scored where validation nodes are best, on 5
  random parts that stay.

The networks of Table 1 are too deep for the whole graph: they are trained on 10 parts and tested on 5 random ones under
every protocol. *Published* are for them the settings the paper states, Adam at 0.01, 0.005 for Fishnets, scored where
validation nodes are best.

Nodes start from the sum of their edges' features, under *clean* from its logarithm. Under *clean* and *original*,
``difference/<network>-<network>`` is between runs with the same seeds, with the error of its mean, and
``difference_valid/`` that on validation nodes, for networks that the paper sets against each other;
``difference_in_parts/`` is on test nodes in as many blocks as the graph has in training, where nodes have about as many
neighbours as they had then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import DataError
from fishnets.experiments.candidates import expect_choices
from fishnets.experiments.graph_study import AT_END, GraphStudy, Runs, StudyConfig, StudyResult, paired_difference
from fishnets.experiments.protein_graph import ProteinGraph
from fishnets.experiments.records import Metric

__all__ = ["COMPARED", "PAPER", "STUDIES", "Config", "config_for", "run"]

STUDIES: dict[str, tuple[str, ...]] = {
    "proteins": ("fishnets-16", "fishnets-8", "gcn-112", "dyresgen-112"),
    "proteins-focus": ("fishnets-20", "fishnets-16-focus", "fishnets-small", "gcn-28", "gcn-small"),
    "noisy-proteins": ("noisy-fishnets-20", "noisy-gcn-28"),
}
PAPER = {  # test ROC-AUC on ogbn-proteins; that of dyresgen-112 is DeeperGCN's own
    "fishnets-16": 0.8444,
    "fishnets-8": 0.8410,
    "gcn-112": 0.8425,
    "dyresgen-112": 0.8580,
    "fishnets-20": 0.8110,
    "fishnets-16-focus": 0.7963,
    "fishnets-small": 0.7929,
    "gcn-28": 0.7951,
    "gcn-small": 0.7731,
    "noisy-fishnets-20": 0.7198,
    "noisy-gcn-28": 0.6471,
}
MENDED = "/mended"
SWEEP = (40, 10, 5, 1)  # blocks on which the networks of Table 4 are tested in the end
COMPARED = {  # the network that the paper sets it against, of 7 to 26 % more weights
    "fishnets-20": "gcn-28",
    "fishnets-16-focus": "gcn-28",
    "fishnets-small": "gcn-small",
    "noisy-fishnets-20": "noisy-gcn-28",
}
LARGE = ("fishnets-20", "fishnets-16-focus", "noisy-fishnets-20")  # predicted on twice as many blocks, as published


@dataclass(frozen=True)
class Config(StudyConfig):
    """What to train on which graph."""

    preset: str
    protocol: str
    study: str
    table: ProteinGraph
    models: tuple[str, ...]
    changes: tuple[tuple[str, int], ...] = ()
    learning_rates: tuple[float, ...] = (1e-3, 3e-3)
    epochs: int = 300
    patience: int | None = None
    every: int = 10
    parts: int = 10
    blocks: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0
    device: str = "cpu"

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks, those of the published noise once more, mended."""
        twice = self.study == "noisy-proteins" and self.protocol == "published"
        return self.models + tuple(name + MENDED for name in self.models if twice)

    @property
    def as_the_code(self) -> bool:
        """Whether to train and test as the authors' code does, which has the networks of Table 4 alone."""
        return self.protocol == "published" and self.study != "proteins"

    def rates(self, name: str) -> tuple[float, ...]:
        """Learning rates to try; as published, the Fishnets of Table 1 have a smaller one."""
        smaller = self.study == "proteins" and self.protocol == "published" and "fishnets" in name
        return (5e-3,) if smaller else self.learning_rates


def config_for(
    preset: str,
    protocol: str,
    seed: int = 0,
    device: str = "cpu",
    *,
    table: ProteinGraph,
    study: str = "proteins-focus",
) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU) or ``"paper"`` (a GPU)."""
    expect_choices(preset, protocol, ("clean", "published", "original"))
    config = Config(preset, protocol, study, table, STUDIES[study], seed=seed, device=device)
    if study == "proteins":
        config = replace(config, blocks=5)
    if study == "proteins-focus":
        config = replace(config, learning_rates=(1e-3, 3e-3, 1e-2))  # small networks take larger ones
    if study == "proteins" and protocol == "published":
        config = replace(config, learning_rates=(1e-2,), epochs=1_000, every=5, seeds=(0,))
    elif protocol == "published":
        rate = 1e-4 if study == "noisy-proteins" else 1e-3
        epochs = 1_000 if study == "noisy-proteins" else 1_200
        config = replace(config, parts=40, blocks=5, learning_rates=(rate,), epochs=epochs, patience=250, every=5)
        config = replace(config, seeds=(0,))
    if protocol == "original":
        config = replace(config, blocks=5, learning_rates=(1e-3,), epochs=1_000, every=5)
    if preset == "paper":
        return config
    few: dict[str, Any] = {"seeds": (0,), "learning_rates": config.learning_rates[:1]}
    if preset == "quick":
        few |= {"epochs": 20, "parts": min(4, config.parts)}
        return replace(config, changes=(("num_layers", 3),), **few)
    few |= {"epochs": 4, "every": 2, "parts": min(2, config.parts), "blocks": min(2, config.blocks)}
    return replace(config, changes=(("num_layers", 2), ("hidden", 8)), **few)


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> StudyResult:
    """Tunes, trains and tests every network.

    Args:
        config: What to do.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        progress: Whether to print a line on stderr for every run; by default when that is a terminal.
    """
    study = study_of(config, checkpoints, progress)
    found = {name: runs_of(config, study, name) for name in config.networks}
    metrics: dict[str, Metric] = {}
    for name, runs in found.items():
        metrics |= runs.metrics(name)
        score = metrics["rocauc/" + name]
        if config.as_the_code:
            metrics["at_best/" + name], score = score, metrics["last_evaluations/" + name]
        known = config.table.name == "ogbn_proteins" and name in PAPER
        metrics["rocauc/" + name] = replace(score, paper=PAPER[name] if known else None)
    if config.protocol != "published":
        for ours, theirs in COMPARED.items():
            if {ours, theirs} <= set(found):
                pair = found[ours], found[theirs]
                metrics[f"difference/{ours}-{theirs}"] = paired_difference(*pair)
                metrics[f"difference_valid/{ours}-{theirs}"] = paired_difference(*pair, part="valid")
                in_parts = f"{AT_END}{config.parts}-blocks"
                if in_parts in found[ours].measures:
                    metrics[f"difference_in_parts/{ours}-{theirs}"] = paired_difference(*pair, part=in_parts)
    elif set(config.models) == set(STUDIES["noisy-proteins"]):
        for what, suffix in {"published": "", "mended": MENDED}.items():
            for measure, gap in {"rocauc": f"gap/{what}", "at_best": f"gap_at_best/{what}"}.items():
                one, other = (metrics[f"{measure}/{name}{suffix}"] for name in STUDIES["noisy-proteins"])
                metrics[gap] = Metric(one.value - other.value, 0.0)  # of one seed: no error is known
    return StudyResult(config, metrics, study.parts.seconds, found)


def study_of(config: Config, checkpoints: Path | None, progress: bool | None = None) -> GraphStudy:
    """The study of a config; its runs depend on everything but the choice of runs."""
    choice = ("models", "learning_rates", "epochs", "patience", "seeds")
    return GraphStudy.of(config, checkpoints, choice, progress)


def runs_of(config: Config, study: GraphStudy, name: str) -> Runs:
    """The runs of one network."""
    from fishnets.graphs.selection import Recipe

    graph = config.table.data
    careful = config.protocol == "clean"
    warm_up = config.epochs // 50 if careful else 0
    clip = 1.0 if careful else None
    recipe = Recipe(config.epochs, 1.0, config.patience, config.every, warm_up, careful, clip)
    make = partial(_make_model, config, name, graph)
    task = partial(task_of, config, name)
    return study.runs(name, make, task, recipe, config.rates(name), config.seeds)


def _make_model(config: Config, name: str, graph: Any) -> Any:
    from fishnets.graphs import PAPER_MODELS, paper_model

    name = name.removesuffix(MENDED)
    changes: dict[str, Any] = dict(config.changes) | {"num_outputs": graph.y.shape[1]}
    if config.protocol == "published" and "fishnets" in name:  # the triangle as the authors' code fills it
        made = PAPER_MODELS[name].settings["aggregation"]
        changes["aggregation"] = partial(made.func, **made.keywords | {"form": "legacy"})
    return paper_model(name, **changes)


def task_of(config: Config, name: str, seed: int = 0) -> Any:
    """What a network is trained for under the protocol, with random parts of its own for each seed."""
    from fishnets.graphs.datasets import sum_of_edges

    data = config.table.data.clone()
    if config.study == "proteins":
        if "node_species" not in data:
            raise DataError(
                f"`{config.table.name}` says nothing about species, which the networks of Table 1 read: a file "
                "raw/node_species.csv.gz, as ogbn-proteins has it, was expected. The experiments proteins-focus and "
                "yeast need none."
            )
        data.species = torch.unique(data.node_species, return_inverse=True)[1].flatten()
    if config.protocol != "clean":
        data.x = sum_of_edges(data)
    graph = replace(config.table, data=data)
    published, noisy = config.as_the_code, config.study == "noisy-proteins"
    twice = published and name in LARGE and config.blocks > 1
    options: dict[str, Any] = {"parts": config.parts, "test_parts": 2 * config.blocks if twice else config.blocks}
    options["random_test_parts"] = not published
    if published:
        options["kind"] = _published_task(noisy and not name.endswith(MENDED))
    elif config.protocol == "clean" and config.study != "proteins":
        options["kind"] = _swept_task()
    if noisy and (not published or name.endswith(MENDED)):
        return graph.noisy_task(config.seed, seed, config.device, log=config.protocol == "clean", **options)
    graph = graph if published else graph.by_target()  # published noise knows halves of the list of edges
    return graph.clean_task(config.seed, seed, config.device, **options)


def _swept_task() -> Any:
    """A task whose best weights are tested on several numbers of blocks in the end."""
    from fishnets.graphs.tasks import NodeTask

    class Swept(NodeTask):
        def at_end(self, model: Any) -> dict[str, float]:
            """Test scores as they depend on the number of blocks."""
            found, usual = {}, self.test_parts
            for blocks in SWEEP:
                self.test_parts = blocks
                found[f"{blocks}-blocks"] = self.evaluate(model)["test"]
            self.test_parts = usual
            return found

    return Swept


def _published_task(anew: bool) -> Any:
    """Training and tests as the authors' code does them, with edges that are measured anew or not."""
    from fishnets.graphs.noise import EdgeNoise

    class Published(_swept_task()):  # type: ignore[misc]
        law: Any = "train"

        def losses(self, model: Any, epoch: int) -> Iterator[Tensor]:
            if epoch > 0:
                model.eval()  # the code never goes back to training mode: dropout is active in the first epoch alone
            self.law = "train"
            yield from super().losses(model, epoch)

        def evaluate(self, model: Any) -> dict[str, float]:
            self.law = "test"
            found: dict[str, float] = super().evaluate(model)
            return found

        def predict(self, model: Any, graph: Any) -> Tensor:
            if anew:  # in every part, whose nodes sum what is in it
                seeds = torch.Generator(graph.edge_index.device).manual_seed(int(torch.randint(2**31, ())))
                graph = EdgeNoise(graph, published=True).draw(self.law, seeds)
            logits: Tensor = super().predict(model, graph)
            return logits

    return Published
