"""Molhiv: which molecules inhibit HIV, from their atoms and bonds (ogbg-molhiv, the paper's Table 1).

DeeperGCN's network of 7 layers with a softmax, whose temperature is learned, and a network of 3 layers with Fishnets,
in the paper's form where the protocol is not *clean*. Both are 256 wide, look categories of atoms and of bonds up in
tables of their own, and average the nodes of a molecule. Molecules are split by their scaffolds.

Protocols:

* *clean*: batches of 512 molecules, the same learning rates for every network, tried on validation molecules in 20
  epochs with the first seed; training ends when these have not improved for 30 epochs. Scored by test molecules where
  validation molecules are best, over seeds.
* *published*: as the paper says: batches of 32, a dropout of 0.5, 150 epochs, Adam at 0.0001 for the softmax and at
  0.00002 for Fishnets; one seed. Training also ends when validation molecules have not improved for 40 epochs.
* *original*: DeeperGCN's own recipe: batches of 32, a dropout of 0.2, 300 epochs, Adam at 0.0001; the same end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fishnets.arrays import fingerprint
from fishnets.errors import ConfigError, DataError
from fishnets.experiments.candidates import expect_choices
from fishnets.experiments.graph_study import GraphStudy, Runs, StudyConfig, StudyResult, naming, paired_difference
from fishnets.experiments.records import Metric

__all__ = ["ATOMS", "BONDS", "MODELS", "Config", "Molecules", "config_for", "read_molecules", "run"]

ATOMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)  # values of OGB's categories of an atom, from its number to whether in a ring
BONDS = (5, 6, 2)
MODELS = ("fishnets-3", "gcn-7")
PAPER = {"fishnets-3": 0.80, "gcn-7": 0.76}


@dataclass(frozen=True, eq=False)
class Molecules:
    """Molecules in OGB's layout, with the folder's name and a hash of all that is in it."""

    name: str
    sha256: str
    graphs: Any

    def to_dict(self) -> dict[str, Any]:
        """What identifies the molecules, in plain JSON values."""
        return {"name": self.name, "sha256": self.sha256, "num_graphs": len(self.graphs)}


@dataclass(frozen=True)
class Config(StudyConfig):
    """What to train on which molecules."""

    preset: str
    protocol: str
    table: Molecules
    models: tuple[str, ...] = MODELS
    hidden: int = 256
    num_params: int = 8
    layers: int | None = None
    dropout: float = 0.2
    learning_rates: tuple[float, ...] = (3e-4, 1e-3)
    tuning_epochs: int = 20
    epochs: int = 100
    patience: int | None = 30
    batch_size: int = 512
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    seed: int = 0
    device: str = "cpu"

    def rates(self, model: str) -> tuple[float, ...]:
        """Learning rates to try; as published, Fishnets have a smaller one."""
        return (2e-5,) if self.protocol == "published" and model == "fishnets-3" else self.learning_rates


def read_molecules(folder: Path | None) -> Molecules:
    """Reads ogbg-molhiv, or molecules in its layout, and says where that comes from where it is missing."""
    if folder is None or not Path(folder).is_dir():
        given = "no folder was given" if folder is None else f"there is no folder {folder}"
        raise ConfigError(
            f"This experiment needs ogbg-molhiv, but {given}. It is at https://ogb.stanford.edu "
            "(http://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/hiv.zip, 3 MB): unpack it to a folder "
            "named ogbg_molhiv and give `--data ogbg_molhiv`."
        )
    from fishnets.graphs.graph_datasets import read_graph_dataset
    from fishnets.graphs.tasks import GraphTask

    graphs = read_graph_dataset(folder)
    for what, values, sizes in (("atoms", graphs.x, ATOMS), ("bonds", graphs.edge_attr, BONDS)):
        _expect_categories(folder, what, values, sizes)
    with naming(folder):
        GraphTask(graphs, batch_size=1)  # looks at labels and split
    tensors = {name: getattr(graphs, name) for name in ("x", "edge_index", "edge_attr", "y", "node_ptr", "edge_ptr")}
    return Molecules(Path(folder).name, fingerprint(**tensors, **graphs.parts), graphs)


def _expect_categories(folder: Path, what: str, values: Any, sizes: tuple[int, ...]) -> None:
    """Raises unless features are categories of OGB's."""
    if values is None or values.shape[1] != len(sizes):
        given = "none" if values is None else f"{values.shape[1]} columns"
        raise DataError(f"{folder} has {given} of features of {what} but {len(sizes)} were expected, as OGB has them.")
    if values.is_floating_point():
        broken = values[values != values.round()]
        raise DataError(f"{folder} has features of {what} such as {broken[0]:g} but whole numbers were expected.")
    for column, size in enumerate(sizes):
        low, high = int(values[:, column].min()), int(values[:, column].max())
        if low < 0 or high >= size:
            raise DataError(
                f"Column {column} of the {what} in {folder} runs from {low} to {high} but 0 to {size - 1} was expected."
            )


def config_for(preset: str, protocol: str, seed: int = 0, device: str = "cpu", *, table: Molecules) -> Config:
    """The config of a preset: ``"smoke"`` (seconds), ``"quick"`` (a CPU, an hour) or ``"paper"`` (a GPU)."""
    expect_choices(preset, protocol, ("clean", "published", "original"))
    config = Config(preset, protocol, table, seed=seed, device=device)
    if protocol != "clean":
        alone: dict[str, Any] = {"batch_size": 32, "learning_rates": (1e-4,), "patience": 40, "seeds": (0,)}
        alone |= {"dropout": 0.5, "epochs": 150} if protocol == "published" else {"dropout": 0.2, "epochs": 300}
        config = replace(config, **alone)
    if preset == "paper":
        return config
    few: dict[str, Any] = {"seeds": (0,), "learning_rates": config.learning_rates[-1:]}
    if preset == "quick":
        return replace(config, hidden=64, layers=3, epochs=5, batch_size=512, **few)
    return replace(config, hidden=8, layers=2, num_params=2, epochs=2, batch_size=512, **few)


def run(config: Config, checkpoints: Path | None = None, progress: bool | None = None) -> StudyResult:
    """Tunes, trains and tests every network.

    Args:
        config: What to do.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        progress: Whether to print a line on stderr for every run; by default when that is a terminal.
    """
    study = study_of(config, checkpoints, progress)
    found = {name: runs_of(config, study, name) for name in config.models}
    metrics: dict[str, Metric] = {}
    for name, runs in found.items():
        metrics |= runs.metrics(name)
        paper = PAPER[name] if config.table.name == "ogbg_molhiv" else None
        metrics[f"rocauc/{name}"] = replace(metrics[f"rocauc/{name}"], paper=paper)
    if set(MODELS) <= set(found):
        metrics["difference/fishnets-3-gcn-7"] = paired_difference(found["fishnets-3"], found["gcn-7"])
    return StudyResult(config, metrics, study.parts.seconds, found)


def study_of(config: Config, checkpoints: Path | None, progress: bool | None = None) -> GraphStudy:
    """The study of a config; its runs depend on everything but the choice of runs."""
    choice = ("models", "learning_rates", "tuning_epochs", "epochs", "seeds", "patience")
    return GraphStudy.of(config, checkpoints, choice, progress)


def runs_of(config: Config, study: GraphStudy, name: str) -> Runs:
    """The runs of one network."""
    from fishnets.graphs.selection import Recipe
    from fishnets.graphs.tasks import GraphTask

    def task(seed: int) -> GraphTask:  # with batches of its own
        graphs = config.table.graphs.to(config.device)
        return GraphTask(graphs, config.batch_size, seed=1_000 * config.seed + seed)

    recipe = Recipe(config.epochs, 1.0, config.patience, clip=1.0 if config.protocol == "clean" else None)
    budget: dict[str, Any] = {"rates": config.rates(name), "seeds": config.seeds}
    budget["tuning_recipe"] = replace(recipe, epochs=min(config.epochs, config.tuning_epochs))
    return study.runs(name, partial(make_model, config, name), task, recipe, **budget)


def make_model(config: Config, name: str) -> Any:
    """A network by name."""
    from fishnets.graphs import DeeperGCN, FishnetsAggregation

    form: Any = "regression" if config.protocol == "clean" else "paper"
    fishnets = partial(FishnetsAggregation, num_params=config.num_params, form=form)
    return DeeperGCN(
        ATOMS,
        BONDS,
        config.table.graphs.y.shape[1],
        hidden=config.hidden,
        num_layers=config.layers or (3 if name == "fishnets-3" else 7),
        aggregation=fishnets if name == "fishnets-3" else "softmax",
        norm="batch",
        dropout=config.dropout,
        mlp_layers=1,
        bias=True,
        encode_edges="each layer",
        pool="mean",
        last_activation=False,
    )
