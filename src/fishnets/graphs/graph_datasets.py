"""Many small graphs, each with labels, read from a folder in the layout of the Open Graph Benchmark.

OGB (Hu et al. 2020, arXiv:2005.00687) keeps them in tables without a header, one graph after another::

    raw/num-node-list.csv.gz, raw/num-edge-list.csv.gz   how many nodes and stored edges each graph has
    raw/edge.csv.gz            source and target of every stored edge, counted from 0 within its graph
    raw/edge-feat.csv.gz       its features                                  (unless meta.json says there are none)
    raw/node-feat.csv.gz       features of the nodes
    raw/graph-label.csv.gz     one column for each task; an empty cell is a label that is not known
    split/<name>/train.csv.gz, valid.csv.gz, test.csv.gz          the graphs of each part
    meta.json                  whether edges are stored once for both directions, and which split to take

OGB's own downloads have no ``meta.json``: its values are known here for the folder ``ogbg_molhiv``. Nothing is written
and nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fishnets.errors import DataError, describe_rows
from fishnets.graphs.graph_set import GraphSet
from fishnets.graphs.ogb_tables import Tables, expect_rows, open_tables, whole_or_float32, with_reverses

__all__ = ["read_graph_dataset"]

LAYOUT = (
    "OGB's layout is raw/{edge,edge-feat,node-feat,graph-label,num-node-list,num-edge-list}.csv.gz, "
    "split/<name>/{train,valid,test}.csv.gz and meta.json"
)
SOURCE = (
    "ogbg-molhiv comes from https://ogb.stanford.edu: unpack "
    "http://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/hiv.zip to a folder ogbg_molhiv."
)
KNOWN = {"ogbg_molhiv": {"add_inverse_edge": "True", "has_edge_attr": "True", "split": "scaffold"}}


def read_graph_dataset(root: str | Path) -> GraphSet:
    """Reads graphs with their labels and their split.

    Where ``meta.json`` says ``add_inverse_edge``, every stored edge comes with its reverse, with the same features.
    Edges are then put in the order of their targets within each graph.

    Args:
        root: The folder that holds ``raw`` and ``split``, in the layout this module describes.

    Returns:
        G graphs of N nodes and E directed edges together: ``x`` (N, f), ``edge_attr`` (E, d) or None, ``y`` (G, tasks)
        and the parts ``train``, ``valid`` and ``test``, in the order of their files. Features are int64 where all of a
        table are whole, as categories are, else float32. Labels are int64 or, where some are unknown (NaN) or not
        whole, float32. A graph may be in no part of the split, but not twice in it.

    Example:
        >>> import gzip, tempfile
        >>> tables = {  # two molecules, of two atoms with a bond and of one without
        ...     "raw/num-node-list": "2 1", "raw/num-edge-list": "1 0", "raw/edge": "0,1", "raw/edge-feat": "3",
        ...     "raw/node-feat": "5,0 7,1 5,0", "raw/graph-label": "0 1",
        ...     "split/scaffold/train": "1", "split/scaffold/valid": "0", "split/scaffold/test": "",
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     root = Path(folder) / "ogbg_molhiv"
        ...     for name, rows in tables.items():
        ...         path = root / f"{name}.csv.gz"
        ...         path.parent.mkdir(parents=True, exist_ok=True)
        ...         _ = path.write_bytes(gzip.compress(rows.replace(" ", "\\n").encode()))
        ...     graphs = read_graph_dataset(root)
        >>> graphs
        GraphSet(num_graphs=2, num_nodes=3, num_edges=2, parts={'train': 1, 'valid': 1, 'test': 0})
        >>> graphs.batch(torch.tensor([1, 0])).edge_index.tolist()
        [[2, 1], [1, 2]]
    """
    tables = open_tables(root, LAYOUT, KNOWN, SOURCE)
    num_nodes = _sizes(tables, "raw/num-node-list")
    num_edges = _sizes(tables, "raw/num-edge-list")
    expect_rows(tables.path("raw/num-edge-list"), num_edges, len(num_nodes), "graph that num-node-list.csv.gz counts")
    x = whole_or_float32(tables.features("raw/node-feat", int(num_nodes.sum()), "node", np.float64))
    edges, edge_attr = _edges(tables, num_nodes, num_edges)
    if tables.flag("add_inverse_edge"):
        edges, edge_attr = with_reverses(edges, edge_attr)
        num_edges = 2 * num_edges
    return GraphSet.from_sizes(
        x=x,
        edge_index=torch.from_numpy(np.ascontiguousarray(edges.T)),
        edge_attr=edge_attr,
        y=tables.labels("raw/graph-label", len(num_nodes), "graph"),
        num_nodes=torch.from_numpy(num_nodes),
        num_edges=torch.from_numpy(num_edges),
        parts=_parts(tables, len(num_nodes)),
    )


def _sizes(tables: Tables, name: str) -> NDArray[np.int64]:
    """Nodes or stored edges of each graph (G,)."""
    sizes = tables.whole_numbers(name, columns=1)[:, 0]
    if not sizes.size or sizes.min() < 0:
        found = f"the count {sizes.min()} in row {sizes.argmin() + 1}" if sizes.size else "no rows"
        raise DataError(f"{tables.path(name)} has {found} but a count for each graph, 0 or more, was expected.")
    return sizes


def _edges(
    tables: Tables, num_nodes: NDArray[np.int64], num_edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Tensor | None]:
    """Stored edges (stored, 2), counted within each graph, and their features (stored, d)."""
    edges, path, num_stored = tables.whole_numbers("raw/edge", columns=2), tables.path("raw/edge"), int(num_edges.sum())
    expect_rows(path, edges, num_stored, "edge that num-edge-list.csv.gz counts")
    strangers = np.flatnonzero(((edges < 0) | (edges >= np.repeat(num_nodes, num_edges)[:, None])).any(1))
    if strangers.size:
        first = edges[strangers[0]].tolist()
        graph = np.searchsorted(num_edges.cumsum(), strangers[0], side="right")
        raise DataError(
            f"{path} has {strangers.size} edges with nodes outside their graph, the first in row {strangers[0] + 1}: "
            f"{first[0]}, {first[1]} in graph {graph}, which by num-node-list.csv.gz has {num_nodes[graph]} nodes. "
            "Nodes are counted from 0 within each graph, and num-edge-list.csv.gz says which edges are whose."
        )
    required = tables.flag("has_edge_attr", "True")
    features = tables.optional_features("raw/edge-feat", num_stored, "edge", required, np.float64)
    return edges, None if features is None else whole_or_float32(features)


def _parts(tables: Tables, num_graphs: int) -> dict[str, Tensor]:
    """The graphs of each part of the split, each listed once."""
    parts = tables.parts(num_graphs, "graph")
    for part, graphs in parts.items():
        repeated = np.flatnonzero(np.bincount(graphs, minlength=num_graphs) > 1).tolist()
        if repeated:
            path = tables.path(f"{tables.split()}/{part}")
            raise DataError(
                f"{path} lists {len(repeated)} graphs more than once: {describe_rows(repeated)}. List each once."
            )
    return {part: torch.from_numpy(graphs) for part, graphs in parts.items()}
