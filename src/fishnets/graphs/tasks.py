"""Tasks: what a network is trained for and scored by, on labelled nodes of one graph or on many small graphs.

A task gives :func:`fishnets.graphs.selection.fit` the losses of an epoch and the scores of an evaluation. Everything
stays on the device the data are on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fishnets.arrays import fingerprint
from fishnets.errors import ConfigError, DataError, expect_positive
from fishnets.graphs.labelled import (
    LABELS,
    PARTS,
    expect_apart,
    expect_finite_features,
    expect_graph,
    expect_same_labels,
)
from fishnets.graphs.labels import Score, expect_outputs, label_loss, label_score, num_outputs, tasks_scored
from fishnets.ops.memory import remembered

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fishnets.graphs.graph_set import GraphSet

__all__ = ["GraphTask", "NodeTask", "StillLoss", "random_parts"]

FEATURES = ("x", "edge_index", "edge_attr", "species")


def random_parts(num_nodes: int, num_parts: int, generator: torch.Generator) -> list[Tensor]:
    """Nodes in random order, cut into parts of about the same size.

    Example:
        >>> [len(part) for part in random_parts(5, 2, torch.Generator().manual_seed(0))]
        [3, 2]
    """
    return list(torch.randperm(num_nodes, generator=generator).tensor_split(num_parts))


class NodeTask:
    """Labels of the nodes of one graph, by the whole of it or by random parts.

    Args:
        graphs: A graph with ``x`` (N, f), ``edge_index`` (2, E), ``edge_attr`` or None, ``y`` (N, tasks), masks of
            training, validation and test nodes and, for networks that read it, ``species`` (N,); or one for each of
            ``"train"``, ``"valid"`` and ``"test"``, the same nodes with other features; none to train on with ``draw``.
        score: ``"rocauc"`` for labels of 0 and 1, ``"accuracy"`` for classes.
        parts: Number of random parts, drawn anew in each epoch, on which updates are made one after the other; edges
            between parts are left out. 1 for the whole graph.
        test_parts: Number of parts on which scores are predicted. 1 for the whole graph.
        random_test_parts: Whether these are drawn, once, and not of consecutive nodes.
        seed: Seed of the random parts.
        draw: Makes the graph of training nodes for an epoch, counted from 0, where it is not the same in all.

    Example:
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.arange(6.0).unsqueeze(1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> graph.y = torch.tensor([[0], [1], [0], [1], [1], [0]])
        >>> part = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> graph.train_mask, graph.valid_mask, graph.test_mask = (part == i for i in range(3))
        >>> NodeTask(graph).evaluate(lambda x, edge_index, edge_attr: x)
        {'valid': 1.0, 'test': 0.0}
    """

    def __init__(
        self,
        graphs: Data | Mapping[str, Data],
        score: Score = "rocauc",
        parts: int = 1,
        test_parts: int = 1,
        random_test_parts: bool = False,
        seed: int = 0,
        draw: Callable[[int], Data] | None = None,
    ) -> None:
        expect_positive(parts=parts, test_parts=test_parts)
        self.graphs: Mapping[str, Data] = (
            graphs if isinstance(graphs, Mapping) else dict.fromkeys(("train", "valid", "test"), graphs)
        )
        missing = {"train", "valid", "test"} - set(self.graphs) - ({"train"} if draw else set())
        if missing:
            raise ConfigError(f"`graphs` has none for {sorted(missing)}; train, valid and test were expected.")
        self.labelled = self.graphs["valid"]
        for part, graph in self.graphs.items():
            expect_graph(f"`graphs[{part!r}]`" if isinstance(graphs, Mapping) else "The graph", graph)
        for part, graph in self.graphs.items():
            expect_same_labels(f"`graphs[{part!r}]`", graph, self.labelled)
        self.outputs = num_outputs({part: self.labelled.y[self.labelled[f"{part}_mask"]] for part in PARTS}, score)
        self.score, self.parts, self.test_parts, self.seed, self.draw = score, parts, test_parts, seed, draw
        self.random_test_parts, self.drawn = random_test_parts, False
        self.tasks_scored()

    def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
        """Losses of the training nodes, one for each part that has some."""
        graph = self.training_graph(epoch)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        if self.parts == 1:
            yield self.whole_loss(model, graph)
            return
        for part in self._cut(graph, random_parts(graph.num_nodes, self.parts, generator)):
            mask = part.train_mask
            if bool(mask.any()):
                yield label_loss(self.predict(model, part)[mask], part.y[mask], self.score)

    def training_graph(self, epoch: int) -> Data:
        """The graph of training nodes in an epoch."""
        if self.draw is None:
            return self.graphs["train"]
        drawn = self.draw(epoch)
        if not self.drawn:  # later ones are as the first
            expect_graph("What `draw` gave", drawn)
            self.drawn = True
        expect_same_labels("What `draw` gave", drawn, self.labelled)
        return drawn

    def whole_loss(self, model: Any, graph: Data) -> Tensor:
        """Loss of the training nodes by the whole graph; the host waits for nothing but their first count."""
        mask = graph.train_mask
        nodes: Tensor = remembered(mask, "nodes", lambda: mask.nonzero().flatten())
        return label_loss(self.predict(model, graph).index_select(0, nodes), graph.y.index_select(0, nodes), self.score)

    def still(self) -> StillLoss | None:
        """The loss of an update from tensors that stay where they are; None where parts of the graph are drawn."""
        return StillLoss(self) if self.parts == 1 else None

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Scores of validation and test nodes."""
        valid, test = self.graphs["valid"], self.graphs["test"]
        of_valid = self._whole(model, valid)
        of_test = of_valid if test is valid else self._whole(model, test)
        return {
            part: label_score(logits[graph[f"{part}_mask"]], graph.y[graph[f"{part}_mask"]], self.score)
            for part, graph, logits in (("valid", valid, of_valid), ("test", test, of_test))
        }

    def tasks_scored(self) -> dict[str, int]:
        """Number of tasks with positives and negatives among the nodes of each part; scores do not count others."""
        labels = {part: self.labelled.y[self.labelled[f"{part}_mask"]] for part in PARTS}
        return tasks_scored(labels, self.score)

    def identity(self) -> str:
        """A hash of what tells this task from others: its graphs with labels and split, parts, score and seed."""
        used = [self.graphs.get(part) for part in PARTS]  # none to train on where it is drawn
        distinct = list({id(graph): graph for graph in used if graph is not None}.values())
        held = {f"{i}/{name}": graph.get(name) for i, graph in enumerate(distinct) for name in (*FEATURES, *LABELS)}
        place = {id(graph): i for i, graph in enumerate(distinct)}
        settings = [self.parts, self.test_parts, self.random_test_parts, self.seed, self.draw is not None]
        numbers = torch.tensor([*settings, *(place.get(id(graph), -1) for graph in used)])
        return f"{self.score}, {fingerprint(numbers=numbers, **held)}"

    def predict(self, model: Any, graph: Data) -> Tensor:
        """Logits (N, tasks) of the nodes of a graph, or of a part of one."""
        more = {"species": graph.species} if "species" in graph else {}
        logits: Tensor = model(graph.x, graph.edge_index, graph.edge_attr, **more)
        expect_outputs(logits, graph.num_nodes, self.outputs, self.score)
        return logits

    def _whole(self, model: Any, graph: Data) -> Tensor:
        """Logits of all nodes, part by part."""
        if self.test_parts == 1:
            return self.predict(model, graph)
        nodes = torch.arange(graph.num_nodes)
        if self.random_test_parts:
            nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(self.seed))
        blocks = [block.sort().values for block in nodes.tensor_split(self.test_parts)]
        logits = torch.cat([self.predict(model, part) for part in self._cut(graph, blocks)])
        return logits[torch.cat(blocks).argsort().to(logits.device)]

    def _cut(self, graph: Data, parts: Sequence[Tensor]) -> Iterator[Data]:
        """The graphs of some nodes each, in the order of the nodes; edges are looked through once for all of them."""
        parts = [nodes.to(graph.edge_index.device).sort().values for nodes in parts]
        part, place = (graph.edge_index.new_full((graph.num_nodes,), -1) for _ in range(2))
        for number, nodes in enumerate(parts):
            part[nodes] = number
            place[nodes] = torch.arange(len(nodes), device=nodes.device)
        source, target = part[graph.edge_index]
        kept = ((source == target) & (source >= 0)).nonzero().flatten()
        kept = kept[source[kept].argsort(stable=True)]
        counts = source[kept].bincount(minlength=len(parts)).tolist()
        for nodes, edges in zip(parts, kept.split(counts), strict=True):
            cut = copy(graph)
            cut.edge_index = place[graph.edge_index.index_select(1, edges)]
            for name in graph.edge_attrs():
                if name != "edge_index":
                    cut[name] = graph[name].index_select(graph.__cat_dim__(name, graph[name]), edges)
            for name in graph.node_attrs():
                cut[name] = graph[name].index_select(graph.__cat_dim__(name, graph[name]), nodes)
            cut.num_nodes = len(nodes)
            yield cut


class StillLoss:
    """The loss of an update on a whole graph, whose tensors stay where they are: what a CUDA graph can replay.

    It is that of :meth:`NodeTask.whole_loss`; ``losses`` is not asked.

    Args:
        task: Labels of nodes; where it draws a graph for every epoch, these differ in ``x`` and ``edge_attr`` alone,
            and share all other tensors.
    """

    def __init__(self, task: NodeTask) -> None:
        self.task, self.graph = task, None if task.draw else task.graphs["train"]
        self.first: Data | None = None

    def refresh(self, epoch: int) -> None:
        """Writes what an epoch draws."""
        if self.task.draw is None:
            return
        drawn = self.task.training_graph(epoch)
        changing = [name for name in ("x", "edge_attr") if drawn.get(name) is not None]
        if self.graph is None or self.first is None:
            self.graph, self.first = copy(drawn), drawn
            for name in changing:
                self.graph[name] = drawn[name].clone()
            return
        for name in ("edge_index", "y", "train_mask", "species"):
            if drawn.get(name) is not self.first.get(name):
                raise ConfigError(
                    f"`draw` gave a graph whose `{name}` is its own, but updates that are replayed have the same in "
                    "all epochs: give copies of one graph, which share it, or train without `replay`."
                )
        for name in changing:
            self.graph[name].copy_(drawn[name])

    def __call__(self, model: Any) -> Tensor:
        """The loss, of the epoch that was written last."""
        return self.task.whole_loss(model, self.graph)


class GraphTask:
    """Labels of many small graphs, by batches of them.

    Args:
        graphs: The graphs with their labels and their split.
        batch_size: Graphs of an update.
        score: ``"rocauc"`` or ``"accuracy"``.
        seed: Seed of the order of graphs, which changes from epoch to epoch.
        test_batch_size: Graphs of a pass without gradients.
    """

    def __init__(
        self, graphs: GraphSet, batch_size: int, score: Score = "rocauc", seed: int = 0, test_batch_size: int = 4_096
    ) -> None:
        expect_positive(batch_size=batch_size, test_batch_size=test_batch_size)
        if not hasattr(graphs, "minibatches"):
            raise ConfigError(
                f"`graphs` is a {type(graphs).__name__} but a GraphSet was expected: `GraphSet.from_data_list(list, "
                "parts)` makes one."
            )
        for part in PARTS:
            if not len(graphs.parts.get(part, ())):
                raise DataError(f"No graph is in the part {part!r} of the split, which has {sorted(graphs.parts)}.")
        expect_apart(torch.cat([graphs.parts[part].unique() for part in PARTS]).bincount(), "graphs")
        expect_finite_features(graphs)
        self.graphs, self.batch_size, self.test_batch_size = graphs, batch_size, test_batch_size
        self.score, self.seed = score, seed
        self.outputs = num_outputs({part: self._labels(part) for part in PARTS}, score)
        self.tasks_scored()

    def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
        """Losses of batches of training graphs."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        for batch in self.graphs.minibatches("train", self.batch_size, generator):
            yield label_loss(self._predict(model, batch), batch.y, self.score)

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Scores of validation and test graphs."""
        found = {}
        for part in ("valid", "test"):
            some = self.graphs.minibatches(part, self.test_batch_size)
            batches = [(self._predict(model, batch), batch.y) for batch in some]
            logits, label = (torch.cat(several) for several in zip(*batches, strict=True))
            found[part] = label_score(logits, label, self.score)
        return found

    def tasks_scored(self) -> dict[str, int]:
        """Number of tasks with positives and negatives among the graphs of each part; scores do not count others."""
        return tasks_scored({part: self._labels(part) for part in PARTS}, self.score)

    def identity(self) -> str:
        """A hash of what tells this task from others: its graphs with labels and split, batches, score and seed."""
        names = ("x", "edge_index", "edge_attr", "y", "node_ptr", "edge_ptr")
        held = {name: getattr(self.graphs, name) for name in names}
        held |= {f"parts/{part}": graphs for part, graphs in self.graphs.parts.items()}
        return f"{self.score}, {fingerprint(numbers=torch.tensor([self.batch_size, self.seed]), **held)}"

    def _labels(self, part: str) -> Tensor:
        return self.graphs.y[self.graphs.parts[part].to(self.graphs.y.device)]

    def _predict(self, model: Any, batch: Data) -> Tensor:
        logits: Tensor = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch_size=batch.num_graphs)
        expect_outputs(logits, batch.num_graphs, self.outputs, self.score, pooled=True)
        return logits
