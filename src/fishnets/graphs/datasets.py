"""Graphs whose nodes carry labels, read from a folder in the layout of the Open Graph Benchmark.

OGB (Hu et al. 2020, arXiv:2005.00687) keeps one graph in tables without a header, one row for each edge or node::

    raw/edge.csv.gz            source and target of every stored edge, counted from 0
    raw/edge-feat.csv.gz       its features                                  (unless meta.json says there are none)
    raw/node-label.csv.gz      one column for each task; an empty cell is a label that is not known
    raw/node-feat.csv.gz       features of the nodes                                                     (optional)
    raw/node_<name>.csv.gz     more about the nodes, such as node_species                                (optional)
    raw/num-node-list.csv.gz, raw/num-edge-list.csv.gz            how many nodes and stored edges there are
    split/<name>/train.csv.gz, valid.csv.gz, test.csv.gz          the nodes of each part
    meta.json                  whether edges are stored once for both directions, and which split to take

OGB's own downloads have no ``meta.json``: its values are known here for the folders ``ogbn_proteins`` and
``ogbn_arxiv``. Nothing is written and nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fishnets.errors import DataError, MissingExtraError, ShapeError, describe_rows
from fishnets.graphs.ogb_tables import Tables, expect_rows, open_tables, with_reverses

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["read_node_dataset", "sum_of_edges"]

LAYOUT = (
    "OGB's layout is raw/{edge,edge-feat,node-label,num-node-list,num-edge-list}.csv.gz, "
    "split/<name>/{train,valid,test}.csv.gz and meta.json"
)
NAMES = ("add_inverse_edge", "has_edge_attr", "has_node_attr", "split")
KNOWN = {  # as in ogb/nodeproppred/master.csv
    "ogbn_proteins": dict(zip(NAMES, ("True", "True", "False", "species"), strict=True)),
    "ogbn_arxiv": dict(zip(NAMES, ("False", "False", "True", "time"), strict=True)),
}


def read_node_dataset(root: str | Path) -> Data:
    """Reads a graph with its node labels and its split.

    Where ``meta.json`` says ``add_inverse_edge``, every stored edge is followed by its reverse, with the same features:
    the order OGB's own reader gives.

    Args:
        root: The folder that holds ``raw`` and ``split``, in the layout this module describes.

    Returns:
        A ``torch_geometric.data.Data`` of N nodes and E directed edges with ``edge_index`` (2, E), ``edge_attr``
        float32 (E, d) or None, ``x`` float32 (N, f) or None, ``y`` (N, tasks), one entry (N, columns) for each
        ``raw/node_<name>.csv.gz``, and ``train_mask``, ``valid_mask``, ``test_mask`` (N,). Labels are int64 or, where
        some are unknown (NaN) or not whole, float32. A node may be in no part of the split, but not in two.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError("torch_geometric", "graphs", "Reading graphs") from error
    tables = open_tables(root, LAYOUT, KNOWN)
    num_nodes = _count(tables, "raw/num-node-list")
    edge_index, edge_attr = _edges(tables, num_nodes)
    data = Data(edge_index=edge_index, edge_attr=edge_attr, num_nodes=num_nodes)
    data.x = tables.optional_features("raw/node-feat", num_nodes, "node", tables.flag("has_node_attr", "False"))
    data.y = tables.labels("raw/node-label", num_nodes, "node")
    for path in sorted(tables.root.glob("raw/node_*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        data[name] = tables.numbers(f"raw/{name}", num_nodes, "node")
    for part, nodes in tables.parts(num_nodes, "node").items():
        data[f"{part}_mask"] = torch.zeros(num_nodes, dtype=torch.bool)
        data[f"{part}_mask"][torch.from_numpy(nodes)] = True
    return data


def sum_of_edges(data: Data) -> Tensor:
    r"""Sums the features of the edges that end in each node: the node features of ogbn-proteins, which has none.

    .. math:: x_i = \sum_{(j, i) \in E} e_{ji}

    Args:
        data: A graph of N nodes with ``edge_index`` (2, E) and ``edge_attr`` (E, d).

    Returns:
        Features of the nodes, shape (N, d); zero where no edge ends.

    Example:
        >>> from torch_geometric.data import Data
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 1]])
        >>> sum_of_edges(Data(edge_index=edge_index, edge_attr=torch.tensor([[1.0], [2.0], [4.0]]), num_nodes=3))
        tensor([[0.],
                [5.],
                [2.]])
    """
    edge_index, edge_attr = data.edge_index, data.edge_attr
    if edge_attr is None:
        raise DataError("`data` has no `edge_attr`, so there are no edge features to sum.")
    if edge_attr.ndim != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        raise ShapeError(
            f"`edge_attr` has shape {tuple(edge_attr.shape)} but ({edge_index.shape[1]}, d) was expected, a row for "
            "each edge."
        )
    total: Tensor = edge_attr.new_zeros(data.num_nodes, edge_attr.shape[1])
    return total.index_add(0, edge_index[1], edge_attr)


def _edges(tables: Tables, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Directed edges (2, E) and their features (E, d)."""
    both_directions = tables.flag("add_inverse_edge")
    num_stored = _count(tables, "raw/num-edge-list")
    edges, path = tables.whole_numbers("raw/edge", columns=2), tables.path("raw/edge")
    expect_rows(path, edges, num_stored, "edge that num-edge-list.csv.gz counts")
    strangers = np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(1))
    if strangers.size:
        first = edges[strangers[0]].tolist()
        raise DataError(
            f"{path} has {strangers.size} edges with nodes that do not exist, the first in row "
            f"{strangers[0] + 1}: {first[0]}, {first[1]}. "
            f"num-node-list.csv.gz counts {num_nodes} nodes, 0 to {num_nodes - 1}."
        )
    features = tables.optional_features("raw/edge-feat", num_stored, "edge", tables.flag("has_edge_attr", "True"))
    if both_directions:
        edges, features = with_reverses(edges, features)
    return torch.from_numpy(np.ascontiguousarray(edges.T)), features


def _count(tables: Tables, name: str) -> int:
    """The one number of a file that counts nodes or edges."""
    table = tables.whole_numbers(name, columns=1)
    if table.size != 1 or table[0, 0] < 0:
        raise DataError(
            f"{tables.path(name)} has the rows [{describe_rows(table[:, 0].tolist())}] but one count was expected: a "
            "folder with labelled nodes holds one graph."
        )
    return int(table[0, 0])
