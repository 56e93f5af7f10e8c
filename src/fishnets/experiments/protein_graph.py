"""A graph of proteins in OGB's layout, as experiments read it."""

from __future__ import annotations

from collections.abc import Callable
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

    def realisations(self, seed: int, log: bool = True) -> dict[str, Any]:
        """Noisy versions of the graph for training, validation and test nodes: a realisation each, that stays.

        Validation nodes are under the law of training, test nodes under that of tests; see
        :mod:`fishnets.graphs.noise`. Nodes start from the sum of their edges, or from its logarithm.
        """
        from fishnets.graphs.noise import EdgeNoise

        noise, graphs = EdgeNoise(self.by_target()), {}
        for stream, part in enumerate(PARTS, start=1):
            generator = torch.Generator().manual_seed(1_000 * seed + stream)
            graphs[part] = _started(noise.draw("test" if part == "test" else "train", generator), log)
        return graphs

    def redrawn(self, seed: int, device: str, log: bool = True) -> Callable[[int], Any]:
        """Makes noisy versions of the graph for training nodes: another in each epoch, as simulations allow."""
        from fishnets.graphs.noise import EdgeNoise

        noise = EdgeNoise(self.by_target().to(device))

        def draw(epoch: int) -> Any:
            generator = torch.Generator(device).manual_seed(1_000_003 * (seed + 1) + epoch)
            return _started(noise.draw("train", generator), log)

        return draw

    def clean_task(self, seed: int, run: int, device: str, kind: Any = None, **options: Any) -> Any:
        """What a network is trained for on edges as they are.

        Args:
            seed: Seed of the study.
            run: Seed of the run.
            device: Where the graph goes.
            kind: Class of the task; ``NodeTask`` by default.
            options: Further arguments of it.
        """
        from fishnets.graphs.tasks import NodeTask

        return (kind or NodeTask)(self.by_target().to(device), seed=1_000 * seed + run, **options)

    def noisy_task(self, seed: int, run: int, device: str, log: bool = True, **options: Any) -> Any:
        """What a network is trained for on noisy edges: training nodes see others in each epoch of a run.

        The realisations that stay belong to the study; arguments as in :meth:`clean_task`.
        """
        task = self.clean_task(seed, run, device, **options)
        task.graphs = {part: graph.to(device) for part, graph in self.realisations(seed, log).items()}
        task.draw = self.redrawn(1_000 * seed + run, device, log)
        return task


def _started(graph: Any, log: bool) -> Any:
    graph.x = graph.x.log1p() if log else graph.x
    return graph


def read_graph(folder: Path | None) -> ProteinGraph:
    """Reads a folder in OGB's layout; node features are the logarithm of the sum of the edges' features."""
    if folder is None:
        raise ConfigError("This experiment needs a graph: give `--data FOLDER`, a folder in OGB's layout.")
    from fishnets.graphs.datasets import read_node_dataset, sum_of_edges

    data = read_node_dataset(folder)
    data.x = torch.log1p(sum_of_edges(data))
    tensors = {name: value for name, value in data.to_dict().items() if isinstance(value, torch.Tensor)}
    return ProteinGraph(Path(folder).name, fingerprint(**tensors), data)
