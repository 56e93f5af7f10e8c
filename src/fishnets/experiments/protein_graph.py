"""A graph of proteins in OGB's layout, as experiments read it."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fishnets.arrays import fingerprint
from fishnets.errors import ConfigError, DataError
from fishnets.experiments.graph_study import NamedGraph, naming

if TYPE_CHECKING:
    from fishnets.graphs.noise import Laws

__all__ = ["ProteinGraph", "read_graph"]


@dataclass(frozen=True, eq=False)
class ProteinGraph(NamedGraph):
    """A graph of proteins in OGB's layout, and what networks are trained for on it."""

    def by_target(self) -> ProteinGraph:
        """The same with edges in the order of their targets, in which aggregations read them fastest."""
        return replace(self, data=self.data.sort(sort_by_row=False))

    def realisations(self, seed: int, laws: Laws | None = None) -> dict[str, Any]:
        """Noisy versions of the graph for validation and test nodes: a realisation each, that stays.

        Validation nodes are under the law of training, test nodes under that of tests, the paper's or others; see
        :mod:`fishnets.graphs.noise`. Nodes start from the sum of their edges.
        """
        from fishnets.graphs.noise import LAWS, EdgeNoise

        noise = EdgeNoise(self.by_target().data, laws=LAWS if laws is None else laws)
        return {
            part: noise.draw(law, torch.Generator().manual_seed(1_000 * seed + stream))
            for stream, (part, law) in enumerate({"valid": "train", "test": "test"}.items(), start=2)
        }

    def clean_task(self, seed: int, run: int, device: str, kind: Any = None, **options: Any) -> Any:
        """What a network is trained for on edges as they are, in the order in which they are stored.

        Args:
            seed: Seed of the study.
            run: Seed of the run.
            device: Where the graph goes.
            kind: Class of the task; ``NodeTask`` by default.
            options: Further arguments of it.
        """
        from fishnets.graphs.tasks import NodeTask

        return (kind or NodeTask)(copy(self.data).to(device), seed=1_000 * seed + run, **options)

    def noisy_task(
        self,
        seed: int,
        run: int,
        device: str,
        log: bool = True,
        kind: Any = None,
        laws: Laws | None = None,
        **options: Any,
    ) -> Any:
        """What a network is trained for on noisy edges: training nodes see others in each epoch of a run.

        The realisations of validation and test nodes belong to the study. Nodes start from the sum of their edges or
        its logarithm; laws as in :meth:`realisations`, further arguments as in :meth:`clean_task`.
        """
        from fishnets.graphs.noise import LAWS, EdgeNoise
        from fishnets.graphs.tasks import NodeTask

        here = self.by_target().data.to(device)
        noise, kept = EdgeNoise(here, laws=LAWS if laws is None else laws), {}
        for part, drawn in self.realisations(seed, laws).items():  # on the CPU: the same for every device
            kept[part] = copy(here)
            kept[part].edge_attr, kept[part].x = drawn.edge_attr.to(device), _start(drawn, log).to(device)

        def draw(epoch: int) -> Any:
            generator = torch.Generator(device).manual_seed(1_000_003 * (1_000 * seed + run + 1) + epoch)
            noisy = noise.draw("train", generator)
            noisy.x = _start(noisy, log)
            return noisy

        return (kind or NodeTask)(kept, seed=1_000 * seed + run, draw=draw, **options)


def _start(noisy: Any, log: bool) -> Any:
    return noisy.x.log1p() if log else noisy.x


def read_graph(folder: Path | None) -> ProteinGraph:
    """Reads a folder in OGB's layout, and says where one comes from where it is missing.

    Node features are the logarithm of the sum of the edges' features.
    """
    if folder is None or not Path(folder).is_dir():
        given = "no folder was given" if folder is None else f"there is no folder {folder}"
        raise ConfigError(
            "This experiment needs a graph in the layout of ogbn-proteins, whose edges have scores between 0 and 1, "
            f"but {given}. ogbn-proteins is at https://ogb.stanford.edu "
            "(http://snap.stanford.edu/ogb/data/nodeproppred/proteins.zip, 0.2 GB): unpack it to a folder named "
            "ogbn_proteins and give `--data ogbn_proteins`, or give another folder in this layout, such as "
            "string_yeast, which results/README.md describes."
        )
    from fishnets.graphs.datasets import read_node_dataset, sum_of_edges
    from fishnets.graphs.tasks import NodeTask

    data = read_node_dataset(folder)
    scores = data.edge_attr
    if scores is None or not bool(((scores >= 0) & (scores <= 1)).all()):
        given = "none" if scores is None else f"some from {scores.min():g} to {scores.max():g}"
        raise DataError(f"Edges in {folder} were expected to have scores between 0 and 1, but have {given}.")
    data.x = torch.log1p(sum_of_edges(data))
    with naming(folder):
        NodeTask(data)  # looks at labels and split
    tensors = {name: value for name, value in data.to_dict().items() if isinstance(value, torch.Tensor)}
    return ProteinGraph(Path(folder).name, fingerprint(**tensors), data)
