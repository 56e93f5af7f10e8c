"""Labelled graphs: what a task asks of the graphs it is given, and what it says of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, ShapeError, describe_rows, expect_finite

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fishnets.graphs.graph_set import GraphSet

__all__ = ["LABELS", "PARTS", "expect_apart", "expect_finite_features", "expect_graph", "expect_same_labels"]

PARTS = ("train", "valid", "test")
LABELS = ("y", "train_mask", "valid_mask", "test_mask")


def expect_graph(which: str, graph: Data) -> None:
    """Raises unless a graph has finite features, edges between its nodes, labels, and masks that share no node."""
    if not hasattr(graph, "edge_index"):
        raise ConfigError(f"{which} is a {type(graph).__name__} but a `torch_geometric.data.Data` was expected.")
    if graph.x is None:
        raise ConfigError(
            f"{which} has no features `x`. Where edges have some, `graph.x = sum_of_edges(graph)` makes them, as for "
            "ogbn-proteins."
        )
    if graph.y is None:
        raise ConfigError(f"{which} has no labels `y`.")
    if not isinstance(graph.y, Tensor):
        raise ConfigError(f"{which} has labels `y` that are a {type(graph.y).__name__}, but a tensor was expected.")
    expect_finite_features(graph)
    _expect_edges(which, graph)
    rows = {"x": graph.num_nodes, "y": graph.num_nodes, "edge_attr": graph.edge_index.shape[1]}
    for name, count in rows.items():
        found = None if graph.get(name) is None else len(graph[name])
        if found not in (None, count):
            owner = "edge" if name == "edge_attr" else "node"
            raise ShapeError(f"{which} has {found} rows of `{name}` but {count} were expected, one for each {owner}.")
    seen = torch.zeros(graph.num_nodes, dtype=torch.int64, device=graph.y.device)
    for part in PARTS:
        mask = graph.get(f"{part}_mask")
        if mask is None:
            known = " Rename `val_mask`." if part == "valid" and "val_mask" in graph else ""
            raise ConfigError(
                f"{which} has no `{part}_mask`, which says what nodes are in this part of the split.{known}"
            )
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (graph.num_nodes,):
            raise ShapeError(
                f"`{part}_mask` {_found(mask)} but shape ({graph.num_nodes},) and dtype torch.bool were expected. For "
                "nodes by number: `mask = torch.zeros(num_nodes, dtype=torch.bool)`, then `mask[nodes] = True`."
            )
        if not bool(mask.any()):
            raise DataError(f"No node is in the part {part!r} of the split.")
        seen += mask
    expect_apart(seen, "nodes")


def _expect_edges(which: str, graph: Data) -> None:
    """Raises unless edges are pairs of nodes."""
    edges = graph.edge_index
    if not isinstance(edges, Tensor) or edges.ndim != 2 or len(edges) != 2 or edges.dtype != torch.int64:
        raise ShapeError(f"{which}: `edge_index` {_found(edges)} but shape (2, E) and torch.int64 were expected.")
    strangers = ((edges < 0) | (edges >= graph.num_nodes)).any(0).nonzero().flatten().tolist()
    if strangers:
        raise DataError(
            f"{which} has {len(strangers)} edges with nodes that do not exist: {describe_rows(strangers)}. The first "
            f"is {edges[:, strangers[0]].tolist()}, and nodes are 0 to {graph.num_nodes - 1}."
        )


def expect_finite_features(graph: Data | GraphSet) -> None:
    """Raises unless features of nodes and edges are finite, where there are some."""
    for name in ("x", "edge_attr"):
        features = getattr(graph, name)
        if features is not None:
            expect_finite(f"Features `{name}`", features.flatten(1) if features.ndim > 1 else features.unsqueeze(1))


def expect_apart(counts: Tensor, what: str) -> None:
    """Raises unless none is counted in two parts."""
    shared = (counts > 1).nonzero().flatten().tolist()
    if shared:
        raise DataError(
            f"{len(shared)} {what} are in more than one part of the split, but each was expected in one at most: "
            f"{describe_rows(shared)}."
        )


def expect_same_labels(which: str, graph: Data, labelled: Data) -> None:
    """Raises unless a graph has the labels and the split of another, which costs nothing where it shares them."""
    for name in LABELS:
        one, other = graph.get(name), labelled[name]
        if one is not other and not (one is not None and _equal(one, other)):
            raise DataError(
                f"{which} has another `{name}` than `graphs['valid']`, but graphs of one task were expected to differ "
                "in features and edges alone, and to have the same nodes, labels and split."
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same, unknown labels included."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _found(given: Any) -> str:
    if not isinstance(given, Tensor):
        return f"is a {type(given).__name__}"
    return f"has shape {tuple(given.shape)} and dtype {given.dtype}"
