r"""GraphSet: many small graphs as one tensor of nodes, one of edges, and the bounds of each graph.

Nodes of graph :math:`g` are rows :math:`p_g, \dots, p_{g+1} - 1` of ``x``, with :math:`p` its ``node_ptr``, and its
edges lie between bounds of their own. An edge names its nodes within its graph, from 0, so that a batch of graphs
:math:`g_0, g_1, \dots` is a gathering of rows and one sum: edges of :math:`g_k` move by the nodes before them,

.. math:: (u, v) \mapsto (u + s_k,\, v + s_k), \qquad s_k = \sum_{j<k} \big(p_{g_j+1} - p_{g_j}\big).

Edges of a graph are in the order of their targets, and so are those of every batch: an aggregation reads its messages
in order. Bounds and parts stay on the CPU, where a batch is counted: gathering it on a GPU waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from fishnets.errors import ConfigError, DataError, ShapeError, describe_rows, expect_positive
from fishnets.rows import offsets_from_sizes

__all__ = ["GraphSet"]


@dataclass(frozen=True, eq=False, repr=False)
class GraphSet:
    """G graphs of N nodes and E directed edges together, each with labels.

    Build one with :meth:`from_sizes`, which checks the edges and puts them in order.

    Args:
        x: Features of the nodes, graph after graph, shape (N, f).
        edge_index: Source and target of each edge, int64, shape (2, E), counted within each graph, in the order of
            the targets within each graph.
        edge_attr: Features of the edges, shape (E, d), or None.
        y: Labels of the graphs, shape (G, tasks).
        node_ptr: Bounds of the graphs' nodes, int64, on the CPU, shape (G + 1,), from 0 to N.
        edge_ptr: Bounds of the graphs' edges, int64, on the CPU, shape (G + 1,), from 0 to E.
        parts: Graphs of each part of a split by its name, such as ``"train"``: int64, on the CPU, shape (graphs,).

    Example:
        >>> graphs = GraphSet.from_sizes(  # a path of three nodes, and two nodes that point at each other
        ...     x=torch.tensor([[1], [2], [3], [4], [5]]), edge_index=torch.tensor([[1, 0, 0, 1], [2, 1, 1, 0]]),
        ...     edge_attr=None, y=torch.tensor([[0], [1]]), num_nodes=torch.tensor([3, 2]),
        ...     num_edges=torch.tensor([2, 2]), parts={"train": torch.tensor([1, 0])},
        ... )
        >>> graphs
        GraphSet(num_graphs=2, num_nodes=5, num_edges=4, parts={'train': 2})
        >>> batch = next(graphs.minibatches("train", size=2))
        >>> batch.x.flatten().tolist(), batch.batch.tolist(), batch.edge_index.tolist()
        ([4, 5, 1, 2, 3], [0, 0, 1, 1, 1], [[1, 0, 2, 3], [0, 1, 3, 4]])
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    y: Tensor
    node_ptr: Tensor
    edge_ptr: Tensor
    parts: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        _expect_rows("x", self.x, "N")
        if self.edge_index.ndim != 2 or len(self.edge_index) != 2 or self.edge_index.dtype != torch.int64:
            raise ShapeError(f"`edge_index` {_found(self.edge_index)} but (2, E) and torch.int64 were expected.")
        if self.edge_attr is not None:
            _expect_rows("edge_attr", self.edge_attr, self.edge_index.shape[1])
        _expect_bounds("node_ptr", self.node_ptr, len(self.x))
        _expect_bounds("edge_ptr", self.edge_ptr, self.edge_index.shape[1])
        if len(self.node_ptr) != len(self.edge_ptr):
            raise ShapeError(
                f"`node_ptr` bounds {len(self.node_ptr) - 1} graphs and `edge_ptr` {len(self.edge_ptr) - 1}; both "
                "must bound the same ones."
            )
        _expect_rows("y", self.y, len(self))
        for name, graphs in self.parts.items():
            _expect_graphs(f"parts[{name!r}]", graphs, len(self))

    @staticmethod
    def from_sizes(
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        y: Tensor,
        num_nodes: Tensor,
        num_edges: Tensor,
        parts: Mapping[str, Tensor],
    ) -> GraphSet:
        """Takes graphs that lie one after another, with how many nodes and edges each has.

        Edges are put in the order of their targets, those of one target in the order given, with their features.

        Args:
            x: Features of the nodes, shape (N, f).
            edge_index: Source and target of each edge, int64, shape (2, E), counted within each graph.
            edge_attr: Features of the edges, shape (E, d), or None.
            y: Labels of the graphs, shape (G, tasks).
            num_nodes: Nodes of each graph, shape (G,).
            num_edges: Edges of each graph, shape (G,).
            parts: Graphs of each part of a split, by its name.

        Example:
            >>> graphs = GraphSet.from_sizes(
            ...     torch.zeros(3, 1), torch.tensor([[0, 1, 2], [1, 0, 0]]), torch.tensor([[7], [8], [9]]),
            ...     torch.zeros(1, 1), torch.tensor([3]), torch.tensor([3]), {},
            ... )
            >>> graphs.edge_index.tolist(), graphs.edge_attr.flatten().tolist()
            ([[1, 2, 0], [0, 0, 1]], [8, 9, 7])
        """
        node_ptr, edge_ptr = (offsets_from_sizes(sizes.cpu()) for sizes in (num_nodes, num_edges))
        on_cpu = {name: torch.as_tensor(graphs).cpu() for name, graphs in parts.items()}
        graphs = GraphSet(x, edge_index, edge_attr, y, node_ptr, edge_ptr, on_cpu)
        order = graphs._order_of_targets()
        return replace(
            graphs, edge_index=edge_index[:, order], edge_attr=None if edge_attr is None else edge_attr[order]
        )

    @staticmethod
    def from_data_list(graphs: Sequence[Data], parts: Mapping[str, Tensor]) -> GraphSet:
        """Takes graphs as PyTorch Geometric has them, each with ``x``, ``edge_index``, ``y`` and perhaps ``edge_attr``.

        Args:
            graphs: The graphs. Labels of a graph are its ``y``, of any shape, the same number for each.
            parts: Graphs of each part of a split, by its name: int64, shape (graphs,).

        Example:
            >>> path = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([1]))
            >>> point = Data(x=torch.zeros(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.tensor([0]))
            >>> GraphSet.from_data_list([path, point], {"train": torch.tensor([0, 1])})
            GraphSet(num_graphs=2, num_nodes=4, num_edges=2, parts={'train': 2})
        """
        if not graphs:
            raise DataError("`graphs` is empty, but one graph or more was expected.")
        for i, graph in enumerate(graphs):
            missing = [name for name in ("x", "edge_index", "y") if graph.get(name) is None]
            if missing:
                raise DataError(f"`graphs[{i}]` has no {', '.join(f'`{name}`' for name in missing)}.")
            if not isinstance(graph.y, Tensor):
                raise DataError(f"`graphs[{i}].y` is a {type(graph.y).__name__} but a tensor of labels was expected.")
            if graph.edge_index.ndim != 2 or len(graph.edge_index) != 2 or graph.edge_index.dtype != torch.int64:
                raise ShapeError(
                    f"`graphs[{i}].edge_index` {_found(graph.edge_index)} but (2, E) and torch.int64 were expected."
                )
            num_edges = graph.edge_index.shape[1]
            if graph.edge_attr is not None and len(graph.edge_attr) != num_edges:
                raise ShapeError(
                    f"`graphs[{i}].edge_attr` has {len(graph.edge_attr)} rows but {num_edges} were expected, one for "
                    "each edge."
                )
            found, first = _widths(graph), _widths(graphs[0])
            if found != first:
                raise ShapeError(
                    f"`graphs[{i}]` has {found} but `graphs[0]` has {first}; all were expected to have the same "
                    "features and labels."
                )
        with_features = graphs[0].edge_attr is not None
        return GraphSet.from_sizes(
            x=torch.cat([graph.x for graph in graphs]),
            edge_index=torch.cat([graph.edge_index for graph in graphs], dim=1),
            edge_attr=torch.cat([graph.edge_attr for graph in graphs]) if with_features else None,
            y=torch.stack([graph.y.flatten() for graph in graphs]),
            num_nodes=torch.tensor([len(graph.x) for graph in graphs]),
            num_edges=torch.tensor([graph.edge_index.shape[1] for graph in graphs]),
            parts=parts,
        )

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    @property
    def device(self) -> torch.device:
        """Device of the features, the edges and the labels."""
        return self.x.device

    def to(self, device: torch.device | str) -> GraphSet:
        """Copies features, edges and labels to a device; bounds and parts stay on the CPU."""
        edge_attr = None if self.edge_attr is None else self.edge_attr.to(device)
        return replace(
            self, x=self.x.to(device), edge_index=self.edge_index.to(device), edge_attr=edge_attr, y=self.y.to(device)
        )

    def batch(self, graphs: Tensor) -> Data:
        """Gathers graphs into one graph of many components.

        Args:
            graphs: Numbers of the graphs, int64, shape (B,), in any order, repeated or not; best on the CPU.

        Returns:
            A ``torch_geometric.data.Data`` on the device of this set with ``x`` (n, f), ``edge_index`` (2, e) in the
            order of the targets, ``edge_attr`` (e, d) or None, ``y`` (B, tasks), ``batch`` (n,), the place in
            ``graphs`` of each node's graph, ``ptr`` (B + 1,), the bounds of their nodes, and ``num_graphs``, B.

        Example:
            >>> graphs = GraphSet.from_sizes(
            ...     torch.tensor([[1], [2], [3]]), torch.tensor([[0], [1]]), None, torch.tensor([[5], [6]]),
            ...     num_nodes=torch.tensor([1, 2]), num_edges=torch.tensor([0, 1]), parts={},
            ... )
            >>> batch = graphs.batch(torch.tensor([1, 1, 0]))
            >>> batch.x.flatten().tolist(), batch.edge_index.tolist(), batch.y.flatten().tolist(), batch.ptr.tolist()
            ([2, 3, 2, 3, 1], [[0, 2], [1, 3]], [6, 6, 5], [0, 2, 4, 5])
        """
        graphs = graphs.cpu()
        _expect_graphs("graphs", graphs, len(self))
        nodes, index, ptr = _gathered(self.node_ptr, graphs, self.device)
        edges, edge_graph, _ = _gathered(self.edge_ptr, graphs, self.device)
        return Data(
            x=self.x[nodes],
            edge_index=self.edge_index[:, edges] + ptr[edge_graph],
            edge_attr=None if self.edge_attr is None else self.edge_attr[edges],
            y=self.y[graphs.to(self.device, non_blocking=True)],
            batch=index,
            ptr=ptr,
            num_graphs=len(graphs),
        )

    def minibatches(self, part: str, size: int, generator: torch.Generator | None = None) -> Iterator[Data]:
        """Goes once through the graphs of a part.

        Args:
            part: Name of the part.
            size: Graphs of a batch; the last one holds what is left.
            generator: Draws the order of the graphs, on the CPU; None keeps the order of the part.

        Returns:
            An iterator over batches as :meth:`batch` gives them. The order is drawn at once, not as batches are taken.

        Example:
            >>> graphs = GraphSet.from_sizes(
            ...     torch.zeros(3, 1), torch.zeros(2, 0, dtype=torch.int64), None, torch.tensor([[5], [6], [7]]),
            ...     torch.ones(3), torch.zeros(3), parts={"train": torch.tensor([2, 0, 1])},
            ... )
            >>> [batch.y.flatten().tolist() for batch in graphs.minibatches("train", size=2)]
            [[7, 5], [6]]
        """
        if part not in self.parts:
            raise ConfigError(f"`part` is {part!r} but one of {', '.join(self.parts) or 'none'} was expected.")
        expect_positive(size=size)
        graphs = self.parts[part]
        if generator is not None:
            if generator.device.type != "cpu":
                raise ConfigError(
                    f"`generator` is on {generator.device} but the order of graphs is drawn on the CPU: give a "
                    "`torch.Generator()`."
                )
            graphs = graphs[torch.randperm(len(graphs), generator=generator)]
        return (self.batch(graphs[low : low + size]) for low in range(0, len(graphs), size))

    def __repr__(self) -> str:
        parts = {name: len(graphs) for name, graphs in self.parts.items()}
        return (
            f"GraphSet(num_graphs={len(self)}, num_nodes={len(self.x)}, num_edges={self.edge_index.shape[1]}, "
            f"parts={parts})"
        )

    def _order_of_targets(self) -> Tensor:
        """Places of the edges (E,), graph by graph in the order of their targets, each within its graph."""
        nodes, edges = self.node_ptr.diff(), self.edge_ptr.diff()
        first, count = torch.stack([self.node_ptr[:-1], nodes]).repeat_interleave(edges, dim=1).to(self.device)
        strangers = ((self.edge_index < 0) | (self.edge_index >= count)).any(0).nonzero().flatten().tolist()
        if strangers:
            graph = int(torch.searchsorted(self.edge_ptr, strangers[0], right=True)) - 1
            raise DataError(
                f"`edge_index` has {len(strangers)} edges with nodes outside their graph: {describe_rows(strangers)}. "
                f"The first is {self.edge_index[:, strangers[0]].tolist()} in graph {graph}, which has "
                f"{int(nodes[graph])} nodes. Nodes are counted from 0 within each graph."
            )
        return torch.argsort(self.edge_index[1] + first, stable=True)


def _gathered(ptr: Tensor, graphs: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the graphs, the place in ``graphs`` each belongs to, and the bounds of the places, on the device."""
    sizes = ptr[graphs + 1] - ptr[graphs]
    bounds = offsets_from_sizes(sizes)
    total = int(bounds[-1])
    shift = ptr[graphs] - bounds[:-1]
    sizes, shift, bounds = (counts.to(device, non_blocking=True) for counts in (sizes, shift, bounds))
    index = torch.repeat_interleave(sizes, output_size=total)  # with its size known, nothing waits for the device
    return torch.arange(total, device=device) + shift[index], index, bounds


def _found(tensor: Tensor) -> str:
    return f"has shape {tuple(tensor.shape)} and dtype {tensor.dtype}"


def _widths(graph: Data) -> str:
    """How many features and labels a graph has, in words."""
    edges = "no `edge_attr`" if graph.edge_attr is None else f"`edge_attr` of shape (E, {_width(graph.edge_attr)})"
    return f"`x` of shape (N, {_width(graph.x)}), {edges} and {graph.y.numel()} labels"


def _width(rows: Tensor) -> str:
    return ", ".join(map(str, rows.shape[1:]))


def _expect_rows(name: str, tensor: Tensor, rows: int | str) -> None:
    if tensor.ndim != 2 or (isinstance(rows, int) and len(tensor) != rows):
        raise ShapeError(f"`{name}` has shape {tuple(tensor.shape)} but ({rows}, columns) was expected.")


def _expect_bounds(name: str, ptr: Tensor, total: int) -> None:
    if ptr.ndim != 1 or len(ptr) < 1 or ptr.dtype != torch.int64 or ptr.device.type != "cpu":
        raise ShapeError(f"`{name}` {_found(ptr)} on {ptr.device} but (G + 1,) and torch.int64 on cpu were expected.")
    if ptr[0] != 0 or ptr[-1] != total or bool((ptr.diff() < 0).any()):
        raise DataError(
            f"`{name}` goes from {int(ptr[0])} to {int(ptr[-1])} but bounds from 0 to {total} that never decrease were "
            "expected."
        )


def _expect_graphs(name: str, graphs: Tensor, num_graphs: int) -> None:
    if graphs.ndim != 1 or graphs.dtype != torch.int64 or graphs.device.type != "cpu":
        raise ShapeError(
            f"`{name}` {_found(graphs)} on {graphs.device} but (graphs,) and torch.int64 on cpu were expected. The "
            "graphs of a mask are `mask.nonzero().flatten()`."
        )
    strangers = graphs[(graphs < 0) | (graphs >= num_graphs)].tolist()
    if strangers:
        raise DataError(
            f"`{name}` names {len(strangers)} graphs that do not exist: {describe_rows(strangers)}. There are "
            f"{num_graphs}, counted from 0."
        )
