"""A graph of proteins in OGB's layout, as experiments read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fishnets.errors import ConfigError
from fishnets.experiments.graph_study import fingerprint

__all__ = ["PARTS", "ProteinGraph", "read_graph"]

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class ProteinGraph:
    """A graph in OGB's layout, with its name and a hash of all that is in it."""

    name: str
    sha256: str
    data: Any

    def to_dict(self) -> dict[str, Any]:
        """What identifies the graph, in plain JSON values."""
        return {"name": self.name, "sha256": self.sha256, "num_nodes": int(self.data.num_nodes)}

    def by_target(self) -> Any:
        """The graph with its edges in the order of their targets, in which aggregations read them fastest."""
        return self.data.sort(sort_by_row=False)

    def realisations(self, seed: int) -> dict[str, Any]:
        """Noisy versions of the graph for training, validation and test nodes: a realisation each, that stays.

        Validation nodes are under the law of training, test nodes under that of tests; see
        :mod:`fishnets.graphs.noise`. Nodes start from the logarithm of the sum of their edges.
        """
        from fishnets.graphs.noise import EdgeNoise

        noise, graphs = EdgeNoise(self.data), {}
        for stream, part in enumerate(PARTS, start=1):
            generator = torch.Generator().manual_seed(1_000 * seed + stream)
            noisy = noise.draw("test" if part == "test" else "train", generator)
            noisy.x = noisy.x.log1p()
            graphs[part] = noisy.sort(sort_by_row=False)
        return graphs


def read_graph(folder: Path | None) -> ProteinGraph:
    """Reads a folder in OGB's layout; node features are the logarithm of the sum of the edges' features."""
    if folder is None:
        raise ConfigError("This experiment needs a graph: give `--data FOLDER`, a folder in OGB's layout.")
    from fishnets.graphs.datasets import read_node_dataset, sum_of_edges

    data = read_node_dataset(folder)
    data.x = torch.log1p(sum_of_edges(data))
    tensors = {name: value for name, value in data.to_dict().items() if isinstance(value, torch.Tensor)}
    return ProteinGraph(Path(folder).name, fingerprint(**tensors), data)
